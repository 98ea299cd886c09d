"""Compiling with worker processes that may fail, hang, die, or be told to stop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import make_request

import palmette.runtime.grammar_process as grammar_process
from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    PalmetteError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_grammar,
)
from palmette.runtime import grammar_worker
from palmette.runtime.grammar_compiler import GrammarCompiler
from palmette.runtime.grammar_process import GrammarProcess
from palmette.runtime.grammar_queue import GrammarOutcome, GrammarQueue
from palmette.runtime.grammar_store import GrammarStore
from palmette.runtime.grammar_worker import ProgramJob

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)])
HANGING = (sys.executable, "-c", "import time; time.sleep(60)")
DYING = (sys.executable, "-c", "import os, sys; sys.stdin.buffer.read(9); os._exit(7)")
RAMBLING = (sys.executable, "-c", "import sys; sys.stdin.buffer.read(9); sys.stdout.write('x' * 99); sys.stdin.read()")


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    """A compiler that is closed, with nothing left of it."""
    compiler = GrammarCompiler(VOCABULARY)
    yield compiler
    compiler.close()
    assert not running_workers()


def all_workers() -> list[str]:
    """Worker processes of this process with their ids, those that nobody has waited for included."""
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if "grammar_worker" in line or "-c import" in line]


_OTHERS: set[str] = set()


def running_workers() -> list[str]:
    """Those that this test has started; engines of other tests have theirs."""
    return [line for line in all_workers() if line not in _OTHERS]


@pytest.fixture(autouse=True)
def others() -> None:
    """Note the worker processes that are there before the test."""
    _OTHERS.clear()
    _OTHERS.update(all_workers())


def compile_aside(compiler: GrammarCompiler, grammar: Grammar) -> tuple[threading.Thread, list[GrammarError]]:
    """A thread that compiles, and the error that it comes to."""
    errors: list[GrammarError] = []

    def work() -> None:
        try:
            compiler(grammar)
        except GrammarError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, errors


def wait_until(holds: object) -> None:
    assert callable(holds)
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_worker_makes_what_this_process_would_have_made(compiler: GrammarCompiler) -> None:
    """The program comes back whole: masks agree on the way through a text, and one process serves all."""
    compiler.warm_up()
    grammar = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    ours, theirs = compiler(grammar).matcher(), compile_grammar(grammar, VOCABULARY).matcher()
    for byte in b'{"a":-12}':
        assert ours.mask().tolist() == theirs.mask().tolist()
        ours.accept(byte)
        theirs.accept(byte)
    assert ours.is_accepting
    compiler(Grammar.regex("[a-z]+"))
    assert len(running_workers()) == 1


def test_errors_keep_their_class_text_and_pointer(compiler: GrammarCompiler) -> None:
    """An error of the worker is that of the request, and the worker goes on."""
    for grammar, kind in (
        (Grammar.regex(r"(a)\1"), UnsupportedGrammarError),
        (Grammar.json_schema(False), UnsatisfiableGrammarError),
        (Grammar.regex("("), GrammarError),
        (Grammar.json_schema({"properties": {"\ud800": {"type": 7}}}), GrammarError),
    ):
        with pytest.raises(kind) as here:
            compile_grammar(grammar, VOCABULARY)
        with pytest.raises(kind) as there:
            compiler(grammar)
        assert type(there.value) is type(here.value)
        assert (str(there.value), there.value.pointer) == (str(here.value), here.value.pointer)


def test_limits_hold_in_the_worker() -> None:
    """The worker is given the limits of the compiler."""
    compiler = GrammarCompiler(VOCABULARY, limits=CompileLimits(source_chars=3))
    with pytest.raises(GrammarLimitError, match="above the limit of 3"):
        compiler(Grammar.regex("abcd"))
    compiler.close()


def test_a_worker_that_hangs_is_killed_and_replaced(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the time limit that grammar fails, alone; the next one compiles."""
    monkeypatch.setattr(grammar_process, "_GRACE_S", 0.1)
    compiler._limits = CompileLimits(seconds=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(grammar_process, "_COMMAND", HANGING)
        compiler.warm_up()
    with pytest.raises(GrammarLimitError, match=r"longer than 0\.2 s"):
        compiler(Grammar.regex("a"))
    compiler._limits = CompileLimits()
    compiler(Grammar.regex("b"))


@pytest.mark.parametrize("command", [DYING, RAMBLING], ids=["dies", "rambles"])
def test_a_worker_that_dies_fails_its_grammar_only(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """The one that was compiled fails, with the code of the process; another process compiles the next."""
    with monkeypatch.context() as patch:
        patch.setattr(grammar_process, "_COMMAND", command)
        compiler.warm_up()
    with pytest.raises(GrammarError, match="ended before it was done, with code"):
        compiler(Grammar.regex("a"))
    compiler(Grammar.regex("b"))


def test_a_worker_that_died_while_it_waited_is_replaced(compiler: GrammarCompiler) -> None:
    """Nobody notices."""
    compiler(Grammar.regex("a"))
    (line,) = running_workers()
    os.kill(int(line.split()[0]), 9)
    wait_until(lambda: not any(process.is_alive for process in compiler._processes._idle))
    compiler(Grammar.regex("b"))


def test_an_abandoned_job_ends_at_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is killed; other grammars are not concerned."""
    with monkeypatch.context() as patch:
        patch.setattr(grammar_process, "_COMMAND", HANGING)
        thread, errors = compile_aside(compiler, Grammar.regex("slow"))
        wait_until(lambda: any(job._stop for job in list(compiler._jobs)))
    compiler.abandon(Grammar.regex("other"))
    assert thread.is_alive()
    compiler.abandon(Grammar.regex("slow"))
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == 1
    compiler(Grammar.regex("other"))


def test_closing_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left when close returns, and nothing compiles after it."""
    compiler = GrammarCompiler(VOCABULARY)
    compiler.warm_up()
    monkeypatch.setattr(grammar_process, "_COMMAND", HANGING)
    compiler.warm_up()
    thread, errors = compile_aside(compiler, Grammar.regex("slow"))
    wait_until(lambda: any(job._stop for job in list(compiler._jobs)))
    compiler.close()
    thread.join(60)
    assert len(errors) == 1
    assert not running_workers()
    with pytest.raises(GrammarError, match="shutting down"):
        compiler(Grammar.regex("a"))


def test_without_processes_the_engine_compiles_itself(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no process can be started, grammars compile all the same, with a warning."""
    monkeypatch.setattr(grammar_process, "_COMMAND", ("/nowhere/python",))
    compiler.warm_up()
    assert compiler(Grammar.regex("a+")).start >= 0
    assert "own process" in caplog.text


def test_a_stored_grammar_needs_no_worker(tmp_path: Path) -> None:
    """The next engine reads what this one has made; a file that is damaged is made anew."""
    limits = CompileLimits()
    store = GrammarStore(tmp_path, alphabet=VOCABULARY.alphabet, limits=limits)
    grammar = Grammar.regex("a+")
    for expected in (1, 0, 1):
        compiler = GrammarCompiler(VOCABULARY, store=store)
        compiler(grammar)
        assert len(running_workers()) == expected
        compiler.close()
        (path,) = tmp_path.iterdir()
        if expected == 0:
            path.write_bytes(b"damaged")
    store.put(grammar, b"\xc1 no program, and yet whole")
    compiler = GrammarCompiler(VOCABULARY, store=store)
    assert compiler(grammar).mask(0).any()
    compiler.close()


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (MemoryError(), "GrammarLimitError", "MiB"),
        (RecursionError(), "GrammarLimitError", "nested too deeply"),
        (ZeroDivisionError("defect"), "GrammarError", "ZeroDivisionError: defect"),
    ],
)
def test_whatever_happens_in_a_worker_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, cause: Exception, kind: str, text: str
) -> None:
    """Memory, depth and defects end that grammar, not the worker."""

    def fail(*_: object, **__: object) -> None:
        raise cause

    monkeypatch.setattr(grammar_worker, "make_program", fail)
    answer = grammar_worker.answer(ProgramJob.of(Grammar.regex("a"), VOCABULARY.alphabet, CompileLimits()))
    assert answer.error == kind
    assert text in answer.message.decode()


def test_a_worker_ends_with_its_input() -> None:
    """When the engine's process is gone, however it went, the worker goes too."""
    process = GrammarProcess()
    process.make_program(Grammar.regex("a"), VOCABULARY.alphabet, CompileLimits())
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert process._process.wait(60) == 0
    process.close()


def test_the_last_request_that_goes_away_takes_a_running_job_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is killed when nobody waits; the grammar compiles anew when it is next asked for."""
    compiler = GrammarCompiler(VOCABULARY)
    queue = GrammarQueue(compiler)
    ready = threading.Event()
    queue.on_ready(ready.set)
    first, second, third = (make_request(name, [3], grammar=Grammar.regex("x+")) for name in "abc")
    with monkeypatch.context() as patch:
        patch.setattr(grammar_process, "_COMMAND", HANGING)
        queue.add(first)
        queue.add(second)
        wait_until(lambda: any(job._stop for job in list(compiler._jobs)))
    queue.remove(first)
    assert len(queue) == 1
    assert len(compiler._jobs) == 1
    queue.remove(second)
    queue.add(third)
    outcomes: list[GrammarOutcome] = []
    while not outcomes:
        assert ready.wait(30)
        ready.clear()
        outcomes = queue.poll()
    assert [outcome.request.id for outcome in outcomes] == ["c"]
    assert not isinstance(outcomes[0].compiled, PalmetteError)
    queue.close()
    assert not running_workers()
