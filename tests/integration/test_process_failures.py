"""A process of an engine dies: everybody learns it, nothing hangs, and it may be started anew."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine_processes import LIMIT_S, StartedChildren, fake_runtime, is_running, wait_until
from tests.wire import Listener, complete

import palmette as pt
from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import EngineError
from palmette.runtime.processes import runtime_client
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Failed, Generate, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings

NAMES = ("scheduler", "detokenizer", "server")
LONG = SamplingParams(max_tokens=50_000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4)


class Client:
    """An HTTP client in a thread that asks for a long answer, streamed or whole."""

    def __init__(self, url: str, *, stream: bool) -> None:
        body = {"model": "m", "prompt": "a", "max_tokens": 50_000, "ignore_eos": True, "stream": stream}
        self._request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        self.status: int | None = None
        self.body = b""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the client hangs"

    def _ask(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=LIMIT_S) as answer:
                self.status = answer.status
                for line in answer:
                    self.body += line
        except urllib.error.HTTPError as error:
            with error:
                self.status, self.body = error.code, error.read()
        except OSError as error:
            self.error = error


def kill_under_load(runtime: Runtime, victim: str) -> None:
    """Kill a process while programs and HTTP clients wait; each of them learns of it."""
    clients = [Client(runtime.url, stream=stream) for stream in (False, True)]
    listener = Listener()
    session = runtime.open(listener)
    session.extend([Text(0, None, "A"), Generate(1, 0, LONG), Generate(2, 0, LONG, stream=True)])
    session.extend([Text(3, 1, "B"), Generate(4, 3, SHORT)])
    wait_until(lambda: runtime.stats().running == 4, "four requests")
    os.kill(runtime.pids[victim], signal.SIGKILL)
    listener.wait([1, 2, 4])
    for node in (1, 2, 4):
        event = listener.done[node]
        assert isinstance(event, Failed)
        assert event.kind == "EngineError"
        assert f"the {victim} process ended by SIGKILL" in event.message
    for client in clients:
        client.join()
    _check_answers(clients, victim)
    session.close()


def _check_answers(clients: list[Client], victim: str) -> None:
    """What is in flight over HTTP gets an error object, unless it was the server that died."""
    whole, streamed = clients
    if victim == "server":
        assert whole.error is not None or whole.status is None or whole.status >= 500
        return
    assert whole.status in (500, 503), (whole.status, whole.body, whole.error)
    assert json.loads(whole.body)["error"]["message"]
    assert streamed.status in (200, 500, 503)  # the status is sent with the first text
    assert b'"error"' in streamed.body


def test_a_death_ends_the_engine(started_children: StartedChildren, tmp_path: Path) -> None:
    """A program raises it where it reads the value; later calls say it too, and no process is left."""

    @pt.function
    def endless(s: pt.ProgramState) -> None:
        s += "A" + pt.gen("x", 50_000, ignore_eos=True)
        s["x"]

    with fake_runtime(tmp_path, step_s=0.005) as runtime:
        pids = runtime.pids
        assert runtime.is_healthy

        def kill() -> None:
            wait_until(lambda: runtime.stats().running == 1, "a request")
            os.kill(pids["scheduler"], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(pt.NodeFailedError, match="the scheduler process ended by SIGKILL"):
            endless.run(backend=runtime)
        killer.join()
        check_down(runtime, "scheduler")
        wait_until(lambda: not any(map(is_running, pids.values())), "the end of the others")
    assert not started_children()


def check_down(runtime: Runtime, victim: str) -> None:
    """Every call says which process died, and how."""
    message = f"the {victim} process ended by SIGKILL"
    with pytest.raises(EngineError, match=message):
        runtime.wait(LIMIT_S)
    assert not runtime.is_healthy
    for call in (runtime.stats, runtime.flush_cache, lambda: runtime.open(print)):
        with pytest.raises(EngineError, match=message):
            call()


def test_stopped_processes_do_not_keep_the_end_waiting(tmp_path: Path) -> None:
    """Those that hear nothing (SIGSTOP) are killed when their time is over."""
    with fake_runtime(tmp_path) as runtime:
        pids = runtime.pids
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
    assert not any(map(is_running, pids.values()))


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_an_engine_is_started_anew(
    started_children: StartedChildren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever process died: what was open has failed, what comes later works, at the same address.

    One that dies again and again stays down, and says why.
    """
    monkeypatch.setattr(runtime_client, "MAX_RESTARTS", len(NAMES))
    with fake_runtime(tmp_path, step_s=0.005, restart=True) as runtime:
        url = runtime.url
        for victim in NAMES:
            pids = runtime.pids
            kill_under_load(runtime, victim)
            assert complete(runtime, ["x"], SHORT) == ["the "]
            assert runtime.is_healthy
            assert runtime.url == url
            assert not set(pids.values()) & set(runtime.pids.values())
            assert not any(map(is_running, pids.values()))
            with urllib.request.urlopen(f"{url}/v1/models", timeout=LIMIT_S) as answer:
                assert answer.status == 200
        kill_under_load(runtime, "detokenizer")
        check_down(runtime, "detokenizer")
    assert not started_children()


