"""Batches: states as they end, bounded memory, progress, interrupts, and what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import queue
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lang.recording import TIMEOUT_S, RecordingBackend

import palmette as pt
from palmette.lang.batch_progress import BatchCounts, shown_progress


@pt.function
def ask(s: pt.ProgramState, question: str) -> str:
    s += question + pt.gen("x", max_tokens=4)
    return str(s["x"])


def shout(prompt: str, node: Any) -> str:
    return prompt.upper()


# -- as they finish --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_states_come_as_their_programs_end(kind: str) -> None:
    """A program that waits holds up no other's state; each state has its item's place."""
    go_on = threading.Event()

    @pt.function
    def plain(s: pt.ProgramState, waits: bool) -> None:
        s += pt.gen("x")
        assert not waits or go_on.wait(TIMEOUT_S)

    @pt.function
    async def awaiting(s: pt.ProgramState, waits: bool) -> None:
        s += pt.gen("x")
        assert not waits or await asyncio.to_thread(go_on.wait, TIMEOUT_S)

    program: pt.Function = plain if kind == "plain" else awaiting
    states = program.run_batch([(True,), (False,), (False,)], backend=pt.MockBackend({"": "a"}), as_finished=True)
    assert sorted(str(next(states).place) for _ in range(2)) == ["1", "2"]
    go_on.set()
    last = next(states)
    assert (last.place, last.error(), list(states)) == (0, None, [])


def test_as_finished_takes_a_bounded_number_of_endless_items() -> None:
    """No more than twice the programs that may run are taken and not handed out; closing it cancels the rest."""
    backend = RecordingBackend(shout)
    taken = 0

    def items() -> Iterator[list[str]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield [f"{taken}"]

    states = ask.run_batch(items(), backend=backend, num_threads=3, as_finished=True)
    places = [next(states).place for _ in range(50)]
    assert taken <= 56
    assert len(set(places)) == 50
    states.close()
    assert taken <= 56


@pytest.mark.parametrize("as_finished", [False, True])
def test_no_state_waits_for_the_next_item(as_finished: bool) -> None:
    """An item may be made of the state before it; the items' code sees the context variables of the caller."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    caller = contextvars.ContextVar[str]("caller", default="nobody")

    def items() -> Iterator[tuple[str]]:
        yield (caller.get(),)
        while True:
            yield (answers.get() + "a",)

    caller.set("me")
    states = ask.run_batch(items(), backend=pt.MockBackend(shout), generator_style=True, as_finished=as_finished)
    said = []
    for state in itertools.islice(states, 3):
        said.append(state["x"])
        answers.put(state["x"].lower())
    assert said == ["ME", "MEA", "MEAA"]
    states.close()
    answers.put("nobody waits")


def test_an_interrupt_of_the_items_ends_the_batch() -> None:
    """It is raised to the caller, at once."""

    def items() -> Iterator[tuple[str]]:
        yield ("a",)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ask.run_batch(items(), backend=pt.MockBackend(shout), generator_style=True))


def test_states_know_their_place() -> None:
    """In every style of a batch, inside of the program too; elsewhere and in branches there is none."""

    @pt.function
    def where(s: pt.ProgramState) -> int | None:
        assert s.fork(1)[0].place is None
        return s.place

    backend = pt.MockBackend()
    assert [state.ret_value for state in where.run_batch([()] * 3, backend=backend)] == [0, 1, 2]
    assert [state.place for state in where.run_batch([()] * 3, backend=backend, generator_style=True)] == [0, 1, 2]
    assert where.run(backend=backend).ret_value is None


@pytest.mark.parametrize("as_finished", [False, True])
def test_what_items_raise_comes_after_the_states_before_it(as_finished: bool) -> None:
    """Programs that have begun are not thrown away because a later item is wrong."""

    def items() -> Iterator[tuple[str, ...]]:
        yield from [("a",), ("b",), ("c",), ("d", "e")]

    states = ask.run_batch(
        items(), backend=pt.MockBackend(shout, latency_s=0.05), generator_style=True, as_finished=as_finished
    )
    found: list[str] = []
    with pytest.raises(TypeError, match="item 3 of run_batch: too many positional arguments"):
        found.extend(state["x"] for state in states)
    assert sorted(found) == ["A", "B", "C"]


# -- memory and threads ----------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_programs_that_were_handed_out() -> None:
    """States, their trees and their sessions can go as soon as the caller lets go of them, while the batch runs."""
    backend = RecordingBackend(shout, record=False)
    states = ask.run_batch(([f"{i}"] for i in itertools.count()), backend=backend, num_threads=4, as_finished=True)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    for state in itertools.islice(states, 200):
        alive.add(state._execution)
    del state
    gc.collect()
    assert len(alive) <= 8
    states.close()


