"""The backends that the language's suite runs on, and answers that a mock of them gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import palmette as pt
from palmette.runtime.engine import Engine
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Generate, Select

NAMES = ("engine", "processes", "mock", "http", "openai", "openai_chat", "openai_completions")
"""An engine here, in processes and over HTTP, a mock, and the engine over OpenAI's protocol: by both endpoints as the
program goes, by chat completions alone, and by completions alone."""

ENGINES = (Engine, Runtime, pt.HttpBackend)
"""Backends that count tokens as they come, and fail generations by themselves."""

COUNTING = (*ENGINES, pt.OpenAIBackend)
"""Backends whose tokens are a model's."""

UNICODE = "日本語のテキスト 👩‍👩‍👧‍👦🇫🇷 naïve Привет"

_TEXTS = ["abba", "042", UNICODE, "plain answer", "red", "yes", "aXbXc", "<think>hm</think>\n3"]
_JSON = [
    '{"name":"Rex","age":3}',
    '{"name":"Rex","age":3,"tags":[]}',
    "[1,2]",
    '"a \\u00e9 \\"q\\""',
    "true",
    "3",
    "2.5",
    "null",
    '{"kind":"cat","lives":9}',
    '{"name":"add","arguments":{"a":1,"b":2}}',
]


def scripted(prompt: str, node: Generate | Select) -> str:
    """An answer that a node's grammar allows.

    Raises:
        LookupError: there is none, or it would be longer than max_tokens let a model's be.
    """
    if isinstance(node, Select):
        return node.choices[-1]
    if node.grammar is None:
        return "plain answer"
    for text in (*_TEXTS, *_JSON):
        if pt.constrained.matches(node.grammar, text):
            return text
    raise LookupError(f"no answer of the script matches {node.grammar.source}")


@contextmanager
def backend_of(name: str, engine: Engine | Runtime | None, server_url: str) -> Iterator[pt.Backend]:
    """The backend of a name of `NAMES`, on the engine or on the server around it."""
    if name == "mock" or engine is None:
        yield pt.MockBackend(scripted, piece_length=1)
    elif name == "http":
        with pt.HttpBackend(server_url) as on_server:
            yield on_server
    elif name.startswith("openai"):
        chat = {"openai": None, "openai_chat": True, "openai_completions": False}[name]
        with pt.OpenAIBackend("tiny", base_url=f"{server_url}/v1", max_retries=0, chat=chat) as over_http:
            yield over_http
    else:
        yield engine


def wait_until_free(engine: Engine | Runtime) -> None:
    """What was cancelled ends within a step; then no page may be missing."""
    deadline = time.monotonic() + 60
    while True:
        engine.flush_cache()
        stats = engine.stats()
        if stats.free_pages == stats.total_pages:
            return
        assert time.monotonic() < deadline, f"pages are missing: {stats}"
        time.sleep(0.02)


def writes_in_any_role(backend: pt.Backend) -> bool:
    """Whether any message may be generated in: a chat service writes the assistant's only."""
    return not isinstance(backend, pt.OpenAIBackend) or backend._policy.chat is False


def takes_plain_text(backend: pt.Backend) -> bool:
    """Whether text outside of messages reaches the model as it is, and not as a message."""
    return not isinstance(backend, pt.OpenAIBackend) or backend._policy.chat is not True
