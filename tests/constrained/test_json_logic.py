"""JSON Schema's applicators in place: not, oneOf, if, dependencies, and values that are listed among them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.constrained.reference import BYTES
from tests.constrained.schema_laws import check_accepted, check_values

from palmette.constrained import Grammar, UnsatisfiableGrammarError, UnsupportedGrammarError, compile_grammar

VALUES: list[Any] = [
    *[None, True, False, 0, 1, 2, 3, 5, 6, -1, 1.5, 2.5, "", "a", "ab", "abc", "b"],
    *[[], [1], ["a"], [1, 2], ["a", 1], [1, "a", None], [[]], [{}]],
    *[{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": "x", "b": "y"}, {"a": 1, "c": 3}, {"c": None}],
    *[{"a": 2, "b": 1, "c": 0}, {"kind": "x"}, {"kind": "y", "a": 1}, {"a": {"a": 1}}],
]

NEGATED: list[Any] = [
    *[{"type": "string"}, {"type": ["integer", "null"]}, {"type": "number"}, {"minimum": 2}, {"exclusiveMaximum": 2}],
    *[{"multipleOf": 3}, {"minLength": 2}, {"maxLength": 1}, {"pattern": "^a"}, {"minItems": 1}, {"maxItems": 1}],
    *[{"enum": [1, "a", None, [1], {"a": 1}]}, {"const": True}, {"const": {"a": {"a": 1}}}, {"required": ["a", "b"]}],
    *[{"properties": {"a": {"type": "integer"}}}, {"additionalProperties": {"type": "integer"}}],
    *[{"properties": {"a": True}, "additionalProperties": False}, {"propertyNames": {"const": "a"}}],
    *[{"patternProperties": {"^[ab]": {"type": "integer"}}}, {"minProperties": 2}, {"maxProperties": 1}],
    *[{"prefixItems": [{"type": "integer"}]}, {"items": {"type": "integer"}}, {"contains": {"const": 1}}],
    *[{"contains": {"type": "integer"}, "minContains": 2}, {"contains": {"type": "integer"}, "maxContains": 1}],
    *[{"allOf": [{"minimum": 1}, {"maximum": 2}]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}],
    *[{"oneOf": [{"type": "integer"}, {"minimum": 2}]}, {"not": {"type": "object"}}],
    *[{"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "object"}}],
    *[{"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"a": {"required": ["c"]}}}],
    *[{"type": "object", "properties": {"a": {"minimum": 2}}, "required": ["a"]}],
    *[{"unevaluatedProperties": False}, {"properties": {"a": True}, "unevaluatedProperties": {"type": "string"}}],
    {
        "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["c"]}],
        "unevaluatedProperties": False,
    },
    *[
        {"prefixItems": [True], "unevaluatedItems": False},
        {"contains": {"const": 1}, "unevaluatedItems": {"type": "string"}},
    ],
]


@pytest.mark.parametrize("schema", NEGATED, ids=str)
def test_schemas_and_their_negations(schema: Any) -> None:
    """Every keyword, its negation and its double negation are exact."""
    check_values(schema, VALUES, key_order="any")
    check_values({"not": schema}, VALUES, key_order="any")
    check_values({"not": {"not": schema}}, VALUES, key_order="any")


@pytest.mark.parametrize("index", range(0, len(NEGATED), 3))
def test_exactly_one(index: int) -> None:
    """`oneOf` is exact where its schemas overlap."""
    check_values(
        {"oneOf": [NEGATED[index], NEGATED[(index + 5) % len(NEGATED)], {"type": "object"}]}, VALUES, key_order="any"
    )
    check_values(
        {"if": NEGATED[index], "then": NEGATED[(index + 7) % len(NEGATED)], "else": {"type": "array"}},
        VALUES,
        key_order="any",
    )


def test_large_unions() -> None:
    """Schemas that a tag tells apart are found apart without being compared in pairs."""
    options = [
        {"type": "object", "properties": {"k": {"const": n}, "v": {"const": n}}, "required": ["k"]} for n in range(300)
    ]
    check_accepted({"oneOf": options}, ['{"k":7,"v":7}', '{"k":299}'], ['{"k":7,"v":8}', '{"k":300}', "{}"])


def test_a_condition_on_a_member() -> None:
    """if/then/else on a tag, in the order of the properties."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}, "a": {"type": "integer"}},
        "required": ["kind"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"const": "x"}}},
        "then": {"required": ["a"]},
        "else": {"properties": {"a": False}},
    }
    check_accepted(schema, ['{"kind":"x","a":1}', '{"kind":"y"}'], ['{"kind":"x"}', '{"kind":"y","a":1}', "{}"])


