"""Programs on the real scheduler: what is kept for them, who begins, and who gives way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fake_grammar import ManualExecutor, ScriptedCompiler
from tests.fakes import FakeEngine, make_request, make_score
from tests.program_calls import check_forgotten, kept_of, make_call, run_call, whole_text
from tests.scheduler_examples import CODE, FIXED, GRAMMARS, prompt

from palmette.constrained import Grammar, GrammarError
from palmette.runtime import admission
from palmette.runtime.config import Policy
from palmette.runtime.errors import QueueFullError
from palmette.runtime.request import Request

POLICIES: tuple[Policy, ...] = ("fcfs", "lpm", "dfs-weight", "least-work", "random")
BAD = Grammar.regex("bad")


@pytest.fixture(params=[False, True], ids=["normal", "overlap"], autouse=True)
def _overlaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "overlaps", request.param)


def long_run(request_id: str = "long", seed: int = 30, length: int = 5) -> Request:
    """A request of no program that runs for a long time."""
    return make_request(request_id, prompt(seed, length), max_tokens=60, ignore_eos=True)


def others(engine: FakeEngine, count: int = 8, length: int = 60) -> None:
    """Requests of no program, one after the other, that take more than the pool."""
    for seed in range(count):
        engine.add(make_request(f"other{seed}", prompt(seed + 10, length), max_tokens=2, ignore_eos=True))
        engine.run()


def goes_by(engine: FakeEngine, request: Request) -> None:
    """Step until a request has begun."""
    for _ in range(20):
        if request.started_s is not None:
            return
        engine.step()
    raise AssertionError(f"{request.id} has not begun")


def end(engine: FakeEngine, *programs: str) -> None:
    for program in programs:
        engine.scheduler.end_program(program)
        engine.scheduler.check_invariants()
    engine.run()
    check_forgotten(engine)
    engine.check_empty()


# -- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep_prefixes", "found"), [(True, 61), (False, 0)])
def test_a_program_that_is_away_keeps_its_prefix(keep_prefixes: bool, found: int) -> None:
    """Others come and go, more than the pool holds: the prefix is there when the program comes back."""
    engine = FakeEngine(num_pages=200, keep_prefixes=keep_prefixes)
    first = run_call(engine, "a", "a0", prompt(1, 60))
    others(engine)
    second = run_call(engine, "a", "a1", [*whole_text(first), 3, 4])
    assert second.cached_tokens == found
    engine.check_answer(second)
    end(engine, "a")


def test_a_kept_prefix_is_released_when_it_is_dropped() -> None:
    """What nothing continues is cached as everything else is; what the program never had is not missed."""
    engine = FakeEngine(num_pages=200)
    first = run_call(engine, "a", "a0", prompt(1, 60))
    second = run_call(engine, "a", "a1", prompt(2, 30))
    assert engine.scheduler.stats().protected_pages == 61 + 31
    engine.scheduler.drop_prefixes("a", [first.id, "a77"])
    engine.scheduler.drop_prefixes("unknown", [second.id])
    assert engine.scheduler.stats().protected_pages == 31
    assert engine.scheduler.stats().evictable_pages == 61
    end(engine, "a", "a", "unknown")


def test_only_what_may_be_continued_is_kept() -> None:
    """The second answer of two, say, is not gone on from."""
    engine = FakeEngine()
    run_call(engine, "a", "a0", prompt(1, 60), continued=False)
    assert engine.scheduler.stats().protected_pages == 0
    assert engine.scheduler._programs.promised == 0
    end(engine, "a")


def test_a_program_without_a_cache_keeps_nothing() -> None:
    """Without a radix cache there is nothing to keep, and programs run all the same."""
    engine = FakeEngine(radix_cache=False)
    run_call(engine, "a", "a0", prompt(1, 60))
    engine.check_answer(run_call(engine, "a", "a1", prompt(2, 60)))
    end(engine, "a")


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_select_keeps_the_prefix_of_its_choices(page_size: int) -> None:
    """Whichever choice is taken: what stands before them is there for what comes after."""
    engine = FakeEngine(num_pages=200 // page_size, page_size=page_size)
    texts = [[*prompt(1, 60), *tail] for tail in ([3], [4, 5], [4, 6, 7])]
    select = make_score("s", texts, 60, page_size=page_size)
    select.place = make_call("a", "s", [3]).place
    engine.add(select)
    engine.run()
    engine.check_answer(select)
    others(engine)
    after = run_call(engine, "a", "a1", [*texts[1], 9, 9])
    assert after.cached_tokens >= 60
    end(engine, "a")


def broken_ends(engine: FakeEngine, executor: ManualExecutor) -> dict[str, Request]:
    """Calls of one program that end in every way but well."""
    made = {
        "aborted while it runs": make_call("a", "r0", prompt(1), max_tokens=50),
        "too late": make_call("a", "r1", prompt(2), max_tokens=50),
        "bad grammar": make_call("a", "r2", prompt(3)),
        "aborted while it compiles": make_call("a", "r3", prompt(4), max_tokens=9),
        "aborted before it runs": make_call("a", "r4", prompt(5)),
    }
    made["too late"].timeout_s = 5.0
    for name, grammar in (("bad grammar", BAD), ("aborted while it compiles", CODE.grammar)):
        made[name].grammar = grammar
        made[name].status = "waiting_grammar"
    engine.add(*made.values())
    engine.scheduler.abort("r4")
    for _ in range(3):
        engine.step()
    engine.scheduler.abort("r0")
    engine.scheduler.abort("r3")
    executor.run_next()
    engine.step()
    engine.clock.time_s = 6.0
    return made


def test_however_a_request_ends_nothing_is_left_of_it() -> None:
    """Aborts, failures, time limits and grammars that fail keep nothing, and the program is not counted on."""
    executor = ManualExecutor()
    compiler = ScriptedCompiler(*GRAMMARS, failing={BAD: GrammarError("bad")})
    engine = FakeEngine(grammars=GRAMMARS, compiler=compiler, executor=executor, max_running_requests=3)
    made = broken_ends(engine, executor)
    engine.run()
    assert all(request.status in ("aborted", "failed") for request in made.values())
    program = engine.scheduler._programs.find("a")
    assert program is not None
    assert program.active == 0
    assert not len(kept_of(engine))
    assert engine.scheduler._programs.promised == 0
    end(engine, "a")


@pytest.mark.parametrize("when", ["waiting", "running", "in flight", "compiling"])
def test_a_program_may_end_before_its_requests_do(when: str) -> None:
    """Whatever its requests are at: they end as they would, nothing is kept, and nothing is promised."""
    executor = ManualExecutor()
    engine = FakeEngine(grammars=GRAMMARS, executor=executor, max_running_requests=1)
    request = make_call("a", "a0", prompt(1, 40), max_tokens=9, ignore_eos=when != "compiling")
    if when == "compiling":
        request = make_call("a", "a0", prompt(1, 40), grammar=CODE.grammar, max_tokens=9)
    if when == "waiting":
        engine.add(long_run())
        engine.step()
    engine.add(request)
    if when == "in flight":
        step = engine.scheduler.launch_step()
        assert step is not None
        engine.scheduler.sample_step(step)
        engine.scheduler.end_program("a")
        engine.scheduler.finish_step(step)
    elif when == "running":
        goes_by(engine, request)
    engine.scheduler.end_program("a")
    executor.run_next()
    end(engine, "a")
    engine.check_answer(request)


def test_a_refused_request_leaves_no_program() -> None:
    """Where the queue is full, or the request cannot run, nothing of its program is known."""
    engine = FakeEngine(max_queued_requests=1, max_running_requests=1)
    engine.add(long_run())
    engine.step()
    engine.add(long_run("waits", 31))
    with pytest.raises(QueueFullError):
        engine.scheduler.add(make_call("a", "a0", prompt(1)))
    assert engine.scheduler._programs.find("a") is None
    end(engine, "a")


def test_an_answer_that_never_ran_keeps_what_was_kept() -> None:
    """A grammar that forces the whole answer: the call ends without pages, and the prefix before it is still there."""
    engine = FakeEngine(num_pages=200, grammars=GRAMMARS)
    first = run_call(engine, "a", "a0", prompt(1, 60))
    forced = run_call(engine, "a", "a1", [*whole_text(first), 3], grammar=FIXED.grammar, max_tokens=9)
    assert forced.first_step == 0
    assert forced.status == "finished"
    others(engine)
    assert run_call(engine, "a", "a2", whole_text(forced)).cached_tokens == 61
    end(engine, "a")


def test_a_flush_drops_what_is_kept() -> None:
    """All that no running request uses goes, and programs run on."""
    engine = FakeEngine()
    first = run_call(engine, "a", "a0", prompt(1, 60))
    assert engine.scheduler.flush_cache() == 61
    assert engine.scheduler.stats().free_pages == 256
    engine.check_answer(run_call(engine, "a", "a1", [*whole_text(first), 3]))
    end(engine, "a")


def test_a_retracted_call_is_counted_once() -> None:
    """What it takes again after a retraction is no more room; in the end it is what the call has really taken."""
    engine = FakeEngine(num_pages=200)
    request = make_call("a", "a0", prompt(1, 40), max_tokens=20)
    engine.add(request)
    engine.step()
    if engine.overlap:
        engine.step()
    program = request.program
    assert program is not None
    room = program.room
    engine.scheduler._retract(request)
    engine.step()
    assert (request.status, program.room) == ("running", room)
    engine.run()
    assert program.room == len(whole_text(request)) == 60
    engine.check_answer(request)
    end(engine, "a")


# -- when it is given up --------------------------------------------------------------------------------------------


def pool_with_two(policy: str = "fcfs") -> FakeEngine:
    """A pool of 200 tokens, which the device fills in 17 s: a program is away with 61 of them, and something runs."""
    engine = FakeEngine(num_pages=200, policy=policy)
    run_call(engine, "a", "a0", prompt(1, 60))
    engine.add(long_run())
    engine.step()
    kept_of(engine).measured(200, 17.0)
    return engine


def test_what_is_not_worth_its_room_is_given_up_for_new_programs() -> None:
    """As long as the prefix is worth keeping a new program waits for its room; then it is given up."""
    engine = pool_with_two()
    new = make_call("b", "b0", prompt(2, 90), name="new")
    engine.clock.time_s = 5.0
    engine.add(new)
    engine.step()
    assert new.started_s is None
    engine.clock.time_s = 15.0
    goes_by(engine, new)
    assert len(kept_of(engine)) == 0
    end(engine, "a", "b")


def test_running_requests_take_what_is_kept() -> None:
    """Memory that a running request needs is given up before anybody is retracted."""
    engine = FakeEngine(num_pages=200)
    engine.scheduler._estimate.ratio = 0.0
    run_call(engine, "a", "a0", prompt(1, 120))
    long = make_request("long", prompt(2, 30), max_tokens=120, ignore_eos=True)
    engine.add(long)
    engine.run()
    assert long.retractions == 0
    assert not len(kept_of(engine))
    engine.check_answer(long)
    end(engine, "a")


def test_where_nothing_runs_something_always_begins() -> None:
    """However much is kept and promised: the next request takes what it needs."""
    engine = FakeEngine(num_pages=200)
    for number in range(3):
        run_call(engine, f"p{number}", f"p{number}.0", prompt(number, 60))
    new = run_call(engine, "new", "n0", prompt(9, 150), name="new")
    engine.check_answer(new)
    assert new.started_s is not None
    end(engine, "p0", "p1", "p2", "new")


# -- who begins -----------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One running request is as much as a device can use."""
    monkeypatch.setattr(admission, "FEW", 1)


