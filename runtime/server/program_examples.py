"""Examples of programs on the OpenAPI page."""

from __future__ import annotations

from typing import Any

NODES: list[dict[str, Any]] = [
    {"type": "text", "id": 0, "parent": None, "text": "Rate this review from 1 to 5: "},
    {
        "type": "generate",
        "id": 1,
        "parent": 0,
        "params": {"max_tokens": 4},
        "grammar": {"kind": "regex", "source": "[1-5]"},
    },
]
MORE_NODES: list[dict[str, Any]] = [
    {"type": "text", "id": 2, "parent": 1, "text": " because"},
    {"type": "generate", "id": 3, "parent": 2, "params": {"max_tokens": 20, "stop": ["."]}, "stream": True},
    {"type": "select", "id": 4, "parent": 1, "choices": [" Good", " Bad"]},
]
PROGRAM_EXAMPLES = [{"nodes": NODES, "cache_salt": "tenant-7"}, {"name": "rate", "priority": 1, "timeout_s": 60}]
MORE_EXAMPLES = [{"nodes": MORE_NODES}]
MESSAGE_EXAMPLES = [
    [
        {"type": "open", "program": 1},
        {"type": "extend", "program": 1, "nodes": NODES},
        {"type": "close", "program": 0},
    ]
]
