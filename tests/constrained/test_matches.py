"""Whole texts against grammars of every kind."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from tests.constrained.strategies import patterns, texts

from palmette.constrained import Grammar, GrammarError, matches


@settings(max_examples=100)
@given(patterns, texts)
def test_regexes_equal_re(pattern: str, text: str) -> None:
    """A pattern matches what Python's re matches in full."""
    assert matches(Grammar.regex(pattern), text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        (Grammar.regex("é+"), "éé", "e"),
        (Grammar.choices(["yes", "no"]), "no", "nope"),
        (Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}), '{"a":1}', '{"a":"1"}'),
        (Grammar.ebnf('root ::= "(" root ")" | "x"'), "((x))", "((x)"),
        (
            Grammar.structural_tag({"type": "structural_tag", "format": {"type": "any_text", "excludes": ["<"]}}),
            "a > b",
            "a < b",
        ),
        (Grammar.reasoning(Grammar.regex("[ab]")), "<think>so</think>a", "<think>so"),
    ],
)
def test_every_kind(grammar: Grammar, yes: str, no: str) -> None:
    """Each kind of grammar accepts its texts and no others."""
    assert matches(grammar, yes)
    assert not matches(grammar, no)


def test_odd_texts() -> None:
    """A text with half a surrogate pair matches nothing, and a grammar that is not legal is an error."""
    assert not matches(Grammar.regex("(?s:.*)"), "\ud800")
    with pytest.raises(GrammarError):
        matches(Grammar.regex("("), "(")
