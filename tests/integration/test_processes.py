"""An engine in processes gives what the engine in process gives, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine_processes import LIMIT_S, StartedChildren, children_of, fake_runtime, is_running, wait_until
from tests.wire import Listener, complete, run_tree

import palmette as pt
from palmette.constrained import Grammar
from palmette.lang.backend import checked_backend
from palmette.runtime import launch
from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError, ModelLoadError, RequestError
from palmette.runtime.messages import SessionOptions
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Event, Failed, Generate, Generated, Node, Reference, Select, Selected, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def runtime(tiny_runtime: Runtime) -> Runtime:
    """One engine of processes on the tiny model."""
    return tiny_runtime


# -- answers ----------------------------------------------------------------------------------------------------------


def trees() -> dict[str, list[Node]]:
    """Trees of every kind of node."""
    seeded = SamplingParams(seed=7, max_tokens=16, logprobs=2, return_text_in_logprobs=True)
    stops = SamplingParams(temperature=0, max_tokens=40, stop=("e ", "th"), stop_regex=("[0-9]{2}",))
    return {
        "greedy": [Text(0, None, "A tree has one"), Generate(1, 0, GREEDY)],
        "several": [Text(0, None, "It is"), Generate(1, 0, seeded, n=3), Text(2, 1, " so "), Generate(3, 2, GREEDY)],
        "stream": [Text(0, None, "Numbers"), Generate(1, 0, stops, stream=True)],
        "select": [Text(0, None, "A tree is "), Select(1, 0, ("held", "lazy", "a branch")), Generate(2, 1, GREEDY)],
        "grammar": [
            Text(0, None, "Name:"),
            Generate(1, 0, SamplingParams(max_tokens=30, seed=1), grammar=Grammar.regex("[a-z]{3}-[0-9]{2}")),
            Reference(2, None, 1),
            Generate(3, 2, GREEDY),
        ],
        "scored": [
            Text(0, None, "The quick brown fox"),
            Generate(1, 0, SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)),
        ],
        "refused": [Text(0, None, "x" * 4000), Generate(1, 0, GREEDY), Reference(2, None, 1), Generate(3, 2, GREEDY)],
        "bad grammar": [Text(0, None, "x"), Generate(1, 0, GREEDY, grammar=Grammar.regex("(a"))],
    }


def without_times(event: Event) -> Event:
    """An event as it is every time: nothing of time and of what was cached."""
    if isinstance(event, Generated):
        completions = tuple(msgspec.structs.replace(each, cached_tokens=0, timings=None) for each in event.completions)
        return Generated(event.node, completions)
    if isinstance(event, Selected):
        return msgspec.structs.replace(event, elapsed_s=0.0, usage=(), cached_tokens=0, timings=None)
    return event


@pytest.mark.parametrize("name", trees())
def test_every_tree_has_the_same_events(runtime: Runtime, tiny_engine: Engine, name: str) -> None:
    """In one process and in four, with the text of its deltas."""
    nodes = trees()[name]
    there, here = run_tree(runtime, nodes), run_tree(tiny_engine, nodes)
    assert {node: without_times(event) for node, event in there.done.items()} == {
        node: without_times(event) for node, event in here.done.items()
    }
    assert "".join(delta.text for delta in there.deltas) == "".join(delta.text for delta in here.deltas)


@pt.function
def judge(s: pt.ProgramState, essay: str) -> None:
    """A program of forks, joins and conditions."""
    s += f"Essay: {essay}\n"
    marks = s.fork(3)
    for branch, aspect in zip(marks, ("clarity", "evidence", "style"), strict=True):
        branch += f"{aspect}: " + pt.gen("grade", regex="[1-5]")
    marks.join()
    s += "Overall: " + pt.select("verdict", ["pass", "fail"]) + pt.gen("why", 8, temperature=0)


def test_a_program_of_the_language_runs(runtime: Runtime, tiny_engine: Engine) -> None:
    """As a backend, alone and in a batch, with the same texts as in process."""
    assert checked_backend(runtime) is runtime
    there, here = (judge.run(essay="trees", backend=backend, temperature=0) for backend in (runtime, tiny_engine))
    assert there.text() == here.text()
    essays = [{"essay": f"number {index}"} for index in range(12)]
    states = judge.run_batch(essays, backend=runtime, temperature=0)
    assert [s["verdict"] in ("pass", "fail") for s in states] == [True] * 12


def test_a_runtime_answers_questions(runtime: Runtime) -> None:
    """Counts, the cache and its flush; from any thread, also the one that brings events."""
    complete(runtime, ["A tree has one trunk"], GREEDY)
    assert runtime.stats().finished > 0
    assert runtime.flush_cache() > 0
    assert runtime.flush_cache() == 0
    assert runtime.model_info.context_length == 512
    answers: list[Any] = []
    done = threading.Event()

    def ask(event: Event) -> None:
        answers.extend((event, runtime.stats(), runtime.flush_cache()))
        done.set()

    session = runtime.open(ask)
    session.extend([Text(0, None, "It is"), Generate(1, 0, GREEDY)])
    assert done.wait(LIMIT_S)
    session.close()
    assert isinstance(answers[0], Generated)
    assert answers[1].running == 0
    assert pt.get_server_info(runtime)["stats"]["total_pages"] == 8_000


def test_many_programs_at_once_get_their_own_events(runtime: Runtime) -> None:
    """From many threads, each with its own text."""
    texts: dict[int, list[str]] = {}

    def one(index: int) -> None:
        texts[index] = complete(runtime, [f"{index} and", f"{index} or"], GREEDY)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 11, 23):
        assert texts[index] == complete(runtime, [f"{index} and", f"{index} or"], GREEDY, together=False)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Text(-1, None, "x")], "node id -1 is negative or taken"),
        ([Text(5, None, "x"), Text(5, None, "y")], "node id 5 is negative or taken"),
        ([Text(5, 4, "x")], "node 5 continues node 4, which does not exist"),
        ([Reference(5, None, 9)], "node 5 refers to node 9"),
        ([Text(5, None, "a\ud800b")], r"node 5 holds '\\ud800', half of a character"),
        ([Generate(6, None, SamplingParams(stop=("\udfff",)))], r"node 6 holds '\\udfff'"),
        ([Text(1 << 31, None, "x")], f"node id {1 << 31} is too large; ids may be up to {(1 << 31) - 1}"),
    ],
)
def test_wrong_nodes_are_refused_at_the_call(runtime: Runtime, nodes: Sequence[Node], message: str) -> None:
    """None of them is added, and the session goes on."""
    listener = Listener()
    session = runtime.open(listener)
    with pytest.raises(RequestError, match=message):
        session.extend(nodes)
    session.extend([Text(5, None, "It is"), Generate(6, 5, GREEDY)])
    listener.wait([6])
    assert isinstance(listener.done[6], Generated)
    session.close()


def test_options_are_checked_and_kept(runtime: Runtime) -> None:
    """Text that is no text is refused at the call; a program with a salt does not share a prefix."""
    with pytest.raises(RequestError, match="options of the program cannot be sent"):
        runtime.open(print, SessionOptions(cache_salt="\ud800"))
    nodes: list[Node] = [Text(0, None, "A tree has one trunk and many branches"), Generate(1, 0, GREEDY)]
    run_tree(runtime, nodes)
    listener = Listener()
    session = runtime.open(listener, SessionOptions(cache_salt="mine", priority=3))
    session.extend(nodes)
    listener.wait([1])
    session.close()
    done = listener.done[1]
    assert isinstance(done, Generated)
    assert done.completions[0].cached_tokens == 0


def test_abort_and_close_end_what_runs(runtime: Runtime) -> None:
    """An aborted session goes on; a closed one is told nothing more, and the pages come back."""
    endless = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
    listener = Listener()
    session = runtime.open(listener)
    session.extend([Text(0, None, "A"), Generate(1, 0, endless, stream=True)])
    wait_until(lambda: bool(listener.deltas), "text")
    session.abort()
    listener.wait([1])
    assert isinstance(listener.done[1], Failed)
    assert listener.done[1].kind == "RequestAbortedError"
    session.extend([Text(2, None, "B"), Generate(3, 2, endless, stream=True)])
    wait_until(lambda: listener.deltas[-1].node == 3, "text")
    session.close()
    session.close()
    seen = len(listener.deltas)
    wait_until(lambda: runtime.stats().running == 0, "the end of what ran")
    assert len(listener.deltas) == seen
    with pytest.raises(EngineError, match="closed"):
        session.extend([Text(4, None, "C")])


def test_a_sink_that_fails_closes_its_session_only(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """Even by leaving the interpreter."""

    def leave(event: Event) -> None:
        sys.exit(3)

    session = runtime.open(leave)
    session.extend([Text(0, None, "A"), Generate(1, 0, GREEDY)])
    assert len(complete(runtime, ["It is"], GREEDY)) == 1
    wait_until(lambda: "event sink failed" in caplog.text, "the log")
    with pytest.raises(EngineError):
        session.extend([Text(2, None, "B")])


# -- start and end ----------------------------------------------------------------------------------------------------


def test_it_works_under_a_running_event_loop(tmp_path: Path) -> None:
    """As a notebook's cell runs: launch, a program and its end, which may wait for what is open."""
    listener = Listener()

    async def cell() -> list[str]:
        with fake_runtime(tmp_path, step_s=0.005) as engine:
            texts = await asyncio.to_thread(complete, engine, ["x"], GREEDY)
            engine.open(listener).extend([Text(0, None, "A"), Generate(1, 0, SamplingParams(max_tokens=60))])
            wait_until(lambda: engine.stats().running == 1, "a request")
            engine.shutdown(drain_s=LIMIT_S)
            return texts

    assert asyncio.run(cell()) == ["the quick br"]
    assert isinstance(listener.done[1], Generated)


