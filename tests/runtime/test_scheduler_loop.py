"""The loop that drives a scheduler: messages in, news out, on a model that is a hash."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from tests.fake_grammar import ManualExecutor, ScriptedCompiler
from tests.fake_runner import END_ID, TOKEN_BYTES, FakeRunner, FakeStep, ids
from tests.fakes import FakeEngine
from tests.scheduler_examples import CODE, GRAMMARS

from palmette.constrained.errors import GrammarError
from palmette.runtime import stops
from palmette.runtime.intake import Intake
from palmette.runtime.messages import (
    AbortRequest,
    Answer,
    FromScheduler,
    NewRequest,
    Question,
    RequestEnd,
    RequestFailure,
    SessionOptions,
    StepOutput,
    ToScheduler,
)
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler_loop import SchedulerLoop


class ScriptedInbox:
    """Messages that were put in, and how long the loop was ready to wait for more.

    A loop that would wait for ever is stopped, unless a wake has come; one that would wait for a time, finds it over.
    """

    def __init__(self) -> None:
        self.waiting: deque[ToScheduler] = deque()
        self.waits: list[float | None] = []
        self.woken = threading.Event()
        self.when_idle: Callable[[float | None], None] = lambda wait_s: None

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        if not self.waiting and wait_s != 0:
            if not self.woken.is_set():
                self.waits.append(wait_s)
                self.when_idle(wait_s)
            self.woken.clear()
        taken = tuple(self.waiting)
        self.waiting.clear()
        return taken

    def wake(self) -> None:
        self.woken.set()


class Looped:
    """A loop around a `FakeEngine`'s scheduler, run until it would wait for ever."""

    def __init__(self, engine: FakeEngine, *, overlap: bool = False) -> None:
        self.engine = engine
        self.inbox = ScriptedInbox()
        self.sent: list[FromScheduler] = []
        self.intake = Intake(TOKEN_BYTES, frozenset((END_ID,)), self.inbox.wake, page_size=1)
        self.loop = SchedulerLoop(engine.scheduler, self.intake, self.inbox, self.sent.append, overlap=overlap)
        self.inbox.when_idle = self.idle

    def idle(self, wait_s: float | None) -> None:
        if wait_s is None:
            self.loop.stop()
        else:
            self.engine.clock.time_s += wait_s

    def run(self, *messages: ToScheduler) -> None:
        """Take messages in and run until nothing is left to do."""
        self.inbox.waiting.extend(messages)
        self.loop._stopped = False
        self.loop.run()

    @property
    def ends(self) -> list[tuple[str, RequestEnd]]:
        outputs = [output for step in self.sent if isinstance(step, StepOutput) for output in step.outputs]
        return [(output.id, output.end) for output in outputs if output.end is not None]

    def kinds(self) -> dict[str, str | None]:
        """Why each request ended: the kind of its failure, or its finish reason."""
        assert len(dict(self.ends)) == len(self.ends), "a request ended twice"
        return {name: end.failure.kind if end.failure else end.finish_reason for name, end in self.ends}


def new(name: str, *, timeout_s: float | None = None, grammar: bool = False, **params: object) -> NewRequest:
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 4, "ignore_eos": True, **params})  # type: ignore[arg-type]
    return NewRequest(
        id=name,
        kind="generate",
        prompt_ids=ids(3, 4, 5).tobytes(),
        params=sampling,
        grammar=CODE.grammar if grammar else None,
        options=SessionOptions(timeout_s=timeout_s),
    )