@pytest.mark.usefixtures("busy")
def test_a_new_program_waits_for_room_that_is_promised() -> None:
    """Room that a program in progress will take is left to it; a small program begins all the same."""
    engine = FakeEngine(num_pages=200, policy="least-work")
    run_call(engine, "seen", "s0", prompt(1, 100), name="large")
    engine.scheduler.end_program("seen")
    run_call(engine, "a", "a0", prompt(2, 20), name="large")  # 80 more are promised
    engine.add(long_run())
    engine.step()
    new, small = make_call("b", "b0", prompt(3, 80), name="new"), make_call("c", "c0", prompt(4, 4), name="small")
    engine.add(new, small)
    engine.step()
    assert engine.memory.available_pages > 90
    assert (new.started_s, small.started_s) == (None, 0.0)
    later = make_call("a", "a1", prompt(5, 80), name="large")
    engine.add(later)
    goes_by(engine, later)
    assert new.started_s is None
    end(engine, "a", "b", "c")
    engine.check_answer(new)


def test_a_device_with_little_to_do_gives_out_what_is_free() -> None:
    """Where few requests run, room that is promised to others and free is not waited for."""
    engine = FakeEngine(num_pages=200)
    run_call(engine, "seen", "s0", prompt(1, 100), name="large")
    engine.scheduler.end_program("seen")
    run_call(engine, "a", "a0", prompt(2, 20), name="large")  # 80 more are promised
    engine.add(long_run())
    engine.step()
    new = make_call("b", "b0", prompt(3, 80), name="new")
    engine.add(new)
    goes_by(engine, new)
    end(engine, "a", "b")
    engine.check_answer(new)