def test_a_shutdown_ends_a_restart(started_children: StartedChildren, tmp_path: Path) -> None:
    """Whatever it is at."""
    with fake_runtime(tmp_path, restart=True) as runtime:
        os.kill(runtime.pids["scheduler"], signal.SIGKILL)
        wait_until(lambda: not runtime.is_healthy, "the death")
    assert not started_children()


# -- starts that fail -------------------------------------------------------------------------------------------------

LOADERS = """
import os, sys, time

def raises(config):
    print("some words before")
    raise KeyError("a bug")

def leaves(config):
    print("last words", file=sys.stderr)
    os._exit(9)

def prints(config):
    from palmette.bench.fake_model import load
    os.write(1, b"not a report\\n" * 2000)
    print("{}" * 10)
    return load(config)
"""


@pytest.fixture
def loaders(started_children: StartedChildren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module whose functions are odd loaders."""
    (tmp_path / "odd_loaders.py").write_text(LOADERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "odd_loaders"
    assert not started_children()


def start(tmp_path: Path, loader: str) -> Runtime:
    """A runtime whose scheduler is loaded so."""
    folder = fake_model.write_folder(tmp_path / "model")
    return Runtime.start(EngineConfig(model=str(folder)), ServerSettings(log_level="warning"), loader=loader)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ("raises", "the scheduler process could not start: KeyError: 'a bug'"),
        ("leaves", r"the scheduler process ended with code 9; its last lines of log:(.|\n)*last words"),
    ],
)
def test_a_start_that_fails_says_why(tmp_path: Path, loaders: str, loader: str, message: str) -> None:
    """A bug and a sudden end are errors of the engine, and end the start of the others."""
    with pytest.raises(EngineError, match=message):
        start(tmp_path, f"{loaders}:{loader}")


def test_what_a_library_prints_is_no_report(tmp_path: Path, loaders: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It is log, and comes to this process' standard error."""
    with start(tmp_path, f"{loaders}:prints") as runtime:
        assert complete(runtime, ["x"], SHORT) == ["the "]
    assert "not a report" in capfd.readouterr().err


@pytest.mark.parametrize("victim", NAMES)
def test_a_death_while_loading_is_told(started_children: StartedChildren, tmp_path: Path, victim: str) -> None:
    """By whatever it was killed, the system's killer of large processes too."""
    failures: list[BaseException] = []

    def launch() -> None:
        try:
            with fake_runtime(tmp_path):
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    wait_until(lambda: any(f"{victim}_process" in command for command in started_children().values()), "a process")
    os.kill(next(pid for pid, command in started_children().items() if f"{victim}_process" in command), signal.SIGKILL)
    thread.join(LIMIT_S)
    assert isinstance(failures[0], EngineError)
    assert f"the {victim} process ended by SIGKILL" in str(failures[0])
    assert not started_children()
