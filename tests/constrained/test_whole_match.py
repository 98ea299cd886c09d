"""Whole texts against grammars of every kind."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from tests.constrained.strategies import patterns, texts

from palmette.constrained import Grammar, GrammarError, compile_grammar, matches
from palmette.constrained.compiler import compile_plain
from palmette.constrained.whole_match import single_bytes

PLAIN = [
    Grammar.regex(r"(ab|a){2,200}[^b]{0,3}"),
    Grammar.json_schema({"type": "object", "minProperties": 2, "properties": {"a": {"type": "integer"}}}),
    Grammar.json_schema({"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True}),
    Grammar.structural_tag({"type": "structural_tag", "format": {"type": "any_text", "excludes": ["<"]}}),
]


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


@pytest.mark.parametrize("grammar", PLAIN, ids=lambda grammar: grammar.kind)
def test_plain_loops_do_what_the_compiled_ones_do(grammar: Grammar) -> None:
    """Without numba every state, ending and forced text is the same."""
    vocabulary = single_bytes()
    plain, compiled = compile_plain(grammar, vocabulary).matcher(), compile_grammar(grammar, vocabulary).matcher()
    for token_id in (*compiled.shortest_ending(), None):
        assert np.array_equal(plain.mask(), compiled.mask())
        assert plain.forced_bytes() == compiled.forced_bytes()
        assert plain.shortest_ending() == compiled.shortest_ending()
        if token_id is not None:
            plain.accept(token_id)
            compiled.accept(token_id)
