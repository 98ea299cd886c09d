"""How runs are given options, end in time, and are batched."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.lang.recording import RecordingBackend

import palmette as pt
from palmette.runtime.program import Generate


@pt.function(temperature=0.5, max_tokens=8)
def ask(s: pt.ProgramState, question: str) -> str:
    s += question + pt.gen("answer", top_p=0.5)
    return str(s["answer"])


def params_of(backend: pt.MockBackend) -> Any:
    node = backend.calls[-1].node
    assert isinstance(node, Generate)
    return node.params


def test_options_at_the_run_win_over_the_function_and_lose_to_the_gen() -> None:
    """One order holds: gen, run, function, the model's own generation_config, the table of defaults."""
    backend = pt.MockBackend({"": "a"}, sampling_defaults={"top_k": 20, "temperature": 0.7, "min_p": 0.1})
    ask.run("q", backend=backend, temperature=0, top_p=0.9, max_new_tokens=3)
    params = params_of(backend)
    assert (params.temperature, params.top_p, params.max_tokens, params.top_k) == (0, 0.5, 3, 20)
    assert (params.min_p, params.presence_penalty) == (0.1, 0.0)
    ask.run_batch([{"question": "q", "seed": 3}], backend=backend, seed=1, top_k=-1)
    assert (params_of(backend).seed, params_of(backend).top_k, params_of(backend).temperature) == (3, 0, 0.5)


def test_options_are_told_from_arguments() -> None:
    """A parameter named like an option is the function's; what is neither is an error that names the signature."""

    @pt.function
    def odd(s: pt.ProgramState, /, seed: str, **rest: object) -> object:
        return seed, rest

    assert odd.run("s", temperature=3, backend=pt.MockBackend()).ret_value == ("s", {"temperature": 3})
    backend = pt.MockBackend({"": "a"})

    @pt.function
    def any_names(s: pt.ProgramState, /, **names: object) -> object:
        s += pt.gen("x")
        return names

    assert any_names.run_batch([{"tone": 1}], temperature=0.25, backend=backend)[0].ret_value == {"tone": 1}
    assert params_of(backend).temperature == 0.25
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tone'; its signature is ask\(question"):
        ask.run("q", tone=3, backend=pt.MockBackend())
    with pytest.raises(pt.RequestError, match="temperature must be a number"):
        ask.run("q", temperature=-1, backend=pt.MockBackend())
    with pytest.raises(pt.RequestError, match="two names of one option"):
        ask.run("q", max_new_tokens=3, max_tokens=4, backend=pt.MockBackend())


# -- deadlines -------------------------------------------------------------------------------------------------------


def test_a_run_ends_at_its_deadline() -> None:
    """The run raises a TimeoutError, the session is closed and what was not done has failed."""
    backend = RecordingBackend({"": "late"}, latency_s=60)
    with pytest.raises(pt.DeadlineExceededError, match=r"did not end within timeout_s=0\.05") as failure:
        ask.run("q", backend=backend, timeout_s=0.05)
    assert isinstance(failure.value, TimeoutError)
    assert backend.closed == 1


def test_a_deadline_stays_with_its_item_and_its_stream() -> None:
    """In a batch and in a stream the state keeps the error."""
    backend = RecordingBackend({"": "late"}, latency_s=60)
    states = ask.run_batch([("slow",)], backend=backend, timeout_s=0.05)
    assert isinstance(states[0].error(), pt.DeadlineExceededError)
    state = ask.stream("q", backend=RecordingBackend({"": "late"}, latency_s=60), timeout_s=0.05)
    with pytest.raises(pt.NodeFailedError) as failure:
        "".join(state.text_iter())
    assert isinstance(failure.value.__cause__, pt.DeadlineExceededError)
    assert ask.run("f", backend=pt.MockBackend(["in time"]), timeout_s=60).ret_value == "in time"


