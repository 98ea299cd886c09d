"""The real `curl` against our server: what a person types in a shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from tests.native_server import ServedEngine

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs the curl program")

QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Name a tree."}], "max_tokens": 6}


def curl(*words: str) -> str:
    """What curl prints."""
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


def posted(url: str, body: Any, *words: str) -> str:
    """What curl prints for a body of JSON."""
    return curl(url, "-H", "content-type: application/json", "-d", json.dumps(body), *words)


def test_get(roomy_server: ServedEngine) -> None:
    """Models and health."""
    assert json.loads(curl(f"{roomy_server.url}/v1/models"))["data"][0]["id"] == "tiny"
    assert curl(f"{roomy_server.url}/health", "--write-out", "%{http_code}").endswith("200")


def test_post(roomy_server: ServedEngine) -> None:
    """A conversation is answered, the same with a body that says neither its type nor its length."""
    url = f"{roomy_server.url}/v1/chat/completions"
    answer = json.loads(posted(url, {**QUESTION, "temperature": 0}))
    assert answer["usage"]["completion_tokens"] == 6
    chunked = posted(url, {**QUESTION, "temperature": 0}, "-H", "transfer-encoding: chunked")
    assert json.loads(chunked)["choices"] == answer["choices"]


def test_stream(roomy_server: ServedEngine) -> None:
    """With -N the events come as lines of their own, and [DONE] at the end."""
    question = {**QUESTION, "stream": True, "ignore_eos": True}
    printed = posted(f"{roomy_server.url}/v1/chat/completions", question, "--no-buffer")
    events = printed.strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["-d", "{"], 400, "JSON"),
        (["-d", "[]"], 400, "object"),
        (["-d", '{"messages": 3}'], 400, "messages"),
        (["-X", "PUT", "-d", "{}"], 405, "PUT"),
    ],
)
def test_mistakes(roomy_server: ServedEngine, words: list[str], status: int, says: str) -> None:
    """A mistake is an error object with its status."""
    url = f"{roomy_server.url}/v1/chat/completions"
    printed = curl(url, "-H", "content-type: application/json", "--write-out", "\n%{http_code}", *words)
    body, _, code = printed.rpartition("\n")
    assert int(code) == status
    assert says in json.loads(body)["error"]["message"]


def test_unknown_paths(roomy_server: ServedEngine) -> None:
    """404 with the same kind of object."""
    assert "there is no GET /v2" in json.loads(curl(f"{roomy_server.url}/v2"))["error"]["message"]
