"""Programs that are ``async def``, and programs awaited from asyncio."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.lang.recording import RecordingBackend

import palmette as pt


@pt.function
async def capital(s: pt.ProgramState, country: str) -> str:
    s += pt.user(f"Capital of {country}?") + pt.assistant(pt.gen("city"))
    city = await s.get("city")
    s += pt.user(f"River of {city}?") + pt.assistant(pt.gen("river"))
    return f"{city} on the {await s.get('river')}"


ANSWERS = {"River of Paris": "Seine", "River of Rome": "Tiber", "Capital of France": "Paris", "of Italy": "Rome"}


def test_an_async_program_runs_from_plain_code() -> None:
    """`run`, `stream` and `run_batch` take async programs as they take others."""
    backend = pt.MockBackend(ANSWERS)
    assert capital.run("France", backend=backend).ret_value == "Paris on the Seine"
    assert capital.stream("Italy", backend=backend).ret_value == "Rome on the Tiber"
    states = capital.run_batch([("France",), {"country": "Italy"}, ("Spain",)], backend=backend)
    assert [state.ret_value for state in states[:2]] == ["Paris on the Seine", "Rome on the Tiber"]
    assert isinstance(states[2].error(), pt.NodeFailedError)


def test_async_programs_share_one_event_loop() -> None:
    """Awaited together, they run side by side on the caller's thread and start none."""
    threads: set[int] = set()

    @pt.function
    async def note(s: pt.ProgramState, place: int) -> int:
        threads.add(threading.get_ident())
        s += f"{place}" + pt.gen("x")
        await s.ready()
        return place + int(s["x"])

    async def main() -> list[int]:
        backend = pt.MockBackend(lambda prompt, node: prompt, latency_s=0.01)
        states = await asyncio.gather(*(note.run_async(place, backend=backend) for place in range(20)))
        return [state.ret_value for state in states]

    assert asyncio.run(main()) == [2 * place for place in range(20)]
    assert threads == {threading.get_ident()}


def test_a_plain_program_can_be_awaited() -> None:
    """It runs in a thread, and what it raises is raised where it is awaited."""

    @pt.function
    def plain(s: pt.ProgramState, fail: bool) -> str:
        s += pt.gen("x")
        if fail:
            raise LookupError("no")
        return str(s["x"])

    async def main() -> str:
        with pytest.raises(LookupError, match="no"):
            await plain.run_async(True, backend=pt.MockBackend(["a"]))
        return str((await plain.run_async(False, backend=pt.MockBackend(["a"]))).ret_value)

    assert asyncio.run(main()) == "a"


