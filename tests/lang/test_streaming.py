"""Reading a program's text while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lang.recording import TIMEOUT_S, Gate, RecordingBackend

import palmette as pt
from palmette.runtime.program import Generate

SCRIPTS = ["日本語のテキスト", "👩‍👩‍👧‍👦 famille 🇫🇷", "naïve café", "Привет, мир", "नमस्ते", "plain\n\ttext", ""]


@pt.function
def chat(s: pt.ProgramState, questions: list[str]) -> int:
    for place, question in enumerate(questions):
        s += pt.user(question) + pt.assistant(pt.gen(f"answer_{place}"))
    return len(questions)


def in_thread(read: Callable[[], object]) -> Callable[[], object]:
    """Start `read` in a thread; the returned function waits for its value."""
    values: list[object] = []
    thread = threading.Thread(target=lambda: values.append(read()), daemon=True)
    thread.start()

    def wait() -> object:
        thread.join(TIMEOUT_S)
        assert values, "the read never came back"
        return values[0]

    return wait


async def collected(state: pt.ProgramState, name: str | None = None) -> str:
    return "".join([piece async for piece in state.text_async_iter(name)])


@settings(max_examples=40)
@given(st.lists(st.one_of(st.sampled_from(SCRIPTS), st.text(max_size=9)), max_size=4), st.integers(1, 5))
def test_pieces_join_to_the_whole_text(answers: list[str], piece_length: int) -> None:
    """In every script, the pieces of the text and of each variable are byte for byte the final ones."""
    backend = pt.MockBackend(answers, piece_length=piece_length)
    state = chat.stream(["Q 問 🙂"] * len(answers), backend=backend)
    streamed = "".join(state.text_iter())
    assert streamed.encode("utf-8", "surrogatepass") == state.text().encode("utf-8", "surrogatepass")
    for place, answer in enumerate(answers):
        assert "".join(state.text_iter(f"answer_{place}")) == state[f"answer_{place}"] == answer
    assert asyncio.run(collected(state)) == streamed


def test_text_comes_before_the_program_ends() -> None:
    """The reader gets the pieces of the first answer while the second has not begun."""
    gate = Gate("second")
    backend = pt.MockBackend(
        lambda prompt, node: gate(prompt, node) if "first" in prompt else "the first", piece_length=3
    )
    state = chat.run(["a", "b"], backend=backend, stream=True)
    pieces = list(state.text_iter("answer_0"))
    assert pieces == ["the", " fi", "rst"]
    assert repr(state) == "<ProgramState of chat: answer_0, answer_1>"
    gate.let_go()
    assert (state["answer_1"], state.ret_value, state.error()) == ("second", 2, None)


def test_reading_before_the_variable_exists_waits() -> None:
    """Reads from outside a running program wait for what it has yet to append."""
    begin = threading.Event()

    @pt.function
    def program(s: pt.ProgramState) -> None:
        assert begin.wait(TIMEOUT_S)
        s += "A" + pt.gen("x")

    state = program.stream(backend=pt.MockBackend(["one"]))
    assert "x" not in state
    reads = [
        in_thread(lambda: state["x"]),
        in_thread(lambda: "".join(state.text_iter("x"))),
        in_thread(state.text),
        in_thread(lambda: asyncio.run(collected(state, "x"))),
    ]
    begin.set()
    assert [wait() for wait in reads] == ["one", "one", "Aone", "one"]
    with pytest.raises(pt.UnknownVariableError):
        state["y"]


def test_a_program_can_read_its_own_stream() -> None:
    """Inside the program the iterator ends with what was appended so far, and asks for pieces."""
    seen: list[list[str]] = []

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "A" + pt.gen("x")
        seen.append(list(s.text_iter("x")))
        s += "B"
        seen.append(list(s.text_iter()))

    backend = pt.MockBackend(["123456"])
    program.run(backend=backend)
    assert seen == [["1234", "56"], ["A", "1234", "56", "B"]]
    assert [node.stream for node in backend.messages[0] if isinstance(node, Generate)] == [True]


def test_several_answers_stream_the_first() -> None:
    """n > 1 is safe with streaming: the pieces are the first answer's, the variable is the list."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x", n=2)

    state = program.stream(backend=pt.MockBackend(["abcdef", "ghijkl"]))
    assert "".join(state.text_iter()) == "abcdef"
    assert state["x"] == ["abcdef", "ghijkl"]


def test_branches_can_be_streamed() -> None:
    """The text of a branch begins with what it shares, and ends when it is joined."""
    branches: list[pt.ProgramState] = []

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "A"
        group = s.fork(2)
        group += lambda place: f"{place}" + pt.gen("x")
        branches.extend(group)
        group.join()

    state = program.stream(backend=pt.MockBackend(["b", "c"]))
    assert state.ret_value is None
    assert ["".join(branch.text_iter()) for branch in branches] == ["A0b", "A1c"]
    with pytest.raises(pt.ProgramError, match="was never set"):
        list(state.text_iter("own"))


def test_a_failure_comes_after_the_text_before_it() -> None:
    """Everything before the failed generation is yielded, then its error is raised."""
    state = chat.stream(["a", "b"], backend=pt.MockBackend(["one"]))
    pieces: list[str] = []
    with pytest.raises(pt.NodeFailedError, match="no answer left"):
        pieces.extend(state.text_iter())
    assert "".join(pieces) == "USER: a\nASSISTANT: one\nUSER: b\nASSISTANT: "
    assert state["answer_0"] == "one"
    assert isinstance(state.error(), pt.NodeFailedError)


def test_an_exception_of_the_program_reaches_the_reader() -> None:
    """A streamed program's own exception is raised by the iterators, and by reading what it left undone."""
    backend = RecordingBackend(["one"])

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "A" + pt.gen("x")
        assert s["x"] == "one"
        raise LookupError("user code")

    state = program.stream(backend=backend)
    with pytest.raises(LookupError, match="user code"):
        list(state.text_iter())
    with pytest.raises(LookupError):
        _ = state.ret_value
    with pytest.raises(pt.UnknownVariableError, match="ended before by LookupError: user code") as caught:
        state["y"]
    assert isinstance(caught.value.__cause__, LookupError)
    assert isinstance(state.error(), LookupError)
    assert state["x"] == "one"
    assert (backend.opened, backend.closed) == (1, 1)


def test_cancel_ends_readers_and_the_program() -> None:
    """A cancelled program's readers get an error instead of waiting for ever."""
    backend = pt.MockBackend(latency_s=TIMEOUT_S, answers=["never"])
    state = chat.stream(["a"], backend=backend)
    assert next(state.text_iter()) == "USER: "
    state.cancel()
    with pytest.raises(pt.NodeFailedError) as caught:
        state["answer_0"]
    assert isinstance(caught.value.__cause__, pt.RequestAbortedError)
    assert isinstance(state.error(), pt.RequestAbortedError)


def test_async_readers_share_one_loop() -> None:
    """Many asyncio readers of many programs run on one thread."""

    async def read_all() -> list[str]:
        backend = pt.MockBackend(lambda prompt, node: prompt.upper(), latency_s=0.001)
        states = [chat.stream([f"q{place}"], backend=backend) for place in range(20)]
        return await asyncio.gather(*(collected(state, "answer_0") for state in states))

    assert asyncio.run(read_all()) == [f"USER: Q{place}\nASSISTANT: " for place in range(20)]
