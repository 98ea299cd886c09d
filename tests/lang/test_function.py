"""Running programs: arguments, failures, batches and binding."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.lang.recording import TIMEOUT_S, RecordingBackend

import palmette as pt


@pt.function
def greet(s: pt.ProgramState, name: str, *, mood: str = "glad") -> str:
    """Greets."""
    s += f"{mood} {name}: " + pt.gen("x")
    return name.upper()


def shout(prompt: str, node: object) -> str:
    return prompt.upper()


def test_arguments_by_place_and_by_name() -> None:
    """run takes the function's own arguments; the state holds what it returned."""
    backend = pt.MockBackend(shout)
    assert greet.run("Ada", backend=backend).text() == "glad Ada: GLAD ADA: "
    state = greet.run(name="Bob", mood="sad", backend=backend)
    assert (state["x"], state.ret_value, state.error()) == ("SAD BOB: ", "BOB", None)
    assert (greet.__name__, greet.__doc__, greet.__module__) == ("greet", "Greets.", __name__)
    assert repr(greet).startswith("<palmette function greet(name")


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'name'"),
        (("a", "b"), {}, "too many positional arguments"),
        (("a",), {"nam": "b"}, "unexpected keyword argument 'nam'"),
        (("a",), {"name": "b"}, "multiple values for argument 'name'"),
    ],
)
def test_wrong_arguments_show_the_signature(args: Any, kwargs: Any, says: str) -> None:
    """Arguments that do not fit are a TypeError with the signature, before anything runs."""
    backend = RecordingBackend()
    for call in (greet.run, greet.stream):
        with pytest.raises(TypeError, match=rf"greet.run\(\): .*{says}.*greet\(name: "):
            call(*args, backend=backend, **kwargs)
    assert backend.opened == 0


@pytest.mark.parametrize("name", ["backend", "stream", "timeout_s"])
def test_parameters_that_run_takes_are_refused(name: str) -> None:
    """A program cannot have a parameter that run would swallow."""
    with pytest.raises(TypeError, match=f"has a parameter '{name}', which run"):
        exec(f"import palmette as pt\n@pt.function\ndef program(s, {name}): pass")


def test_what_cannot_be_a_program() -> None:
    """Functions without a state, generator functions and other things are refused when decorated."""

    async def generator(s: pt.ProgramState) -> AsyncIterator[int]:
        yield 1

    def no_state() -> None:
        pass

    for wrong, says in ((generator, "generator"), (no_state, "needs a first parameter"), (3, "decorates a function")):
        with pytest.raises(TypeError, match=says):
            pt.function(wrong)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match="no option 'temprature'; did you mean 'temperature'"):
        pt.function(temprature=0)  # type: ignore[call-overload]  # the mistake under test


def test_backends_are_checked() -> None:
    """Without a backend the error says how to give one; a default is used where none is named."""
    with pytest.raises(pt.NoBackendError, match="set_default_backend"):
        greet.run("Ada")
    with pytest.raises(TypeError, match=r"a backend is what pt\.runtime\.launch"):
        greet.run("Ada", backend="gpt")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match="a backend is what"):
        pt.set_default_backend(pt.MockBackend)  # type: ignore[arg-type]  # the mistake under test
    backend = pt.MockBackend(shout)
    pt.set_default_backend(backend)
    try:
        assert pt.default_backend() is backend
        assert greet("Ada")["x"] == "GLAD ADA: "
    finally:
        pt.set_default_backend(None)


def test_a_user_exception_closes_the_session() -> None:
    """What the function raises comes out of run as it is, and its generations are aborted."""
    backend = RecordingBackend(["late"], latency_s=TIMEOUT_S)

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        s._execution.flush()
        raise LookupError("user code")

    with pytest.raises(LookupError, match="user code"):
        program.run(backend=backend)
    assert (backend.opened, backend.closed) == (1, 1)


def test_a_failed_generation_is_raised_at_the_read() -> None:
    """The original error is the cause, the message has line and call, and siblings go on."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        branches = s.fork(2)
        branches[0] += "good" + pt.gen("x")
        branches[1] += "bad" + pt.gen("x", regex="[0-9]") + pt.gen("after")
        assert branches[0]["x"] == "a"
        for name in ("x", "after"):
            with pytest.raises(pt.NodeFailedError) as caught:
                branches[1][name]
            assert isinstance(caught.value.__cause__, pt.GrammarError)
            assert caught.value.line is not None
            assert '"bad" + pt.gen("x", regex="[0-9]")' in caught.value.line.code
            assert caught.value.node is not None
            assert 'gen("x") at ' in str(caught.value)
        assert "could not start" in str(caught.value)
        branches.join()

    backend = RecordingBackend({"good": "a", "bad": "b"})
    state = program.run(backend=backend)
    error = state.error()
    assert isinstance(error, pt.NodeFailedError)
    assert "breaks the regex [0-9]" in str(error)
    with pytest.raises(pt.NodeFailedError):
        state["x"]
    assert (backend.opened, backend.closed) == (1, 1)


def test_a_failure_nobody_read_is_kept() -> None:
    """run does not raise for a generation that nobody read; error() has it."""
    state = greet.run("Ada", backend=pt.MockBackend())
    assert state.ret_value == "ADA"
    assert isinstance(state.error(), pt.NodeFailedError)


def test_an_ended_program_takes_nothing_more() -> None:
    """Appending to a state whose program has ended is an error, not lost text."""
    state = greet.run("Ada", backend=pt.MockBackend(["x"]))
    with pytest.raises(pt.ProgramError, match="the program greet has ended"):
        state += "more"


def test_the_program_cannot_read_its_return_value() -> None:
    """ret_value inside the program is an error, not a wait for ever."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        _ = s.ret_value

    with pytest.raises(pt.ProgramError, match="once the function has returned"):
        program.run(backend=pt.MockBackend())


