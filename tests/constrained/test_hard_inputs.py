"""Hard grammars compile soon or end with a clear limit error, and run in bounded memory.

Each runs in a process of its own, under limits of address space and CPU time that the system enforces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

_WALK = """
import json, resource, sys, time
from palmette.constrained import Grammar, compile_grammar
from palmette.constrained.errors import GrammarLimitError
from palmette.constrained.vocabulary import Vocabulary

words = [b"ab", b'","', b'":', b"aaaa"]
vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), *words], end_ids=[300], size=301)
warm = compile_grammar(Grammar.regex("a+"), vocabulary)
warm.mask(warm.start)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kind, source = json.load(sys.stdin)
began = time.process_time()
try:
    grammar = compile_grammar(Grammar.regex(source) if kind == "regex" else Grammar.json_schema(source), vocabulary)
except GrammarLimitError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit()
compiled = time.process_time() - began
state, tokens, slowest = grammar.start, 0, 0.0
try:
    for tokens in range(40):
        began = time.process_time()
        mask = grammar.mask(state)
        slowest = max(slowest, time.process_time() - began)
        allowed = [i for i in range(260) if int(mask[i // 32]) >> i % 32 & 1]
        if not allowed:
            break
        state = grammar.advance(state, allowed[tokens * 7 % len(allowed)])
except GrammarLimitError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit()
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps({"compile_s": compiled, "mask_s": slowest, "tokens": tokens, "grown_mib": grown}))
"""


def nested(depth: int) -> dict[str, Any]:
    """Objects in arrays in objects, `depth` deep."""
    schema: dict[str, Any] = {"type": "integer"}
    for level in range(depth):
        if level % 2:
            schema = {"type": "array", "items": schema}
        else:
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def wide(properties: int) -> dict[str, Any]:
    """An object schema of about 100 bytes a property."""
    described = {"type": ["string", "null"], "maxLength": 40, "description": "a" * 40}
    return {"type": "object", "properties": {f"property_{i}": described for i in range(properties)}}


def union(options: int) -> dict[str, Any]:
    """Objects that are told apart by one member each."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"kind {i}"}, "x": {"type": "number"}},
                "required": ["kind"],
            }
            for i in range(options)
        ]
    }


HARD: dict[str, tuple[str, Any]] = {
    "late choice": ("regex", "(a|b)*a(a|b){20}"),
    "counts in counts": ("regex", "(.{1,300}){1,300}!"),
    "counts of counts": ("regex", "([a-m ].{0,30}|[a-z ]{1,5}q){1,100}Z"),
    "counts five deep": ("regex", "((((a{1,9}){1,9}){1,9}){1,9}){1,9}b"),
    "long strings in long lists": (
        "json",
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 100},
        },
    ),
    "unique strings": ("json", {"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 300}}),
    "500 branches": ("json", union(500)),
    "1 MB": ("json", wide(9000)),
    "200 deep": ("json", nested(200)),
    "10 kB of words": ("regex", "|".join(f"word{i}[a-z]+" for i in range(800))),
    "10 kB of optional letters": ("regex", "(a?b?){3000}c"),
    "10 kB of classes": ("json", {"type": "string", "pattern": "^" + "[a-z0-9]{1,9}" * 770 + "$"}),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_grammars_are_bounded(name: str) -> None:
    """It compiles within 2 s of CPU time, or says what was too large; 40 tokens take less than 300 MiB."""
    result = subprocess.run(
        [sys.executable, "-c", _LIMITED],
        input=json.dumps(HARD[name]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    report = json.loads(result.stdout)
    if "refused" in report:
        assert "CompileLimits" in report["refused"] or "limit" in report["refused"]
        return
    assert report["compile_s"] < 2, report
    assert report["grown_mib"] < 300, report


_LIMITED = (
    "import resource\n"
    "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
    "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n" + _WALK
)