def test_a_deadline_reaches_unread_generations() -> None:
    """A function that returns before its generations are done is still held to the deadline."""

    @pt.function
    def unread(s: pt.ProgramState) -> None:
        s += pt.gen("x")

    with pytest.raises(pt.DeadlineExceededError):
        unread.run(backend=pt.MockBackend({"": "late"}, latency_s=60), timeout_s=0.05)


@pytest.mark.parametrize("timeout_s", [0, -1, True, "1", float("nan")])
def test_wrong_deadlines_are_refused(timeout_s: Any) -> None:
    """A deadline that is no time is an error before anything runs."""
    with pytest.raises(pt.RequestError, match="timeout_s must be a number of seconds above 0"):
        ask.run("q", backend=pt.MockBackend(), timeout_s=timeout_s)


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_generator_takes_items_as_it_goes() -> None:
    """With generator_style the states come in order, and items may be endless: a bounded number is taken ahead."""
    taken: list[int] = []

    def items() -> Iterator[tuple[str]]:
        place = 0
        while True:
            taken.append(place)
            yield (f"{place} ",)
            place += 1

    backend = pt.MockBackend(lambda prompt, node: prompt)
    states = ask.run_batch(items(), backend=backend, num_threads=2, generator_style=True)
    assert [next(states).ret_value for _ in range(5)] == [f"{place} " for place in range(5)]
    assert len(taken) <= 9
    states.close()


def test_a_generator_yields_what_is_done_before_it_takes_more() -> None:
    """A state that is ready is not held back until enough items were taken."""
    taken: list[int] = []
    came = False

    def items() -> Iterator[list[str]]:
        for place in range(100):
            taken.append(place)
            time.sleep(0 if came else 0.02)
            yield [f"{place}"]

    states = ask.run_batch(items(), backend=pt.MockBackend({"": "a"}), num_threads=50, generator_style=True)
    assert next(states).ret_value == "a"
    came = True
    assert len(taken) < 100
    assert len(list(states)) == 99


def test_a_thousand_programs_of_five_calls_in_bounded_memory() -> None:
    """From an iterator, only as many runs are alive as are taken ahead, on as many threads as were asked for."""

    @pt.function
    def five(s: pt.ProgramState, place: int) -> int:
        for call in range(5):
            s += f"{place}" + pt.gen(f"x{call}")
        return len(threading.enumerate())

    alive: weakref.WeakSet[pt.ProgramState] = weakref.WeakSet()
    before, most = threading.active_count(), 0
    states = five.run_batch(
        ([place] for place in range(1000)), backend=pt.MockBackend({"": "a"}), num_threads=4, generator_style=True
    )
    done = 0
    for done, state in enumerate(states, 1):  # noqa: B007  it is used after the loop
        assert state.ret_value <= before + 4 + 2  # the workers, the mock's own thread, and that of the items
        alive.add(state)
        most = max(most, len(alive))
    assert (done, most <= 16) == (1000, True)


def test_a_generator_checks_each_item_when_it_is_taken() -> None:
    """A wrong item is an error that says which one, after the states before it."""
    states = ask.run_batch([("a",), ("b", "c")], backend=pt.MockBackend({"": "x"}), generator_style=True, num_threads=1)
    with pytest.raises(TypeError, match="item 1 of run_batch: too many positional arguments"):
        list(states)


def test_an_interrupted_batch_cancels_its_runs() -> None:
    """What the waiting thread raises ends the batch, and the sessions that are open are closed."""
    backend = RecordingBackend({"": "late"}, latency_s=60)

    def items() -> Iterator[tuple[str]]:
        yield ("a",)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(ask.run_batch(items(), backend=backend, generator_style=True, num_threads=2))


# -- branches side by side -------------------------------------------------------------------------------------------