def test_where_the_system_has_no_thread_left_the_others_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch on fewer threads than were asked for is slower, and complete."""
    start = threading.Thread.start
    begun: list[str] = []

    def few(thread: threading.Thread) -> None:
        if thread.name.startswith("palmette-batch"):
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
            begun.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    states = ask.run_batch([(f"{i}",) for i in range(20)], backend=pt.MockBackend(shout), num_threads=8)
    assert [state["x"] for state in states] == [f"{i}" for i in range(20)]
    assert len(begun) == 2


def test_a_program_that_hangs_keeps_nobody_from_leaving() -> None:
    """The threads of a batch are daemons."""

    @pt.function
    def daemon(s: pt.ProgramState) -> bool:
        return threading.current_thread().daemon

    assert daemon.run_batch([()], backend=pt.MockBackend())[0].ret_value is True


# -- progress --------------------------------------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_counts_what_the_backend_reports() -> None:
    """Items, failures, generated tokens and the hit rate of prompts, over the states that have ended."""
    clock = Clock()
    counts = BatchCounts(10, before=4, clock=clock)
    assert (str(counts), counts.left_s) == ("4 of 10, 0:00", None)
    backend = pt.MockBackend(["one two", "three"])
    for question in ("Hello there you", "Hello there you"):
        counts.add(ask.run(question, backend=backend))
    counts.add_failed()
    clock.now_s = 2.0
    assert (counts.output_tokens, counts.prompt_tokens) == (3, 6)
    assert str(counts) == "7 of 10, 1 failed, 2 tokens/s, hit rate 0 %, 0:02 left"
    assert counts.summary() == "3 items in 2.0 s, 1 failed, 2 tokens/s, hit rate 0 %, 4 were there"


def test_progress_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line at most every ten seconds, and one at the end."""
    clock = Clock()
    counts = BatchCounts(None, clock=clock)
    with shown_progress(counts, "ask") as show:
        for clock.now_s in (1, 9.9, 10, 11, 19.9, 3700):
            counts.add_failed()
            show()
    assert capsys.readouterr().err.splitlines() == [
        "ask: 3, 3 failed, 0:10",
        "ask: 6, 6 failed, 1:01:40",
        "ask: 6 items in 3700.0 s, 6 failed",
    ]


def test_what_is_cancelled_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """No line comes after an interrupt."""
    clock = Clock()
    counts = BatchCounts(None, clock=clock)
    with pytest.raises(KeyboardInterrupt), shown_progress(counts, "ask") as show:
        raise KeyboardInterrupt
    clock.now_s = 60
    show()
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar that moves, with the same counts."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    states = ask.run_batch([("a b",), ("c",)], backend=pt.MockBackend(shout), progress_bar=True, as_finished=True)
    assert len(list(states)) == 2
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "ask" in shown
    assert "2/2" in shown
    assert "tokens/s, hit rate " in shown


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"as_finished": "yes"}, TypeError, "as_finished must be True or False, not 'yes'"),
        ({"progress_bar": 1}, TypeError, "progress_bar must be True or False, not 1"),
        ({"generator_style": None}, TypeError, "generator_style must be True or False, not None"),
        ({"resume": 1}, TypeError, "resume must be True or False, not 1"),
        ({"resume": True}, ValueError, "resume=True goes on with a file of results; name it by results_file="),
        ({"results_file": 3}, TypeError, "results_file must be the path of a file, or None, not 3"),
        ({"results_file": ""}, TypeError, "results_file must be the path of a file, or None, not ''"),
        ({"results_file": "{folder}"}, pt.ResultsFileError, " is no ordinary file"),
        ({"results_file": "{folder}/no/x"}, pt.ResultsFileError, "no/x cannot be written: No such file or directory"),
        ({"num_threads": 0, "as_finished": True}, ValueError, 'num_threads must be "auto" or a whole number'),
        ({"timeout_s": -1, "as_finished": True}, pt.RequestError, "timeout_s must be a number of seconds above 0"),
        ({"temperatur": 0, "as_finished": True}, TypeError, "has no option 'temperatur'; did you mean 'temperature'"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    """They are refused at the call, before anything runs and before an iterator is asked for a state."""
    backend = RecordingBackend(shout)
    given: dict[str, Any] = {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value for name, value in wrong.items()
    }
    with pytest.raises(error, match=re.escape(message)):
        ask.run_batch([("a",)], backend=backend, **given)
    assert backend.opened == 0
    assert list(tmp_path.iterdir()) == []


def test_items_that_are_none() -> None:
    """What cannot be iterated over is named."""
    with pytest.raises(TypeError, match="run_batch needs a list or another iterable of items, not int: 5"):
        ask.run_batch(5, backend=pt.MockBackend())  # type: ignore[call-overload]  # the mistake under test
