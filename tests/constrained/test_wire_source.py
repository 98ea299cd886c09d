"""Grammars that came over a wire: whatever their source is, the error says what is wrong in words of grammars."""

from __future__ import annotations

import json

import pytest

from palmette.constrained.compiler import check_grammar
from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar, GrammarKind

SOURCES = ("", "nope", "null", "3", '"x"', "[1]", '["a", 2]', "{}", "[" * 20_000, "1" * 6_000, '{"inner": ["regex"]}')
TAGS = {"begin": "<a>", "end": "</a>", "begun": False, "required": False}


@pytest.mark.parametrize("kind", ["choices", "ebnf", "lark", "structural_tag", "reasoning", "json_schema"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source[:12] or "empty")
def test_sources_that_are_none(kind: GrammarKind, source: str) -> None:
    """No error is Python's own, and none is longer than a person reads."""
    if kind == "json_schema" and source.startswith("{"):
        return  # any object is a schema
    with pytest.raises(GrammarError) as caught:
        check_grammar(Grammar(kind, source))
    assert len(str(caught.value)) < 400
    assert "sys." not in str(caught.value)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("ebnf", '{"ebnf": 1, "root": "root"}'), "ebnf source must be a string"),
        (Grammar("lark", '{"lark": "start: A", "start": []}'), "lark start must be a string"),
        (Grammar("choices", '["a", "a"]'), "distinct"),
        (Grammar("reasoning", json.dumps({**TAGS, "inner": ["nope", "a"]})), "must be a list of a kind"),
        (Grammar("reasoning", json.dumps({**TAGS, "inner": ["regex", "a", "", ""]})), "must be a list of a kind"),
        (Grammar("reasoning", json.dumps({**TAGS, "inner": ["reasoning", "a"]})), "reasoning grammar itself"),
        (Grammar("reasoning", json.dumps({**TAGS, "end": 2, "inner": ["regex", "a"]})), "end tag must be a string"),
        (Grammar("json_schema", "{}", "nope"), "options of a JSON schema must be a JSON object"),
        (Grammar("json_schema", "{}", "[]"), "options of a JSON schema must be a JSON object"),
        (Grammar("json_schema", "{}", '{"nope": 1}'), "options of a JSON schema must be a JSON object"),
        (Grammar("json_schema", "{}", '{"whitespace": 3}'), "whitespace must be one of"),
        (Grammar("json_schema", "{}", '{"formats": "x"}'), "formats must be one of True, False"),
    ],
)
def test_parts_that_cannot_be(grammar: Grammar, message: str) -> None:
    """Members of another type or value are named, with what is allowed."""
    with pytest.raises(GrammarError, match=message):
        check_grammar(grammar)
