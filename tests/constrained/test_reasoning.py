"""Reasoning before a constrained answer, against Python's re."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.grammar_laws import check_masks, steered_answer
from tests.constrained.reference import BYTES
from tests.constrained.strategies import vocabularies

from palmette.constrained import Grammar, GrammarError, UnsatisfiableGrammarError, Vocabulary, compile_grammar, matches

ANSWER = Grammar.regex("[0-9]+|no")
PIECES = ["<t>", "</t>", "</", "t>", "<", "x", " ", "\n", "é", "7", "no", "<think>", "</think>"]


def expected(text: str, *, begun: bool, required: bool, begin: str = "<t>", end: str = "</t>") -> bool:
    """The definition, as one regular expression."""
    thought = rf"(?:(?!{re.escape(end)}).)*?{re.escape(end)}[ \n\t\r]{{0,2}}"
    before = thought if begun else rf"[ \n\t\r]{{0,2}}{re.escape(begin)}{thought}"
    optional = "" if begun or required else "?"
    return re.fullmatch(f"(?:{before}){optional}(?:[0-9]+|no)", text, re.DOTALL) is not None


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), st.booleans(), st.booleans())
def test_equals_the_definition(text: str, begun: bool, required: bool) -> None:
    """Reasoning holds anything but its end; then comes the answer, which alone is enough unless reasoning must be."""
    grammar = Grammar.reasoning(ANSWER, begin="<t>", end="</t>", begun=begun, required=required)
    for each in (text, f"<t>{text}</t>7", f"{text}</t>\nno"):
        assert matches(grammar, each) == expected(each, begun=begun, required=required)


@settings(max_examples=25)
@given(vocabularies, st.booleans(), st.data())
def test_masks_equal_brute_force(vocabulary: Vocabulary, begun: bool, data: st.DataObject) -> None:
    """Masks inside the reasoning and behind it equal brute force over every token."""
    check_masks(Grammar.reasoning(ANSWER, begin="aa", end="ab", begun=begun), vocabulary, data)


@settings(max_examples=40)
@given(vocabularies, st.integers(0, 5), st.booleans(), st.data())
def test_budgets_steer_to_an_answer(vocabulary: Vocabulary, slack: int, begun: bool, data: st.DataObject) -> None:
    """With any budget from the shortest ending on, the reasoning is closed in time and the answer given."""
    text = steered_answer(Grammar.reasoning(ANSWER, begin="<t>", end="</t>", begun=begun), vocabulary, slack, data)
    assert expected(text, begun=begun, required=False)


def test_the_first_end_ends_it() -> None:
    """After the first end tag the answer must follow: the reasoning cannot go on to a second one."""
    grammar = Grammar.reasoning(ANSWER, end="aa", begun=True)
    assert matches(grammar, "xaa7")
    assert not matches(grammar, "xaaa7")
    assert not matches(grammar, "xaa xaa7")


def test_forced_bytes() -> None:
    """Required reasoning of a begun kind forces nothing; the end tag is forced to its last byte by the budget only."""
    compiled = compile_grammar(Grammar.reasoning(Grammar.regex("yes"), begun=True), BYTES)
    assert compiled.forced_bytes(compiled.start) == b""
    ending = bytes(compiled.shortest_ending(compiled.start))
    assert ending == b"</think>yes"


def test_inner_grammars_of_every_kind() -> None:
    """The answer may be held to any other kind of grammar."""
    inner = {
        Grammar.json_schema({"type": "integer"}): "5",
        Grammar.choices(["a", "b"]): "b",
        Grammar.ebnf('root ::= root "x" | "y"'): "yxx",
        Grammar.structural_tag({"type": "structural_tag", "format": {"type": "const_string", "value": "v"}}): "v",
    }
    for grammar, text in inner.items():
        assert matches(Grammar.reasoning(grammar), f"<think>\nhm\n</think>\n\n{text}")
        assert matches(Grammar.reasoning(grammar), text)
        assert not matches(Grammar.reasoning(grammar, required=True), text)


def test_equal_grammars_are_one_key() -> None:
    """Grammars with the same meaning are equal: what is begun is required."""
    assert Grammar.reasoning(ANSWER) == Grammar.reasoning(ANSWER, begin="<think>")
    assert Grammar.reasoning(ANSWER, begun=True) == Grammar.reasoning(ANSWER, begun=True, required=True)
    assert Grammar.reasoning(ANSWER) != Grammar.reasoning(ANSWER, required=True)


def test_bad_arguments() -> None:
    """Empty tags, what is no grammar, reasoning inside reasoning and impossible answers are refused."""
    with pytest.raises(GrammarError, match="the end tag must not be empty"):
        Grammar.reasoning(ANSWER, end="")
    with pytest.raises(GrammarError, match="surrogate"):
        Grammar.reasoning(ANSWER, begin="\ud800")
    with pytest.raises(GrammarError, match="must be a Grammar"):
        Grammar.reasoning("[0-9]+")  # type: ignore[arg-type]  # what a user may do
    with pytest.raises(GrammarError, match="reasoning grammar itself"):
        Grammar.reasoning(Grammar.reasoning(ANSWER))
    with pytest.raises(UnsatisfiableGrammarError):
        matches(Grammar.reasoning(Grammar.json_schema(False)), "")