def test_the_sockets_are_private(runtime: Runtime) -> None:
    """A folder of mode 0700, whose sockets are nobody else's either."""
    folder = runtime._processes.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sockets = {path.name: path.stat() for path in folder.iterdir()}
    assert set(sockets) == {"scheduler", "detokenizer", "server", "parent"}
    for name in ("scheduler", "detokenizer", "server"):
        assert stat.S_IMODE(sockets[name].st_mode) & 0o077 == 0, name


def test_a_shutdown_leaves_nothing(tmp_path: Path) -> None:
    """No process, no folder, no socket; later calls say so, and what was open has failed."""
    listener = Listener()
    with fake_runtime(tmp_path, step_s=0.01) as runtime:
        pids = runtime.pids
        assert set(pids) == {"scheduler", "detokenizer", "server"}
        folder = runtime._processes.folder
        session = runtime.open(listener)
        session.extend([Text(0, None, "A"), Generate(1, 0, SamplingParams(max_tokens=60_000))])
        address = runtime.url.removeprefix("http://").split(":")
    assert isinstance(listener.done[1], Failed)
    assert listener.done[1].message == "the engine was shut down; launch another one"
    assert not any(map(is_running, pids.values()))
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])))
    runtime.shutdown()
    for call in (runtime.stats, runtime.flush_cache, lambda: runtime.open(listener)):
        with pytest.raises(EngineError, match="was shut down"):
            call()
    with pytest.raises(EngineError, match="was shut down"):
        session.extend([Text(2, None, "B")])
    session.close()
    assert runtime.wait(1.0)
    assert not runtime.is_healthy