@pytest.mark.parametrize("keep_prefixes", [True, False])
def test_a_later_call_goes_before_programs_that_have_not_begun(keep_prefixes: bool) -> None:
    """Its turn comes with its program's, whether prefixes are kept or not."""
    engine = FakeEngine(policy="fcfs", max_running_requests=1, keep_prefixes=keep_prefixes)
    run_call(engine, "a", "a0", prompt(1))
    engine.add(long_run())
    engine.step()
    engine.clock.time_s = 1.0
    engine.add(make_call("b", "b0", prompt(2)), make_call("a", "a1", prompt(3)), make_call("c", "c0", prompt(4)))
    engine.run()
    assert [request.id for request in engine.finished] == ["a0", "long", "a1", "b0", "c0"]
    end(engine, "a", "b", "c")


def test_a_program_that_does_not_fit_holds_up_no_later_call() -> None:
    """The room that a new program waits for is given back by those that have begun: they go on even then."""
    engine = pool_with_two()
    new = make_call("b", "b0", prompt(2, 120), name="new")
    new.aged = True
    engine.add(new)
    later = make_call("a", "a1", prompt(3, 10))
    engine.add(later)
    engine.step()
    assert (new.started_s, later.started_s) == (None, 0.0)
    end(engine, "a", "b")