def test_error_inside_a_program() -> None:
    """error() in the program waits for what was appended so far."""

    @pt.function
    def program(s: pt.ProgramState) -> bool:
        s += pt.gen("x")
        return s.error() is None

    assert program.run(backend=pt.MockBackend(["a"])).ret_value is True
    assert program.run(backend=pt.MockBackend()).ret_value is False


def test_a_batch_of_200_programs() -> None:
    """Every program ends with its own answer, in the order of the items."""
    backend = RecordingBackend(shout)
    states = greet.run_batch([{"name": f"n{place}"} for place in range(200)], backend=backend)
    assert [state["x"] for state in states] == [f"GLAD N{place}: " for place in range(200)]
    assert (backend.opened, backend.closed) == (200, 200)


def test_a_failed_item_does_not_end_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """An item's exception stays with its state; the others go on, and the progress counts all."""

    @pt.function
    def program(s: pt.ProgramState, number: int) -> float:
        s += f"{number}" + pt.gen("x")
        return 12 / number

    states = program.run_batch([(1,), (0,), (3,)], backend=pt.MockBackend(shout), progress_bar=True, num_threads=1)
    assert [type(state.error()) for state in states] == [type(None), ZeroDivisionError, type(None)]
    assert (states[0].ret_value, states[2].ret_value) == (12, 4)
    with pytest.raises(ZeroDivisionError):
        _ = states[1].ret_value
    assert "program: 3 items in " in (shown := capsys.readouterr().err)
    assert "1 failed" in shown


def test_a_batch_checks_all_items_first() -> None:
    """An item that does not fit is named before anything runs."""
    backend = RecordingBackend()
    for items, says in (
        ([{"name": "a"}, {}], "item 1 of run_batch: missing"),
        (["Ada"], "item 0 of run_batch must be a mapping of arguments, or a tuple or list of them, not str: 'Ada'"),
    ):
        with pytest.raises(TypeError, match=says):
            greet.run_batch(items, backend=backend)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match='num_threads must be "auto"'):
        greet.run_batch([("a",)], backend=backend, num_threads=0)
    assert backend.opened == 0
    assert greet.run_batch([], backend=backend) == []


def test_a_batch_bounds_its_threads() -> None:
    """No more programs run at once than num_threads."""
    lock = threading.Lock()
    running = most = 0

    @pt.function
    def program(s: pt.ProgramState) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        s += pt.gen("x")
        assert s["x"] == "a"
        with lock:
            running -= 1

    program.run_batch([()] * 12, backend=pt.MockBackend({"": "a"}, latency_s=0.002), num_threads=3)
    assert 1 <= most <= 3


def test_bind_gives_arguments_in_advance() -> None:
    """Bound arguments are used by every way to run, and those given at the run win."""
    backend = pt.MockBackend(shout)
    bound = greet.bind(mood="calm").bind(name="Eve")
    assert (bound.bound, greet.bound) == ({"mood": "calm", "name": "Eve"}, {})
    assert bound.run(backend=backend)["x"] == "CALM EVE: "
    assert bound.run(name="Max", backend=backend)["x"] == "CALM MAX: "
    assert bound.run_batch([{"mood": "odd"}], backend=backend)[0]["x"] == "ODD EVE: "
    with pytest.raises(TypeError, match=r"greet.bind\(\): .*'nam'.*signature is greet\(name"):
        greet.bind(nam="x")


def test_a_backend_that_does_not_open_is_the_item_s_failure() -> None:
    """run raises what open raises; a batch keeps it."""

    class Closed(pt.MockBackend):
        def open(self, events: object, *, program: object = None) -> Any:
            raise pt.EngineError("the engine was shut down")

    with pytest.raises(pt.EngineError):
        greet.run("Ada", backend=Closed())
    (state,) = greet.run_batch([("Ada",)], backend=Closed())
    assert isinstance(state.error(), pt.EngineError)