def test_map_runs_the_code_of_branches_side_by_side() -> None:
    """Every branch reaches a barrier that one after the other could not pass, and results come in order."""
    barrier = threading.Barrier(3)

    def grade(branch: pt.ProgramState, aspect: str, weight: int) -> int:
        branch += aspect + pt.gen_int("grade")
        barrier.wait(30)
        with pytest.raises(KeyError, match="was never set"):
            branch["nothing"]
        return weight * int(branch["grade"])

    @pt.function
    def program(s: pt.ProgramState) -> list[int]:
        forks = s.fork(3)
        grades = forks.map(grade, ["a", "b", "c"], [1, 10, 100])
        forks.join()
        return grades

    state = program.run(backend=pt.MockBackend({"a$": "1", "b$": "2", "c$": "3"}))
    assert state.ret_value == [1, 20, 300]
    assert state["grade"] == [1, 2, 3]


def test_map_raises_the_first_failure_after_all_have_ended() -> None:
    """The others go on; the exception says in which branch it was raised."""
    ended: list[int] = []

    def work(branch: pt.ProgramState, place: int) -> None:
        if place == 1:
            raise LookupError("no such thing")
        ended.append(place)

    @pt.function
    def program(s: pt.ProgramState) -> None:
        with pytest.raises(ValueError, match=r"shorter|longer"):
            s.fork(2).map(work, [1])
        s.fork(3).map(work, [0, 1, 2])

    with pytest.raises(LookupError, match="no such thing") as failure:
        program.run(backend=pt.MockBackend())
    assert failure.value.__notes__ == ["in branch 1 of forks.map()"]
    assert sorted(ended) == [0, 2]


def test_a_run_that_was_cancelled_before_it_began_runs_none_of_its_code() -> None:
    """Its session is closed, whether the function would have appended something or not."""
    backend = RecordingBackend()
    ran: list[str] = []

    @pt.function
    def idle(s: pt.ProgramState) -> None:
        ran.append("here")

    run = idle._new_run((), {}, backend, timeout_s=None)
    run.state.cancel()
    with pytest.raises(pt.RequestAbortedError, match="idle was cancelled"):
        run.run()
    assert (ran, backend.opened, backend.closed) == ([], 1, 1)


def test_the_causes_of_a_deadline_go_in_no_circle() -> None:
    """What stopped the run is raised from the error at the read, and that one from an error of its own."""

    @pt.function
    def slow(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        s["x"]

    with pytest.raises(pt.DeadlineExceededError) as failure:
        slow.run(backend=pt.MockBackend({"": "late"}, latency_s=60), timeout_s=0.05)
    read = failure.value.__cause__
    assert isinstance(read, pt.NodeFailedError)
    assert isinstance(read.__cause__, pt.DeadlineExceededError)
    assert read.__cause__ is not failure.value
    assert read.__cause__.__cause__ is None


def test_a_program_that_leaves_the_interpreter_is_one_failed_item() -> None:
    """SystemExit in an item of a batch is that item's error."""

    @pt.function
    def leave(s: pt.ProgramState, i: int) -> None:
        s += "text"
        if i == 1:
            raise SystemExit(3)

    states = leave.run_batch([{"i": i} for i in range(3)], backend=pt.MockBackend())
    assert [type(state.error()) for state in states] == [type(None), SystemExit, type(None)]


def test_threads_of_the_programs_own_read_as_the_program_does() -> None:
    """In a run that nobody can watch, a read in any thread takes what is there: it never waits for the program."""

    @pt.function
    def pooled(s: pt.ProgramState) -> list[str]:
        branches = s.fork(2)
        branches += pt.gen("x")
        with ThreadPoolExecutor() as threads:
            texts = list(threads.map(lambda branch: branch.text(), branches))
            with pytest.raises(pt.UnknownVariableError, match="never set"):
                threads.submit(lambda: s["y"]).result()
        return texts

    assert pooled.run(backend=pt.MockBackend({"": "a"}), timeout_s=20).ret_value == ["a", "a"]


def test_a_stream_that_gets_no_thread_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no thread left, the call fails and takes nothing from later streams."""
    monkeypatch.setattr("palmette.lang.function._stream_slots", threading.BoundedSemaphore(1))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            ask.stream("q", backend=pt.MockBackend())
    assert ask.stream("q", backend=pt.MockBackend({"": "a"})).ret_value == "a"