SCRIPT = """
import signal, sys
from pathlib import Path
import palmette as pt
from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.server_settings import ServerSettings

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
engine = Runtime.start(
    EngineConfig(model=str(fake_model.write_folder(Path(sys.argv[1])))), ServerSettings(), loader=fake_model.LOADER
)
print(engine._processes.folder, *engine.pids.values(), flush=True)
"""


StartScript = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[StartScript]:
    """Starts a script that launches an engine, without a guard, and prints its folder and processes."""
    scripts: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        file = tmp_path / "script.py"
        file.write_text(SCRIPT + body)
        command = [sys.executable, str(file), str(tmp_path / "model")]
        scripts.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
        return scripts[-1]

    yield start
    for script in scripts:
        script.kill()
        script.communicate()


def started(script: subprocess.Popen[str]) -> tuple[Path, list[int]]:
    """What the script printed."""
    assert script.stdout is not None
    words = script.stdout.readline().split()
    assert words, script.communicate()
    return Path(words[0]), [int(word) for word in words[1:]]


def test_a_script_needs_no_guard_and_no_shutdown(start_script: StartScript) -> None:
    """Its end is the engine's; a fork of it cannot use the engine, and its end does not end it."""
    body = """
import os, warnings
warnings.simplefilter("ignore")
pid = os.fork()
if pid == 0:
    try:
        engine.open(print)
    except pt.EngineError as error:
        print(error, flush=True)
    engine.shutdown()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, f"the fork ended with {status}"
print(engine.stats().finished, flush=True)
sys.exit(7)
"""
    script = start_script(body)
    folder, pids = started(script)
    assert script.stdout is not None  # communicate() would leave out what came with the first line
    out = script.stdout.read()
    _, said = script.communicate(timeout=LIMIT_S)
    assert out.splitlines() == [
        "this engine belongs to the process that launched it, not to its forks; launch another",
        "0",
    ], said
    assert script.returncode == 7, said
    wait_until(lambda: not any(map(is_running, pids)), "the end of the processes")
    assert not folder.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_a_parent_that_is_killed(start_script: StartScript, how: signal.Signals) -> None:
    """Even by kill -9, which it cannot answer; the folder goes too."""
    script = start_script("import time; time.sleep(600)")
    folder, pids = started(script)
    script.send_signal(how)
    script.communicate(timeout=LIMIT_S)
    wait_until(lambda: not any(map(is_running, pids)), "the end of the processes")
    wait_until(lambda: not folder.exists(), "the end of the folder")