@pytest.mark.parametrize(("returning", "begins"), [("early", True), ("late", False)])
def test_earlier_programs_take_the_room_of_later_ones(returning: str, begins: bool) -> None:
    """Not the other way round: the later one waits until something ends."""
    engine = FakeEngine(num_pages=200, policy="fcfs")
    run_call(engine, "early", "e0", prompt(1, 70))
    run_call(engine, "late", "l0", prompt(2, 70))
    engine.add(long_run())
    engine.step()
    call = make_call(returning, "r", prompt(3, 50))
    engine.add(call)
    engine.step()
    assert (call.started_s is not None) == begins
    assert len(kept_of(engine)) == (1 if begins else 2)
    engine.run()
    engine.check_answer(call)
    end(engine, "early", "late")


# -- the same answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("settings", [{}, {"keep_prefixes": False}, {"radix_cache": False}], ids=str)
def test_answers_do_not_depend_on_what_is_kept(policy: Policy, settings: dict[str, Any]) -> None:
    """Programs of three calls on a pool that holds a few of them: every answer is right, and nothing is left."""
    engine = FakeEngine(num_pages=40, page_size=4, policy=policy, chunk_size=32, **settings)
    programs = [f"p{number}" for number in range(8)]
    texts = {program: prompt(number % 3, 20 + number) for number, program in enumerate(programs)}
    for turn in range(3):
        calls = [make_call(p, f"{p}.{turn}", [*text, 3 + turn], max_tokens=9) for p, text in texts.items()]
        engine.add(*calls)
        engine.run()
        for program, call in zip(programs, calls, strict=True):
            engine.check_answer(call)
            texts[program] = whole_text(call)
            engine.scheduler.drop_prefixes(program, [f"{program}.{turn - 1}"])
            engine.scheduler.check_invariants()
    end(engine, *programs)