@pytest.fixture(params=[False, True], ids=["normal", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    assert isinstance(request.param, bool)
    return request.param


def test_a_grammar_that_never_compiles_fails_its_request_in_time(overlap: bool) -> None:
    """A loop with nothing to do but wait for a grammar waits no longer than until the first deadline."""
    engine = FakeEngine(grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=ManualExecutor())
    looped = Looped(engine, overlap=overlap)
    looped.run(
        new("late", timeout_s=5.0, grammar=True), new("later", timeout_s=7.0, grammar=True), new("quick", timeout_s=2.0)
    )
    assert looped.kinds() == {"late": "RequestTimeoutError", "later": "RequestTimeoutError", "quick": "length"}
    assert looped.inbox.waits == [5.0, 2.0, None]
    assert engine.clock.time_s == 7.0


def test_an_idle_loop_waits_for_ever(overlap: bool) -> None:
    """Deadlines of requests that have ended wake nobody, and one that is far off is waited for in parts."""
    engine = FakeEngine(grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=ManualExecutor())
    looped = Looped(engine, overlap=overlap)
    looped.run(*[new(str(number), timeout_s=1e6) for number in range(20)])
    assert looped.inbox.waits == [None]
    looped.run(new("c", timeout_s=5000.0, grammar=True))
    assert looped.inbox.waits == [None, 3600.0, 1400.0, None]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_stop_patterns_that_are_forgotten_before_they_are_used_are_compiled_again(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads compile patterns too, and only so many are kept: nobody waits for ever for one that was dropped."""
    monkeypatch.setattr(stops, "_compiled", {})
    looped = Looped(FakeEngine(), overlap=overlap)
    request = new("r", stop_regex=("zz+",))
    assert looped.intake.take(request) is None
    wait_until(looped.inbox.woken.is_set)
    looped.inbox.woken.clear()
    stops._compiled.clear()
    (ready,) = looped.intake.take_ready()
    assert looped.intake.take(ready) is None
    wait_until(looped.inbox.woken.is_set)
    looped.run()
    assert looped.kinds() == {"r": "length"}
    looped.intake.close()


def test_patterns_that_break_their_compiler_fail_their_request(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the compiler is told, and not waited for."""

    def explode(patterns: tuple[str, ...]) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(stops, "_compiled", {})
    monkeypatch.setattr("palmette.constrained.stop_pattern.stop_patterns", explode)
    looped = Looped(FakeEngine(), overlap=overlap)
    assert looped.intake.take(new("r", stop_regex=("zz+",))) is None
    wait_until(looped.inbox.woken.is_set)
    looped.run(new("other"))
    assert looped.kinds() == {"other": "length", "r": "EngineError"}
    assert "RecursionError: too deep" in str(dict(looped.ends)["r"].failure)
    looped.intake.close()


def test_an_error_that_is_kept_does_not_grow() -> None:
    """The error of bad stop patterns is raised for every request that has them, and keeps no frames of those before."""
    lengths = []
    for _ in range(5):
        with pytest.raises(Exception, match="unclosed") as caught:
            stops.check_stops(("(unclosed",))
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1


def test_an_abort_ends_a_request_wherever_it_is(overlap: bool) -> None:
    """Before it ran, while it waits for its stop patterns, after its end, and where none of its id is known."""
    engine = FakeEngine(grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=ManualExecutor())
    looped = Looped(engine, overlap=overlap)
    looped.run(AbortRequest("a"), new("done"))
    looped.run(
        *(new("a"), new("b", stop_regex=("a[0-9]{3}b",)), new("c", grammar=True), new("d", max_tokens=50)),
        *(AbortRequest(name) for name in ("a", "b", "c", "done", "done")),
    )
    aborted = "RequestAbortedError"
    assert looped.kinds() == {"done": "length", "a": aborted, "b": aborted, "c": aborted, "d": "length"}
    engine.check_empty()
    looped.intake.close()


def test_questions_are_answered_and_news_told_in_order(overlap: bool) -> None:
    """An answer tells of the moment it was asked; refused requests are told with the next news."""
    looped = Looped(FakeEngine(), overlap=overlap)
    looped.run(new("a"), new("a"), Question(7, "stats"), Question(8, "cache_tree", 4), Question(9, "flush_cache"))
    answers = [message for message in looped.sent if isinstance(message, Answer)]
    assert [answer.id for answer in answers] == [7, 8, 9]
    assert answers[0].stats is not None
    assert answers[0].stats.waiting == 1
    ends = [name for name, end in looped.ends]
    assert ends == ["a", "a"]  # the second of the same id was refused


def test_a_reason_that_is_no_text_can_be_sent_all_the_same(overlap: bool) -> None:
    """A schema may spell half a character, and an error may quote it: a message that cannot be sent would end all."""
    failing = {CODE.grammar: GrammarError("there is no \ud800 (at /properties/\ud800)")}
    looped = Looped(FakeEngine(grammars=GRAMMARS, compiler=ScriptedCompiler(failing=failing)), overlap=overlap)
    looped.run(new("a", grammar=True))
    for encode in (msgspec.msgpack.encode, msgspec.json.encode):
        assert b"/properties/" in b"".join(map(encode, looped.sent))
    assert dict(looped.ends)["a"].failure == RequestFailure(
        "GrammarError", r"there is no \ud800 (at /properties/\ud800)"
    )


class NoThreads(ManualExecutor):
    """An executor that has no more threads for a while."""

    broken = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.broken:
            raise RuntimeError("can't start new thread")
        return super().submit(fn, *args, **kwargs)


def test_a_request_that_cannot_be_taken_in_leaves_nothing(overlap: bool) -> None:
    """Where even the wait for its grammar cannot begin, it is refused, and its id and grammar may come again."""
    executor = NoThreads()
    engine = FakeEngine(grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=executor)
    looped = Looped(engine, overlap=overlap)
    looped.run(new("a", grammar=True, timeout_s=3.0))
    assert not engine.scheduler.has_work
    executor.broken = False
    looped.run(new("a", grammar=True), new("b", grammar=True))
    executor.run_next()
    looped.run()
    assert [name for name, _ in looped.ends] == ["a", "a", "b"]
    assert [end.finish_reason for _, end in looped.ends] == [None, "grammar", "grammar"]


@pytest.mark.parametrize("place", ["launch", "sample", "result"])
def test_a_runner_that_fails_ends_the_loop_with_its_error(
    overlap: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a step it breaks, the loop raises, so that whoever runs it can tell everybody; it never waits."""
    engine = FakeEngine()

    def explode(*_: object) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(FakeRunner if place == "launch" else FakeStep, place, explode)
    with pytest.raises(RuntimeError, match="CUDA error"):
        Looped(engine, overlap=overlap).run(new("a"), new("b"))