def test_an_interrupt_is_the_parents_alone(start_script: StartScript) -> None:
    """Ctrl-C at a terminal, which goes to the whole group: one traceback, the script's own."""
    script = start_script("import time; time.sleep(600)")
    _, pids = started(script)
    os.killpg(script.pid, signal.SIGINT)
    _, said = script.communicate(timeout=LIMIT_S)
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(map(is_running, pids)), "the end of the processes")


# -- starts that fail -------------------------------------------------------------------------------------------------


def error_from(call: Callable[[], object]) -> BaseException:
    """What a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # compared as a whole
        call()
    return caught.value


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "tpu"},
        {"attention_backend": "fast"},
        {"context_length": 10**6},
        {"chunk_size": 0},
        {"max_total_token": 5},
        {"dtype": "int8"},
    ],
)
def test_a_wrong_setting_is_the_same_error(
    started_children: StartedChildren, tiny_model_folder: Path, settings: dict[str, Any]
) -> None:
    """Its class and text are those of an engine in process, and no process is left."""
    here = error_from(lambda: launch(tiny_model_folder, processes=False, **settings))
    there = error_from(lambda: launch(tiny_model_folder, **settings))
    assert type(there) is type(here)
    if "max_total_token" not in settings:  # there are more settings to list
        assert str(there) == str(here)
    assert not started_children()


def test_a_model_that_cannot_be_read_is_the_same_error(
    started_children: StartedChildren, tmp_path: Path, tiny_model_folder: Path
) -> None:
    """A missing folder, a damaged file of weights, a tokenizer that is none."""
    broken = tmp_path / "broken"
    subprocess.run(["cp", "-r", str(tiny_model_folder), str(broken)], check=True)
    (broken / "model.safetensors").write_bytes(b"\0" * 40)
    odd = tmp_path / "odd"
    subprocess.run(["cp", "-r", str(tiny_model_folder), str(odd)], check=True)
    (odd / "tokenizer.json").write_text("{}")
    for folder in (tmp_path / "nothing", broken, odd):
        here = error_from(lambda folder=folder: launch(folder, processes=False, max_total_tokens=100))  # type: ignore[misc]
        there = error_from(lambda folder=folder: launch(folder, max_total_tokens=100))  # type: ignore[misc]
        assert type(there) is type(here) is ModelLoadError
        assert str(there) == str(here)
        assert not started_children()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70_000}, "port must be a whole number from 0"),
        ({"host": "no such host.example"}, "host must be a name"),
        ({"host": "203.0.113.7"}, r"cannot listen at host='203\.0\.113\.7', port=0: Cannot assign"),
        ({"api_key": ""}, "api_key must not be empty"),
    ],
)
def test_a_wrong_address_is_named(
    started_children: StartedChildren, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """Before or after the processes have been started."""
    with pytest.raises(RequestError, match=message), fake_runtime(tmp_path, server=ServerSettings(**settings)):
        pass
    assert not started_children()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(RequestError, match=rf"port={port}: Address already in use; choose another port, or port=0"),
            fake_runtime(tmp_path, server=ServerSettings(port=port)),
        ):
            pass


def test_server_settings_need_processes(tiny_model_folder: Path) -> None:
    """The in-process engine has no server, and says so."""
    for settings in ({"port": 8000}, {"restart": True}, {"api_key": "x"}):
        with pytest.raises(TypeError, match=rf"no server, so no setting '{next(iter(settings))}'"):
            launch(tiny_model_folder, processes=False, **settings)


def test_an_interrupt_while_loading_ends_the_start(start_script: StartScript) -> None:
    """Nothing stays behind."""
    script = start_script("")
    wait_until(lambda: len(children_of(script.pid)) >= 3, "the processes")
    pids = list(children_of(script.pid))
    script.send_signal(signal.SIGINT)
    _, said = script.communicate(timeout=LIMIT_S)
    assert said.rstrip().endswith("KeyboardInterrupt"), said
    assert not any(map(is_running, pids))


# -- HTTP -------------------------------------------------------------------------------------------------------------


def get(url: str, **headers: str) -> tuple[int, bytes]:
    """The status and body of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_server_is_where_the_runtime_says(runtime: Runtime) -> None:
    """At a port of its own on the loopback."""
    status, body = get(f"{runtime.url}/v1/models")
    assert status == 200
    assert runtime.model_info.name in body.decode()