UNEVALUATED: list[Any] = [
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": False},
    {"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {}}}]}
    | {"unevaluatedProperties": False},
    {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"c": {}}, "required": ["c"]}]}
    | {"unevaluatedProperties": {"type": "string"}},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"properties": {"b": {}}}}
    | {"else": {"properties": {"c": {}}}, "unevaluatedProperties": False},
    {"dependentSchemas": {"a": {"properties": {"a": {}, "b": {}}}}, "unevaluatedProperties": False},
    {"prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}},
    {"contains": {"type": "string"}, "unevaluatedItems": {"type": "integer"}},
    {"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [True, {"const": "a"}]}], "unevaluatedItems": False},
]


@pytest.mark.parametrize("schema", UNEVALUATED, ids=str)
def test_unevaluated(schema: Any) -> None:
    """What the schemas in place that hold leave over is what unevaluated* speaks of."""
    check_values(schema, VALUES, key_order="any")


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"type": "string", "not": {"type": "string"}},
        {"allOf": [{"enum": [1, 2]}, {"not": {"enum": [2, 1]}}]},
        {"oneOf": [True, True]},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}
        | {"not": {"properties": {"a": {"type": "string"}}}},
        {"$defs": {"a": {"const": 1}}, "allOf": [{"$ref": "#/$defs/a"}, {"not": {"$ref": "#/$defs/a"}}]},
    ],
)
def test_contradictions(schema: Any) -> None:
    """A schema that contradicts itself is refused when it is compiled."""
    with pytest.raises(UnsatisfiableGrammarError):
        compile_grammar(Grammar.json_schema(schema), BYTES)


def test_an_optional_tag_tells_options_apart() -> None:
    """Objects with a tag are none of those that may only have another one, so that `oneOf` needs no denials."""
    inner = {"type": "object", "properties": {"kind": {"enum": ["list"]}}, "additionalProperties": {"$ref": "#"}}
    tagged = [
        {"type": "object", "properties": {"kind": {"const": name}, "a": {"$ref": "#"}}, "required": ["kind"]}
        for name in "stuvwxyz"
    ]
    check_values({"oneOf": [inner, *tagged, {"type": "integer"}]}, [*VALUES, {"kind": "list"}, {"a": {"kind": "x"}}])


def test_a_schema_that_is_its_own_condition() -> None:
    """What is unevaluated by a schema that refers to itself is decided; it used to fail with a KeyError."""
    schema = {"if": {"$ref": "#"}, "unevaluatedProperties": {"type": ["array"]}}
    check_accepted(schema, ["{}", '{"a":[]}', "3"], ['{"a":1}'])


def test_many_counts_of_few_kinds_of_elements() -> None:
    """Elements are counted in more than a few ways where most of the ways exclude each other."""
    kinds = [{"contains": {"const": index}} for index in range(7)]
    check_values(
        {"allOf": kinds, "maxItems": 7}, [[*range(7)], [6, 5, 4, 3, 2, 1, 0], [*range(6)], [*range(8)], [0] * 7]
    )


def test_too_many_counts_are_refused() -> None:
    """Things to count that all go together in one element are refused where there are many, and where is said."""
    schema = {"allOf": [{"contains": {"minLength": index, "pattern": "a"}} for index in range(6)]}
    with pytest.raises(UnsupportedGrammarError, match="counted") as caught:
        compile_grammar(Grammar.json_schema(schema), BYTES)
    assert caught.value.pointer.endswith("/contains")


def test_conjunctions_keep_their_order_of_members() -> None:
    """The same schemas joined in another order write the members in that order."""
    schemas = {"A": {"properties": {"a": True}}, "B": {"properties": {"b": True}}}
    first, second = {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}
    joined = [{"type": "object", "allOf": [first, second]}, {"type": "object", "allOf": [second, first]}]
    good, bad = '[{"a":1,"b":2},{"b":1,"a":2}]', '[{"a":1,"b":2},{"a":1,"b":2}]'
    check_accepted({"$defs": schemas, "prefixItems": joined}, [good], [bad])