def test_an_async_program_must_not_block() -> None:
    """A read that would stop the event loop is an error with the line and what to write; one that is known is not."""

    @pt.function
    async def program(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        for read in (lambda: s["x"], s.text, s.messages, lambda: list(s.text_iter("x"))):
            with pytest.raises(pt.ProgramError, match=r"await s\.get\(name\)"):
                read()
        await s.ready()
        assert (s["x"], s.text()) == ("a", "a")
        forks = s.fork(2)
        forks += pt.gen("y")
        with pytest.raises(pt.ProgramError, match="must not wait"):
            forks.join("concat")
        await forks[0].ready()
        assert await forks[1].get("y") == "a"
        forks.join("concat")
        assert "".join([piece async for piece in s.text_async_iter()]) == "aaa"

    program.run(backend=pt.MockBackend({"": "a"}))


def test_run_inside_a_loop_says_what_to_write() -> None:
    """An async program cannot be run from a running event loop; the error names run_async."""

    async def main() -> None:
        with pytest.raises(pt.ProgramError, match=r"await capital\.run_async"):
            capital.run("France", backend=pt.MockBackend(ANSWERS))

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_cancelling_the_task_ends_the_program(kind: str) -> None:
    """Asyncio's cancellation closes the program's session, and its generations are aborted."""
    backend = RecordingBackend({"": "late"}, latency_s=60)

    @pt.function
    async def waits(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        await s.get("x")

    @pt.function
    def blocks(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        s["x"]

    async def main() -> None:
        task = asyncio.create_task((waits if kind == "async" else blocks).run_async(backend=backend))
        while not backend.calls and backend.opened == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert backend.closed == 1


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_stopping_interrupts_what_the_program_awaits(how: str) -> None:
    """A deadline or `cancel` ends an async program that awaits something else, and the caller's task goes on."""

    @pt.function
    async def sleeps(s: pt.ProgramState) -> None:
        if how == "cancel":
            asyncio.get_running_loop().call_later(0.05, s.cancel)
        await asyncio.sleep(600)

    async def main() -> str:
        with pytest.raises(pt.DeadlineExceededError if how == "deadline" else pt.RequestAbortedError):
            await sleeps.run_async(backend=pt.MockBackend(), timeout_s=0.05 if how == "deadline" else None)
        await asyncio.sleep(0.01)
        return "went on"

    assert asyncio.run(main()) == "went on"


def test_many_plain_programs_can_be_awaited_at_once() -> None:
    """They do not wait for the few threads that asyncio has for other things."""
    barrier = threading.Barrier(60)

    @pt.function
    def meets(s: pt.ProgramState) -> int:
        return barrier.wait(30)

    async def main() -> list[int]:
        states = await asyncio.gather(*(meets.run_async(backend=pt.MockBackend()) for _ in range(60)))
        return sorted(state.ret_value for state in states)

    assert asyncio.run(main()) == list(range(60))


def test_missing_variables_do_not_hang() -> None:
    """Awaiting what the program never set is the same error as reading it."""

    @pt.function
    async def program(s: pt.ProgramState) -> None:
        s += pt.gen("answer")
        await s.get("anwser")

    with pytest.raises(KeyError, match='did you mean "answer"'):
        program.run(backend=pt.MockBackend(["a"]))


def test_async_code_of_branches() -> None:
    """`map` of an async function is awaited, gives the results in order, and raises the first failure."""

    async def grade(branch: pt.ProgramState, aspect: str) -> int:
        branch += aspect + pt.gen_int("grade")
        return int(await branch.get("grade"))

    async def broken(branch: pt.ProgramState) -> None:
        raise ValueError("oh")

    @pt.function
    async def program(s: pt.ProgramState) -> list[int]:
        forks = s.fork(2)
        with pytest.raises(ValueError, match="oh"):
            await forks.map(broken)
        return await forks.map(grade, ["a", "b"])

    assert program.run(backend=pt.MockBackend({"a$": "1", "b$": "2"})).ret_value == [1, 2]


def test_an_item_that_cancels_itself_does_not_end_the_batch() -> None:
    """A CancelledError or SystemExit out of an async program is that item's error; the others go on."""

    @pt.function
    async def item(s: pt.ProgramState, end: type[BaseException] | None) -> None:
        if end is not None:
            raise end()
        s += pt.gen("x")

    ends = [None, asyncio.CancelledError, None, SystemExit, None]
    states = item.run_batch([(end,) for end in ends], backend=pt.MockBackend({"": "a"}))
    assert [type(state.error()) for state in states] == [end or type(None) for end in ends]


def test_a_thread_of_an_async_program_does_not_wait_for_it() -> None:
    """Reading in asyncio.to_thread what was never set is an error there, as in the program itself."""

    @pt.function
    async def threaded(s: pt.ProgramState) -> str:
        s += pt.gen("x")
        with pytest.raises(pt.UnknownVariableError):
            await asyncio.to_thread(lambda: s["y"])
        return str(await asyncio.to_thread(lambda: s["x"]))

    assert threaded.run(backend=pt.MockBackend({"": "a"}), timeout_s=20).ret_value == "a"


def test_an_async_program_maps_async_functions_only() -> None:
    """Waiting for threads would stop the event loop of every program on it, so that is an error with a hint."""

    @pt.function
    async def mapped(s: pt.ProgramState) -> None:
        s.fork(2).map(lambda branch: branch.text())

    with pytest.raises(pt.ProgramError, match=r"give forks.map\(\) an async def function"):
        mapped.run(backend=pt.MockBackend())
