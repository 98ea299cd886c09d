"""What requests leave behind is freed with its last reference: a server's collector looks for cycles only seldom."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.native_server import ServedEngine

from palmette.runtime.program_host import HostedProgram
from palmette.runtime.request_tree import RequestTree
from palmette.runtime.server.answers import Exchange
from palmette.runtime.server.event_log import EventLog
from palmette.runtime.server.held_programs import HeldProgram

KINDS = (RequestTree, HostedProgram, Exchange, HeldProgram, EventLog)
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
LONG = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
NODES = [
    {"type": "text", "id": 0, "parent": None, "text": "a"},
    {"type": "generate", "id": 1, "parent": 0, "params": {"max_tokens": 3}, "stream": True},
]


def hang_up(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json=LONG) as response:
        next(response.iter_bytes())


def lose_patience(client: httpx.Client) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        client.post("/v1/completions", json={**LONG, "stream": False}, timeout=httpx.Timeout(60, read=0.05))


def program(client: httpx.Client) -> None:
    path = f"/programs/{client.post('/programs', json={'nodes': NODES}).json()['id']}"
    client.get(f"{path}/events?until_done=1")
    client.delete(path)


VISITS: dict[str, Callable[[httpx.Client], Any]] = {
    "whole": lambda client: client.post("/v1/chat/completions", json=CHAT),
    "long": lambda client: client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 12}),
    "streamed": lambda client: client.post("/v1/chat/completions", json={**CHAT, "stream": True}),
    "native": lambda client: client.post("/generate", json={"text": "a", "sampling_params": {"max_tokens": 2}}),
    "failed": lambda client: client.post("/v1/completions", json={"prompt": "a", "regex": "("}),
    "timed out": lambda client: client.post("/v1/completions", json={**LONG, "timeout": 0.02}),
    "hung up": hang_up,
    "lost patience": lose_patience,
    "program": program,
    "whole program": lambda client: client.post("/programs?stream=1", json={"nodes": NODES}),
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing collects cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """How many there are of each kind."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


@pytest.mark.parametrize("visit", VISITS.values(), ids=VISITS)
@pytest.mark.usefixtures("uncollected")
def test_nothing_stays_until_it_is_collected(tiny_server: ServedEngine, visit: Callable[[httpx.Client], Any]) -> None:
    """However a request ends, its program, its prompt and its answer go with it."""
    before = alive()
    with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
        for _ in range(2):
            visit(client)
    until = time.monotonic() + 60
    while alive() - before:
        assert time.monotonic() < until, alive() - before
        time.sleep(0.1)
