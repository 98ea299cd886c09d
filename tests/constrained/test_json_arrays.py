"""Arrays: elements by place, in number, and counted by what they are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.constrained.reference import BYTES, walk
from tests.constrained.schema_laws import check_values

from palmette.constrained import Grammar, UnsatisfiableGrammarError, compile_grammar

ARRAYS: list[Any] = [list(items) for size in range(5) for items in itertools.product((1, 2, "s"), repeat=size)]

SCHEMAS: list[Any] = [
    {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"const": 1}},
    {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"prefixItems": [True, False], "maxItems": 3},
    {"items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    {"contains": {"type": "string"}},
    {"contains": {"type": "string"}, "minContains": 2, "maxContains": 3, "maxItems": 3},
    {"contains": {"const": 1}, "maxContains": 1, "prefixItems": [{"type": "integer"}]},
    {"allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}], "maxItems": 3},
    {"contains": {"const": 5}, "minContains": 0},
    {"items": {"type": "integer"}, "not": {"items": {"const": 1}}},
    {"not": {"prefixItems": [{"const": 1}, {"const": 1}]}, "minItems": 1},
    {"const": [1, 2]},
    {"not": {"enum": [[1, 2], [], ["s"]]}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_elements(schema: Any) -> None:
    """Elements by place, their number and their counts are exact."""
    check_values(schema, ARRAYS)


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_no_dead_ends(schema: Any) -> None:
    """Wherever masks lead, the text can be ended."""
    compiled = compile_grammar(Grammar.json_schema({"type": "array", **schema}), BYTES)
    for seed in range(5):
        state, _ = walk(compiled, lambda allowed, seed=seed: allowed[(seed * 7919) % len(allowed)], 25)  # type: ignore[misc]  # a bound default
        compiled.shortest_ending(state)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
        {"type": "array", "contains": {"type": "string"}, "items": {"type": "integer"}},
        {"type": "array", "contains": True, "maxItems": 2, "minContains": 3},
        {"type": "array", "minItems": 2, "prefixItems": [True], "items": False},
    ],
)
def test_contradictions(schema: Any) -> None:
    """Counts that cannot be reached are refused when the schema is compiled."""
    with pytest.raises(UnsatisfiableGrammarError):
        compile_grammar(Grammar.json_schema(schema), BYTES)