def test_half_a_character_is_the_callers_mistake(runtime: Runtime) -> None:
    """JSON can spell what no message can carry."""
    body = b'{"prompt": "a", "max_tokens": 2, "stop": ["\\ud800"]}'
    request = urllib.request.Request(f"{runtime.url}/v1/completions", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=LIMIT_S)
    with caught.value as error:
        assert error.code == 400
        assert b'"error"' in error.read()


def test_an_api_key_is_asked_for_and_sigterm_lets_open_requests_end(tmp_path: Path) -> None:
    """The key reaches the server without the command line. Told to end, it answers what it has; then the rest goes."""
    key = {"Authorization": "Bearer sk-abc"}
    with fake_runtime(tmp_path, step_s=0.005, server=ServerSettings(model_name="m", api_key="sk-abc")) as runtime:
        assert get(f"{runtime.url}/v1/models")[0] == 401
        assert get(f"{runtime.url}/v1/models", **key)[0] == 200
        assert len(complete(runtime, ["x"], GREEDY)) == 1  # programs of the parent need none
        for pid in runtime.pids.values():
            assert b"sk-abc" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        answers: list[tuple[int, bytes]] = []
        body = b'{"model": "m", "prompt": "a", "max_tokens": 200, "ignore_eos": true}'

        def ask() -> None:
            request = urllib.request.Request(
                f"{runtime.url}/v1/completions", body, {"Content-Type": "application/json", **key}
            )
            try:
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    answers.append((answer.status, answer.read()))
            except urllib.error.HTTPError as error:
                with error:
                    answers.append((error.code, error.read()))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: runtime.stats().running == 1, "a request")
        os.kill(runtime.pids["server"], signal.SIGTERM)
        thread.join()
        assert answers[0][0] == 200, answers
        with pytest.raises(EngineError, match="server process ended"):
            runtime.wait(LIMIT_S)


def test_tokens_are_counted_here_as_there(runtime: Runtime, tiny_engine: Engine) -> None:
    """A program is compiled with the tokenizer of the engine in processes, loaded in this one."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "It is what it is;" + pt.gen("x", max_tokens=2)

    compiled = program.compile(backend=runtime)
    assert compiled.constant_tokens == program.compile(backend=tiny_engine).constant_tokens
    assert compiled.constant_tokens == program.run(backend=runtime).get_meta_info("x")["prompt_tokens"]
