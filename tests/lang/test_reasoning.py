"""Reasoning and answer apart, in whole texts and in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.reasoning import ReasoningSplit, ThinkTags

TAGS = ThinkTags()


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "answer"),
    [
        ("<think>\nSo.\n</think>\n\nYes.", False, "So.", "Yes."),
        ("So.\n</think>Yes. ", True, "So.", "Yes. "),
        ("Yes.", False, "", "Yes."),
        ("Cut off ", True, "Cut off", ""),
        ("<think>Cut </thi", False, "Cut </thi", ""),
        ("<thi", False, "", "<thi"),
        ("<think></think>", False, "", ""),
        (" <think> a b </think> c </think>", False, "a b", "c </think>"),
        ("", False, "", ""),
    ],
)
def test_the_parts_of_an_answer(text: str, begun: bool, reasoning: str, answer: str) -> None:
    """The reasoning is what the tags hold, the answer what follows, and white space between them is dropped."""
    assert ReasoningSplit(TAGS, "reasoning", begun).of(text) == reasoning
    assert ReasoningSplit(TAGS, "answer", begun).of(text) == answer


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", "a", " ", "\n", "é", "<thi"]), max_size=12),
    st.booleans(),
    st.sampled_from(["reasoning", "answer"]),
)
def test_pieces_join_to_the_part(pieces: list[str], begun: bool, part: str) -> None:
    """However the text is cut, what is given out joins to the part of the whole text."""
    split = ReasoningSplit(TAGS, part, begun)  # type: ignore[arg-type]  # hypothesis gives a plain string
    stream = split.stream()
    given_out = [stream.push(piece) for piece in pieces]
    assert "".join(given_out) + stream.finish() == split.of("".join(pieces))


def test_a_program_reads_both_parts() -> None:
    """The variable is the answer, a second one holds the reasoning, and the branch keeps the whole text."""

    @pt.function
    def ask(s: pt.ProgramState) -> None:
        s += pt.user("Q") + pt.assistant(pt.gen("a", separate_reasoning=True))
        s += pt.assistant("<think>\n" + pt.separate_reasoning(pt.gen("b"), model_type="qwen3"))
        s += pt.assistant(pt.gen("c", separate_reasoning=("[", "]"), n=2))

    answers = ["<think>hm</think>\nyes", "so\n</think>\n\nno", "[x]1", "[y]2"]
    state = ask.run(backend=pt.MockBackend(answers))
    assert (state["a"], state["a_reasoning_content"]) == ("yes", "hm")
    assert (state["b"], state["b_reasoning_content"]) == ("no", "so")
    assert (state["c"], state["c_reasoning_content"]) == (["1", "2"], ["x", "y"])
    assert "<think>hm</think>\nyes" in state.text()
    assert "".join(state.text_iter("a")) == "yes"
    assert "".join(state.text_iter("c_reasoning_content", answer=1)) == "y"


def test_a_constraint_holds_for_the_answer() -> None:
    """The grammar of the request lets the model reason first, and the value is read from the answer alone."""

    @pt.function
    def ask(s: pt.ProgramState) -> None:
        s += pt.assistant(pt.gen("n", type=int, separate_reasoning=True))
        s += pt.assistant("<think>" + pt.gen("m", regex="[ab]", separate_reasoning=True))

    backend = pt.MockBackend(["<think>2+2</think>\n4", "hm</think>\na"])
    state = ask.run(backend=backend)
    assert (state["n"], state["m"]) == (4, "a")
    assert [call.node.grammar.kind for call in backend.calls] == ["reasoning", "reasoning"]  # type: ignore[union-attr]


@pytest.mark.parametrize("tags", ["<think>", ("a",), ("a", ""), 3])
def test_wrong_tags_are_refused(tags: object) -> None:
    """Anything but True, False or a pair of tags is an error that says so."""
    with pytest.raises(pt.RequestError, match="separate_reasoning must be True, False or a pair of tags"):
        pt.gen("x", separate_reasoning=tags)  # type: ignore[arg-type]  # the mistake under test


def test_separate_reasoning_needs_a_generation() -> None:
    """Without a gen in it, or with a model type that is not known, the call says what is wrong."""
    with pytest.raises(TypeError, match=r"with a gen\(\.\.\.\) in it"):
        pt.separate_reasoning(pt.user("a"))
    with pytest.raises(pt.RequestError, match="model_type must be one of deepseek-r1"):
        pt.separate_reasoning(pt.gen("a"), model_type="gpt")


@pytest.mark.parametrize("forked", [False, True])
def test_reasoning_has_begun_before_a_fork_or_white_space(forked: bool) -> None:
    """A begin tag at the end of the prompt counts though nodes without text of their own stand after it."""

    @pt.function
    def think(s: pt.ProgramState) -> tuple[str, str]:
        s += "q<think>"
        s += "\n"
        branch = s.fork(1)[0] if forked else s
        branch += pt.gen("x", separate_reasoning=True)
        return branch["x"], branch["x_reasoning_content"]

    assert think.run(backend=pt.MockBackend(["why</think>so"])).ret_value == ("so", "why")
