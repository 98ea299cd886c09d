"""A straight-line program is one message to whatever runs it, on real transports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.native_server import ServedEngine

import palmette as pt
from palmette.lang.http_connection import Answer, HttpClient
from palmette.runtime.engine import Engine, EngineSession
from palmette.runtime.processes.engine_processes import EngineProcesses
from palmette.runtime.processes.process_messages import ExtendProgram, FromParent
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Node

CALLS = 8


@pt.function(max_tokens=4, temperature=0)
def straight(s: pt.ProgramState) -> None:
    """Eight calls with everything between them that needs no value: roles, references, a template, a fork, a join."""
    s += pt.system("Be brief.") + pt.user("Name a fruit.") + pt.assistant(pt.gen("fruit", stop="\n"))
    s += pt.user(pt.template("Is {fruit} sweet?", fruit=s.ref("fruit")))
    s += pt.assistant(pt.select("sweet", ["yes", "no"]))
    branches = s.fork(3)
    branches += lambda place: pt.user(f"Aspect {place}?") + pt.assistant(pt.gen("note"))
    branches.join()
    s += pt.user("Notes: " + s.ref("note", separator="; ")) + pt.assistant(pt.gen("sum"))
    with s.copy() as aside:
        aside += pt.user("And so?") + pt.assistant(pt.gen("aside"))
    with s.var_scope("ending"), s.user():
        s += "How many?"
    s += pt.assistant("About " + pt.gen("score", regex="[0-9]{2}"))


def check(state: pt.ProgramState) -> None:
    """Everything was answered, in its place."""
    assert state.error() is None
    assert (len(state["note"]), len(state["aside"]), len(state["score"])) == (3, 1, 2)
    assert f"Is {state['fruit']} sweet?" in state.text()
    assert f"Notes: {'; '.join(state['note'])}" in state.text()


def test_one_message_to_a_mock() -> None:
    """All nodes come at once, and the mock is asked for eight answers."""
    backend = pt.MockBackend(lambda prompt, node: "42" if "About" in prompt[-6:] else getattr(node, "choices", "x")[0])
    check(straight.run(backend=backend))
    assert (backend.round_trips, len(backend.calls)) == (1, CALLS)


def test_one_message_to_an_engine_here(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread is told of the program once."""
    sent: list[int] = []
    extend = EngineSession.extend

    def counted(self: EngineSession, nodes: Sequence[Node]) -> None:
        sent.append(len(nodes))
        extend(self, nodes)

    monkeypatch.setattr(EngineSession, "extend", counted)
    check(straight.run(backend=tiny_engine))
    assert len(sent) == 1


def test_one_message_to_processes(tiny_runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the socket go its opening, one message with all nodes, and its end, of which none is waited for."""
    sent: list[FromParent] = []
    decode = msgspec.msgpack.Decoder(FromParent).decode
    send = EngineProcesses.send_encoded

    def counted(self: EngineProcesses, message: bytes) -> None:
        sent.append(decode(message))
        send(self, message)

    monkeypatch.setattr(EngineProcesses, "send_encoded", counted)
    check(straight.run(backend=tiny_runtime))
    assert [type(message).__name__ for message in sent] == ["OpenProgram", "ExtendProgram", "CloseProgram"]
    assert isinstance(sent[1], ExtendProgram)


def test_one_request_to_a_server(tiny_server: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP its opening and all nodes are one request; reading values adds none."""
    asked: list[tuple[str, Any]] = []
    ask = HttpClient.ask

    def counted(self: HttpClient, method: str, path: str, body: bytes | None = None) -> Answer:
        if method == "PUT" and body is not None:
            asked.append((path, msgspec.json.decode(body)))
        return ask(self, method, path, body)

    monkeypatch.setattr(HttpClient, "ask", counted)
    with pt.HttpBackend(tiny_server.url) as backend:
        check(straight.run(backend=backend))
    kinds = [[message["type"] for message in messages] for _, messages in asked]
    assert kinds[0] == ["open", "extend"]
    assert not any("extend" in later for later in kinds[1:])


def test_a_read_is_one_round_trip_more(tiny_server: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value that the program reads on its way, and no other, costs a request."""

    @pt.function(max_tokens=2)
    def program(s: pt.ProgramState) -> None:
        for place in range(6):
            s += f"{place}" + pt.gen(f"x{place}")
        assert s["x5"] is not None
        assert s["x0"] is not None  # known by then
        s += pt.gen("end")

    sent: list[bytes] = []
    ask = HttpClient.ask

    def counted(self: HttpClient, method: str, path: str, body: bytes | None = None) -> Answer:
        if body is not None and b'"extend"' in body:
            sent.append(body)
        return ask(self, method, path, body)

    monkeypatch.setattr(HttpClient, "ask", counted)
    with pt.HttpBackend(tiny_server.url) as backend:
        assert program.run(backend=backend).error() is None
    assert len(sent) == 2
