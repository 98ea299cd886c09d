"""The mock answers as its script says, and tells when the script cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest
from tests.wire import run_tree

import palmette as pt
from palmette.lang.backend import Backend
from palmette.runtime.program import Delta, Event, Generate, Node, Text
from palmette.runtime.sampling_params import SamplingParams


def asked(answers: Any, *exprs: str | pt.Expr) -> pt.ProgramState:
    """The state of a program that appends `exprs`."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        for expr in exprs:
            s += expr

    return program.run(backend=pt.MockBackend(answers))


def test_it_is_a_backend() -> None:
    """It satisfies the protocol, and describes its model."""
    backend = pt.MockBackend(chat_template="x", bos_token="<s>", eos_token="</s>")
    assert isinstance(backend, Backend)
    info = backend.model_info
    assert (info.name, info.chat_template, info.bos_token, info.eos_token) == ("mock", "x", "<s>", "</s>")


def test_answers_by_order_pattern_and_function() -> None:
    """A list answers in order, a mapping by the first pattern found in the prompt, a function by prompt and node."""
    question = ("The sky is ", pt.gen("x"), " and ", pt.gen("y"))
    assert asked(["blue", "wide"], *question).text() == "The sky is blue and wide"
    assert asked({"and": "high", "sky": "grey"}, *question).text() == "The sky is grey and high"
    assert asked(lambda prompt, node: str(len(prompt) + node.id), *question).text() == "The sky is 12 and 21"


def test_select_takes_the_scripted_choice_or_the_first() -> None:
    """Without a scripted answer the first choice wins; an answer that is none of the choices fails."""
    pick = pt.select("x", ["a", "b"])
    assert asked(["b"], pick)["x"] == "b"
    assert asked({"nothing": "b"}, pick)["x"] == "a"
    assert asked([], pick)["x"] == "a"
    with pytest.raises(pt.NodeFailedError, match=r"'c' is none of the choices"):
        asked(["c"], pick)["x"]


@pytest.mark.parametrize(
    ("expr", "good", "bad"),
    [
        (pt.gen("x", regex="[0-9]+"), "12", "12a"),
        (pt.gen("x", grammar=pt.Grammar.choices(["a", "b"])), "a", "ab"),
        (pt.gen("x", json_schema={"type": "object", "required": ["a"]}), '{"a": 1}', "{}"),
        (pt.gen("x", json_schema={"type": "integer"}), "1", "1."),
    ],
)
def test_answers_must_keep_their_constraint(expr: pt.Expr, good: str, bad: str) -> None:
    """An answer that breaks its grammar is the node's error, not a silent wrong value."""
    state = asked([good], expr)
    assert state["x"] == good
    assert state.get_meta_info("x")["finish_reason"] == "grammar"
    with pytest.raises(pt.NodeFailedError, match=r"MockBackend's answer .* breaks the") as caught:
        asked([bad], expr)["x"]
    assert isinstance(caught.value.__cause__, pt.GrammarError)


def test_missing_answers_and_failing_functions() -> None:
    """The error says what the script lacked, or what its function raised."""
    with pytest.raises(pt.NodeFailedError, match=r"no answer left \(it was given 1\) for the prompt 'ab'"):
        asked(["b"], "a", pt.gen("x"), pt.gen("y"))["y"]
    with pytest.raises(pt.NodeFailedError, match="none of its 1 patterns is found"):
        asked({"z": "b"}, "a", pt.gen("x"))["x"]

    def fail(prompt: str, node: object) -> str:
        raise RuntimeError("broken script")

    with pytest.raises(pt.NodeFailedError, match="RuntimeError: broken script"):
        asked(fail, "a", pt.gen("x"))["x"]


@pytest.mark.parametrize("answers", ["text", 3, None])
def test_scripts_of_other_kinds_are_refused(answers: Any) -> None:
    """A bare string would be read letter by letter: refused."""
    with pytest.raises(TypeError, match="answers must be a list, a mapping"):
        pt.MockBackend(answers)


def test_settings_are_checked() -> None:
    """Pieces have at least one character, and time does not run backwards."""
    with pytest.raises(ValueError, match="piece_length=0 must be at least 1"):
        pt.MockBackend(piece_length=0)


def test_calls_and_messages_are_recorded() -> None:
    """Each call has its prompt, its node and its answers."""
    backend = pt.MockBackend(["1", "2"])
    listener = run_tree(
        backend, [Text(0, None, "Hi "), Generate(1, 0, SamplingParams(), n=2, stream=True), Text(2, 1, "!")]
    )
    (call,) = backend.calls
    assert (call.prompt, call.node.id, call.answers) == ("Hi ", 1, ("1", "2"))
    assert listener.deltas == [Delta(1, "1", 0), Delta(1, "2", 1)]
    assert [len(message) for message in backend.messages] == [3]


def test_no_event_comes_after_close() -> None:
    """close drops what is still to come, and may be called twice."""
    events: list[Event] = []
    backend = pt.MockBackend({"": "a"}, latency_s=0.02)
    session = backend.open(events.append)
    nodes: list[Node] = [Generate(0, None, SamplingParams())]
    session.extend(nodes)
    session.close()
    session.close()
    run_tree(backend, nodes)
    assert events == []
