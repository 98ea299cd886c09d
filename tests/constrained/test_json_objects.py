"""Objects: classes of keys, counts, any order, and where space may stand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.constrained.reference import BYTES, walk
from tests.constrained.schema_laws import check_accepted, check_values

from palmette.constrained import Grammar, GrammarError, compile_grammar

KEYS = ("a", "b", "x1", "y")
OBJECTS: list[Any] = [
    dict(zip(keys, values, strict=True))
    for size in range(4)
    for keys in itertools.combinations(KEYS, size)
    for values in itertools.product((1, "s"), repeat=size)
]

SCHEMAS: list[Any] = [
    {"properties": {"a": {"type": "integer"}}, "minProperties": 2},
    {"properties": {"a": {"type": "integer"}, "b": {}}, "maxProperties": 2, "required": ["b"]},
    {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 1},
    {"additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    {"patternProperties": {"^x": {"type": "integer"}, "1$": {"type": "string"}}},
    {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 2},
    {"propertyNames": {"pattern": "^[a-x]"}, "properties": {"y": {}, "a": {}}},
    {"propertyNames": {"enum": ["a", "y"]}},
    {"propertyNames": {"anyOf": [{"const": "a"}, {"minLength": 2}]}, "minProperties": 1},
    {"properties": {"a": {"type": "string"}}, "not": {"additionalProperties": {"type": "integer"}}},
    {"not": {"patternProperties": {"^[ab]": {"type": "integer"}}}, "maxProperties": 2},
    {"dependentRequired": {"a": ["b", "y"], "b": ["a"]}},
    {"minProperties": 3, "propertyNames": {"enum": ["a", "b", "y"]}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_members(schema: Any) -> None:
    """Keys of every class, their values and their number are exact, in any order of members."""
    check_values(schema, OBJECTS, key_order="any")
    check_values({"type": "object", **schema}, [{}, 1, {"a": 1}, {"b": 1}, {"y": "s"}])


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_no_dead_ends(schema: Any) -> None:
    """Wherever masks lead, the text can be ended."""
    compiled = compile_grammar(Grammar.json_schema({"type": "object", **schema}), BYTES)
    for seed in range(5):
        state, _ = walk(compiled, lambda allowed, seed=seed: allowed[(seed * 7919) % len(allowed)], 25)  # type: ignore[misc]  # a bound default
        compiled.shortest_ending(state)


def test_any_order() -> None:
    """Under `key_order="any"` members come in any order, each once, listed objects among them."""
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a"], "type": "object"}
    check_accepted(
        schema,
        ['{"b":null,"a":1}', '{"a":1,"b":null}', '{"z":[],"a":1}', '{"b":null,"z":1,"a":1,"y":2}'],
        ['{"b":null}', '{"a":1,"a":1}', "{}", '{"b":null,"b":null,"a":1}'],
        key_order="any",
    )
    listed = {"enum": [{"a": 1, "b": [{"c": 1, "d": 2}]}]}
    check_accepted(
        listed, ['{"b":[{"d":2,"c":1}],"a":1}', '{"a":1,"b":[{"c":1,"d":2}]}'], ['{"a":1}', "{}"], key_order="any"
    )


def test_whitespace() -> None:
    """Space stands where the option says, and nowhere else."""
    schema = {"properties": {"a": {"type": "array", "items": {"type": "null"}}}, "required": ["a"], "type": "object"}
    indented = '{\n  "a": [\n    null,\n    null\n  ]\n}'
    check_accepted(schema, ['{"a":[null,null]}'], ['{"a": []}', indented], whitespace="none")
    check_accepted(schema, ['{"a": [null, null]}', '{"a":[]}'], [indented, '{ "a":[]}'], whitespace="single")
    check_accepted(schema, [indented, '{"a":[]}'], ['{"a" :[]}'], whitespace="indented")
    check_accepted(schema, [indented, '{\t"a" : [ \r\n] }', '{"a":[]}'], ['{"a":[nul l]}'], whitespace="any")


def test_other_options() -> None:
    """Escapes, and what is not said of other keys, are options too."""
    check_accepted({"type": "string"}, ['"é\\n"'], ['"\\u00e9"', '"\\/"'], escapes="short")
    schema = {"type": "object", "properties": {"a": {}}}
    check_accepted(schema, ['{"a":1}'], ['{"b":1}', '{"a":1,"b":1}'], additional_properties=False)
    assert Grammar.json_schema({}) != Grammar.json_schema({}, whitespace="any")
    assert Grammar.json_schema({}) == Grammar.json_schema({}, whitespace="single")
    with pytest.raises(GrammarError, match="key_order must be one of"):
        Grammar.json_schema({}, key_order="random")  # type: ignore[arg-type]  # what is tested


def test_any_object() -> None:
    """`json_object` is any object."""
    compiled = compile_grammar(Grammar.json_object(), BYTES)
    assert compiled.grammar == Grammar.json_schema({"type": "object"})
