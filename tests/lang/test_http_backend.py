"""Programs on a real server, and what can go wrong; what they mean is tested by integration/test_conformance.py."""

from __future__ import annotations

import gc
import http.server
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.native_server import ServedEngine, served, wait_until_empty
from tests.tcp_relay import Relay

import palmette as pt
from palmette.lang import http_patience
from palmette.runtime.engine import Engine
from palmette.runtime.program import Delta, Event, Generate, Node, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings


@pytest.fixture
def backend(tiny_server: ServedEngine) -> Iterator[pt.HttpBackend]:
    """A backend on the server around the tiny engine."""
    with pt.HttpBackend(tiny_server.url) as backend:
        yield backend


@pt.function(max_tokens=8)
def chain(s: pt.ProgramState, turns: int) -> None:
    for turn in range(turns):
        s += f"{turn}: " + pt.gen(f"x{turn}", regex="[ab]{4}")
        assert len(s[f"x{turn}"]) == 4


@pt.function
def endless(s: pt.ProgramState) -> None:
    while True:
        s += pt.gen("x", 100, ignore_eos=True)
        s["x"]


class Recorder:
    """A sink that waits for final events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ended = threading.Semaphore(0)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Delta):
            self._ended.release()

    def wait(self, finals: int) -> None:
        for _ in range(finals):
            assert self._ended.acquire(timeout=60)


def long_nodes(count: int = 1) -> list[Node]:
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    return [Text(0, None, "Long"), *(Generate(1 + place, 0, params, stream=True) for place in range(count))]


def http_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("palmette-http"))


# -- connecting --------------------------------------------------------------------------------------------------------


def test_nobody_there_is_said_at_once() -> None:
    """A refused connection is an EngineError that names the URL and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(pt.EngineError, match=f"no server answers at http://127.0.0.1:{port} .*palmette serve"):
        pt.HttpBackend(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", "", 7, "http://host:x", "http://h/?a=b"])
def test_what_is_no_url_is_refused(url: Any) -> None:
    """Anything but http:// or https:// with a host is a RequestError that shows a good one."""
    with pytest.raises(pt.RequestError, match="url"):
        pt.HttpBackend(url)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"timeout_s": "1"}, {"api_key": "é"}, {"api_key": ""}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    """A RequestError names the argument."""
    with pytest.raises(pt.RequestError, match=next(iter(options))):
        pt.HttpBackend("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"protocol": 1, "model": {"name": 7}}', b'{"protocol": 1}'])
def test_another_kind_of_server_is_recognised(answer: bytes) -> None:
    """What answers but is no Palmette server is said to be none."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(pt.EngineError, match="no Palmette server"):
                pt.HttpBackend(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()


def test_keys_open_the_server(tiny_engine: Engine) -> None:
    """With the key all goes well; without it, or with another, the error says how to give it."""
    with served(tiny_engine, ServerSettings(api_key="open-sesame")) as server:
        for key in (None, "wrong"):
            with pytest.raises(pt.EngineError, match=r"401.*api_key"):
                pt.HttpBackend(server.url, api_key=key)
        with pt.HttpBackend(server.url, api_key="open-sesame") as backend:
            assert chain.run(1, backend=backend).error() is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_https(tiny_engine: Engine, tmp_path: Path) -> None:
    """A certificate that is trusted by `verify`, or not checked, is taken; any other is refused."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    settings = ServerSettings(ssl_certfile=str(certificate), ssl_keyfile=str(key))
    with served(tiny_engine, settings) as server:
        for verify in (str(certificate), False):
            with pt.HttpBackend(server.url, verify=verify) as backend:
                assert chain.run(2, backend=backend).error() is None
        with pytest.raises(pt.EngineError, match="CERTIFICATE_VERIFY_FAILED"):
            pt.HttpBackend(server.url)
    with pytest.raises(pt.RequestError, match="verify"):
        pt.HttpBackend(server.url, verify=str(tmp_path / "none.pem"))


# -- running -----------------------------------------------------------------------------------------------------------


def test_it_is_a_backend_with_cache_and_counts(backend: pt.HttpBackend, tiny_engine: Engine) -> None:
    """Model, counts and cache are those of the engine behind the server."""
    assert isinstance(backend, pt.Backend)
    assert backend.model_info == tiny_engine.model_info
    chain.run(1, backend=backend)
    wait_until_empty(tiny_engine)
    there, here = backend.stats(), tiny_engine.stats()
    assert msgspec.structs.replace(there, working_s=here.working_s) == here  # it may have worked since
    assert pt.get_server_info(backend)["stats"]["total_pages"] == 8000
    assert pt.flush_cache(backend) > 0
    assert backend.stats().evictable_pages == 0


def test_a_thousand_programs_need_two_threads(backend: pt.HttpBackend, tiny_engine: Engine) -> None:
    """However many programs are open, two threads and one stream serve them; each gets its own answer."""

    @pt.function
    async def program(s: pt.ProgramState, place: int) -> str:
        s += "x" + pt.gen("x", regex=f"{place:03d}", max_tokens=8)
        return str(await s.get("x"))

    states = program.run_batch([{"place": place} for place in range(1000)], backend=backend, num_threads=1000)
    assert [state.ret_value for state in states] == [f"{place:03d}" for place in range(1000)]
    assert http_threads() == ["palmette-http-receiver", "palmette-http-sender"]
    wait_until_empty(tiny_engine)


def test_each_node_ends_once_and_in_order(backend: pt.HttpBackend) -> None:
    """Deltas of a node come before its one end, and join to it."""
    recorder = Recorder()
    session = backend.open(recorder)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    session.extend([Text(0, None, "a"), *(Generate(node, 0, params, stream=True) for node in range(1, 9))])
    recorder.wait(8)
    for node in range(1, 9):
        *deltas, end = [event for event in recorder.events if event.node == node]
        assert all(isinstance(event, Delta) for event in deltas)
        assert "".join(event.text for event in deltas if isinstance(event, Delta)) == end.completions[0].text  # type: ignore[union-attr]  # a Generated
    session.close()


def test_closing_a_session_ends_what_runs(backend: pt.HttpBackend, tiny_engine: Engine) -> None:
    """No event comes after close, twice is allowed, nothing can be added, and the pages come back."""
    recorder = Recorder()
    session = backend.open(recorder)
    session.extend(long_nodes(4))
    while not recorder.events:
        time.sleep(0.01)
    session.close()
    seen = len(recorder.events)
    session.close()
    with pytest.raises(pt.EngineError, match="this session is closed"):
        session.extend([Text(9, None, "a")])
    wait_until_empty(tiny_engine)
    assert len(recorder.events) == seen


def test_refused_nodes_fail(backend: pt.HttpBackend) -> None:
    """Nodes that the server does not take end in Failed events with the reason, and the next ones run."""
    recorder = Recorder()
    session = backend.open(recorder)
    params = SamplingParams(max_tokens=2)
    session.extend([Generate(1, 77, params), Generate(2, 77, params)])
    recorder.wait(2)
    assert [event.kind for event in recorder.events] == ["RequestError"] * 2  # type: ignore[union-attr]  # Failed
    session.extend([Text(3, None, "a"), Generate(4, 3, params)])
    recorder.wait(1)
    assert recorder.events[-1].node == 4
    session.close()


def test_a_message_that_is_too_large_fails_alone(tiny_engine: Engine) -> None:
    """A prompt over the server's limit fails its own program, with the limit, and no other that was sent with it."""

    @pt.function(max_tokens=3)
    def program(s: pt.ProgramState, words: int) -> None:
        s += "word " * words + pt.gen("x")

    with served(tiny_engine, ServerSettings(max_body_bytes=20_000)) as server, pt.HttpBackend(server.url) as backend:
        states = program.run_batch([{"words": words} for words in (1, 2, 30_000, 3, 4)] * 3, backend=backend)
    errors = [state.error() for state in states]
    assert [error is None for error in errors] == [True, True, False, True, True] * 3
    assert "20000 bytes" in str(errors[2])


def test_a_sink_that_fails_ends_its_program_alone(backend: pt.HttpBackend, tiny_engine: Engine) -> None:
    """The session is closed and its pages come back; other programs go on."""

    def fail(event: Event) -> None:
        raise SystemExit

    backend.open(fail).extend(long_nodes())
    assert chain.run(2, backend=backend).error() is None
    wait_until_empty(tiny_engine)


# -- what breaks -------------------------------------------------------------------------------------------------------


def test_lost_connections_are_made_again(tiny_server: ServedEngine) -> None:
    """Whenever connections are cut, no event is lost or doubled, and programs do not notice."""

    @pt.function(max_tokens=24)
    def program(s: pt.ProgramState) -> None:
        for turn in range(6):
            s += "Go on: " + pt.gen(f"x{turn}", ignore_eos=True)
            assert "".join(s.text_iter(f"x{turn}")) == s[f"x{turn}"]

    with Relay(tiny_server.url) as relay, pt.HttpBackend(relay.url) as backend:
        done = threading.Event()

        def cut_often() -> None:
            while not done.wait(0.05):
                relay.cut()

        cutter = threading.Thread(target=cut_often)
        cutter.start()
        try:
            states = program.run_batch([{}] * 6, backend=backend)
        finally:
            done.set()
            cutter.join()
        assert [state.error() for state in states] == [None] * 6
        assert relay.accepted > 6


def test_a_server_that_is_gone_ends_programs(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read raises an EngineError that says so; when a server is there again, new programs run on it."""
    monkeypatch.setattr(http_patience, "RECONNECT_S", 0.3)
    with served(tiny_engine) as server:
        port = int(server.url.rpartition(":")[2])
        backend = pt.HttpBackend(server.url)
        state = endless.stream(backend=backend)
        next(state.text_iter())
    error = state.error()
    assert isinstance(error, pt.NodeFailedError)
    assert isinstance(error.__cause__, pt.EngineError)
    assert re.search("the server (has ended|does not answer)", str(error))
    with pytest.raises(pt.EngineError, match="no server answers at"):
        chain.run(1, backend=backend)
    with pytest.raises(pt.EngineError, match="no server answers at"):
        backend.stats()
    with served(tiny_engine, port=port):
        assert chain.run(2, backend=backend).error() is None
        backend.close()


def test_a_closed_backend_runs_nothing(tiny_server: ServedEngine, tiny_engine: Engine) -> None:
    """Closing ends what runs, here and there, and both threads; what comes after is an EngineError."""
    backend = pt.HttpBackend(tiny_server.url)
    state = endless.stream(backend=backend)
    next(state.text_iter())
    backend.close()
    backend.close()
    assert "the backend was closed" in str(state.error())
    wait_until_empty(tiny_engine)
    for call in (lambda: backend.open(lambda event: None), backend.stats, backend.flush_cache):
        with pytest.raises(pt.EngineError, match="the backend was closed"):
            call()
    assert http_threads() == []


def test_a_forgotten_backend_closes_itself(tiny_server: ServedEngine) -> None:
    """Without a reference to it, its threads end."""
    backend = pt.HttpBackend(tiny_server.url)
    chain.run(1, backend=backend)
    assert len(http_threads()) == 2
    del backend
    gc.collect()
    assert http_threads() == []


def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server elsewhere is asked through the proxy that the environment names, unless it says not to."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        asked: list[bytes] = []

        def refuse() -> None:
            connection, _ = proxy.accept()
            asked.append(connection.recv(1000))
            connection.sendall(b"HTTP/1.1 403 No\r\n\r\n")
            connection.close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        with pytest.raises(pt.EngineError, match=r"no server answers at http://palmette\.invalid:81"):
            pt.HttpBackend("http://palmette.invalid:81")
        refusing.join()
    assert asked[0].startswith(b"CONNECT palmette.invalid:81 ")
