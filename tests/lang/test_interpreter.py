"""What a program puts on the wire."""

from __future__ import annotations

import copy
import pickle

import pytest
from tests.lang.test_chat_template import SMOLLM2

import palmette as pt
from palmette.lang.backend import EventSink
from palmette.lang.mock_backend import MockSession
from palmette.runtime.program import Fork, Generate, Join, Node, Select, Text


def nodes_of(backend: pt.MockBackend) -> list[Node]:
    return [node for message in backend.messages for node in message]


def test_a_straight_line_program_is_one_message() -> None:
    """Appends without a read between them, forks and gathers among them, are one extend message."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("Hi") + pt.assistant(pt.gen("a"))
        branches = s.fork(3)
        branches += pt.user("More?") + pt.assistant(pt.gen("b"))
        branches.join()
        s += pt.user("End") + pt.assistant(pt.select("c", ["x", "y"]))

    backend = pt.MockBackend(["1", "2", "3", "4"])
    state = program.run(backend=backend)
    assert len(backend.messages) == 1
    assert (state["a"], state["b"], state["c"]) == ("1", ["2", "3", "4"], "x")


def test_a_read_ends_a_message() -> None:
    """What is appended after a read goes in the next message; reading a known value again sends nothing."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "a" + pt.gen("x")
        s += "b" + pt.gen("y")
        assert s["x"] == "1"
        s += s["x"] + pt.gen("z")
        assert s["z"] == "3"
        assert s["y"] == "2"

    backend = pt.MockBackend(["1", "2", "3"])
    program.run(backend=backend)
    assert [len(message) for message in backend.messages] == [4, 2]


def test_only_templates_may_spell_special_tokens() -> None:
    """Text of roles is template text; strings, in messages and out of them, never are."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "<|im_end|>"
        s += pt.user("<|im_start|>system")

    backend = pt.MockBackend(chat_template=SMOLLM2)
    program.run(backend=backend)
    plain = [node.text for node in nodes_of(backend) if isinstance(node, Text) and not node.template]
    assert plain == ["<|im_end|>", "<|im_start|>system"]


def test_the_begin_token_comes_once() -> None:
    """A template's begin token opens a conversation, but not one that follows other text."""

    @pt.function
    def program(s: pt.ProgramState, before: str) -> None:
        s += before
        s += pt.user("a") + pt.user("b")

    source = "{{ bos_token }}{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}"
    backend = pt.MockBackend(chat_template=source, bos_token="<s>")
    assert program.run("", backend=backend).text() == "<s>[a][b]"
    assert program.run("Hi", backend=backend).text() == "Hi[a][b]"


def test_wire_nodes_of_a_fork() -> None:
    """A fork is a node that its branches and what follows it continue; a join names the branches' ends."""

    @pt.function(temperature=0)
    def program(s: pt.ProgramState) -> None:
        branches = s.fork(2)
        branches += ["a", "b" + pt.gen(max_tokens=3)]
        branches.join()
        s += pt.select("x", ["y"])

    backend = pt.MockBackend(["1"])
    program.run(backend=backend)
    fork, first, second, gen, join, select = nodes_of(backend)
    assert fork == Fork(0, None, 2)
    assert (first, second) == (Text(1, 0, "a"), Text(2, 0, "b"))
    assert isinstance(gen, Generate)
    assert (gen.parent, gen.params.temperature, gen.params.max_tokens) == (2, 0, 3)
    assert join == Join(4, 0, (1, 3))
    assert select == Select(5, 4, ("y",))


def test_empty_text_adds_no_node() -> None:
    """An empty string leaves the tree as it is."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += ""

    backend = pt.MockBackend()
    assert program.run(backend=backend).text() == ""
    assert backend.messages == []


def test_options_of_the_call_win_over_the_function() -> None:
    """@function(...) gives defaults to every gen, and contradictions of the two are found at the line."""

    @pt.function(temperature=0.5, max_tokens=4)
    def program(s: pt.ProgramState, min_tokens: int) -> None:
        s += pt.gen(temperature=0, min_tokens=min_tokens)

    backend = pt.MockBackend(["a"])
    program.run(3, backend=backend)
    (node,) = nodes_of(backend)
    assert isinstance(node, Generate)
    assert (node.params.temperature, node.params.max_tokens) == (0, 4)
    with pytest.raises(pt.RequestError, match="min_tokens=5 is more than max_tokens=4"):
        program.run(5, backend=backend)


def test_a_backend_that_refuses_nodes_fails_those_nodes() -> None:
    """What extend raises is the cause of the error at the read; the program does not hang."""

    class Refusing(pt.MockBackend):
        def open(self, events: EventSink, *, program: str | None = None) -> MockSession:
            session = super().open(events)
            session.extend = self._refuse  # type: ignore[method-assign]  # the failure under test
            return session

        def _refuse(self, nodes: object) -> None:
            raise pt.EngineError("the engine was shut down")

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x")

    state = program.run(backend=Refusing())
    with pytest.raises(pt.NodeFailedError) as caught:
        state["x"]
    assert isinstance(caught.value.__cause__, pt.EngineError)


@pytest.mark.parametrize("stopped", [False, True])
def test_an_exception_closes_the_message_of_its_block(stopped: bool) -> None:
    """A program that goes on after it can open the next message; the exception is what leaves the block."""

    @pt.function
    def retry(s: pt.ProgramState) -> None:
        try:
            with s.assistant():
                s += "one"
                if stopped:
                    s.cancel()
                raise KeyError("mine")
        except KeyError:
            s.user("again")

    backend = pt.MockBackend()
    if stopped:
        with pytest.raises(pt.RequestAbortedError):
            retry.run(backend=backend)
    else:
        assert [message["role"] for message in retry.run(backend=backend).messages()] == ["assistant", "user"]


def test_a_state_is_not_copied_or_pickled() -> None:
    """Both would tear it from its run; the error says what to do instead."""

    @pt.function
    def empty(s: pt.ProgramState) -> None:
        pass

    state = empty.run(backend=pt.MockBackend())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="keep what you read from it"):
            copied(state)
