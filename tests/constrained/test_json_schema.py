"""JSON Schema: what is accepted, what is refused and how."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.constrained.reference import BYTES, accepts, walk

from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    compile_grammar,
)


def check(schema: Any, good: list[str], bad: list[str]) -> None:
    """All of `good` and none of `bad` are accepted."""
    compiled = compile_grammar(Grammar.json_schema(schema), BYTES)
    assert [text for text in good if not accepts(compiled, text)] == []
    assert [text for text in bad if accepts(compiled, text)] == []


OPTIONAL = {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        pytest.param(
            {"type": "object", "properties": OPTIONAL, "additionalProperties": False},
            ["{}", '{"a":1}', '{"b":2}', '{"a":1,"c":3}', '{"a": 1, "b": 2, "c": 3}'],
            ['{,"b":2}', '{"a":1,}', '{"b":2,"a":1}', '{"a":1,"a":1}', '{"d":1}', '{"a":1 }', '{"a" :1}', '{"a":  1}'],
            id="optional members in order, without stray commas, with at most one space",
        ),
        pytest.param(
            {"type": "object", "properties": {"ab": {"type": "integer"}, "ac": {}}, "required": ["ab"]},
            ['{"ab":1}', '{"ab":1,"ac":[],"a":1,"abc":null,"":{},"é":1}', '{"ab":1,"\\n":0}'],
            ['{"ab":1,"ab":"x"}', '{"ab":1,"\\u0061b":"x"}', '{"zz":1,"ab":1}', '{"ab":"x"}'],
            id="an open object's other keys are none of the declared ones, in no spelling",
        ),
        pytest.param(
            {"type": "object", "required": ["x", 'q"'], "additionalProperties": {"type": "null"}},
            ['{"x":null,"q\\"":null}', '{"x":null,"q\\"":null,"y":null}'],
            ['{"x":null}', '{"x":1,"q\\"":null}', '{"x":null,"q\\"":null,"x":null}'],
            id="required names may be undeclared",
        ),
        pytest.param(
            {"properties": {"a": {"type": "integer"}, "b": False}, "required": ["a"]},
            ['{"a":1}', "3", '"x"', "[]", "null", '{"a":1,"c":2}'],
            ['{"a":"x"}', "{}", '{"a":1,"b":1}'],
            id="keywords apply to their own type only; a false member is never offered",
        ),
        pytest.param(
            {
                "type": "array",
                "prefixItems": [{"const": 1}, {"type": "string"}],
                "items": {"type": "null"},
                "maxItems": 3,
            },
            ["[]", "[1]", '[1,"a"]', '[1, "a", null]'],
            ['["a"]', "[1,1]", '[1,"a",null,null]', "[1,]"],
            id="prefixItems may stop early",
        ),
        pytest.param(
            {"type": "array", "prefixItems": [True, True], "items": False, "minItems": 2},
            ["[1,2]"],
            ["[1]", "[1,2,3]"],
            id="a closed tuple",
        ),
        pytest.param(
            {"type": "string", "minLength": 2, "maxLength": 3},
            ['"日本"', '"😀😀"', '"a\\"b"', '"\\ud83d\\ude00\\u00e9"', '"\\/\\b"', '"a\x7fb"'],
            ['"日"', '"abcd"', '"a\nb"', '"\\ud83d"', '"\\x41\\x41"', '"\\ude00\\ud83d"', '"ab'],
            id="lengths count characters, however they are spelled",
        ),
        pytest.param(
            {"type": "string", "pattern": "^ab|cd$"},
            ['"ab"', '"abzz"', '"zzcd"', '"\\u0061b"'],
            ['"zz"', '"zab"', '"cdz"'],
            id="pattern is a search, and anchors bind to their own branch",
        ),
        pytest.param(
            {"type": "string", "pattern": '^[^a]"\\/\\u00e9\\d$'},
            ['"\\\\\\"/é5"', '"b\\"\\/\\u00E95"', '"\\n\\"/é0"'],
            ['"a\\"/é5"', '"b\\"/é٣"', '"b"/é5"'],
            id="pattern speaks of characters; escapes are the grammar's",
        ),
        pytest.param(
            {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 4}, ['"ABCD"'], ['"ABCDE"', '""', '"abc"'], id="run"
        ),
        pytest.param(
            {"enum": ['a"b', None, 1.0, 1, {"k": [1, {}]}, True], "type": ["string", "object", "integer", "null"]},
            ['"a\\"b"', "null", "1", '{"k": [1, {}]}'],
            ["true", "1.00", '"a"', "{}"],
            id="enum members in canonical spelling, filtered by type",
        ),
        pytest.param({"const": {"a": 1.5, "b": [False]}}, ['{"a":1.5,"b":[false]}'], ['{"a":1.5}'], id="nested const"),
        pytest.param({"enum": [1, 5, 10, "five"], "minimum": 5}, ["5", "10", '"five"'], ["1"], id="enum with bounds"),
        pytest.param({"enum": [1, 2, True], "const": 1.0}, ["1"], ["2", "true"], id="enum and const by JSON equality"),
        pytest.param(
            True, ["1", '{"a":[{}, ""]}', "[[[]]]", "-1.5e3"], ["", "[", "nul", "{1:2}", "[1 ,2]"], id="anything"
        ),
        pytest.param(
            {"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}},
            ['"ab"'],
            ['"abc"', "1"],
            id="$ref",
        ),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/$defs/s", "maxLength": 2}
            | {"$defs": {"s": {"type": "string"}}},
            ['"abc"'],
            ["1"],
            id="up to draft 7, siblings of $ref are ignored",
        ),
        pytest.param(
            {"allOf": [{"properties": {"a": {"minimum": 3}}}, {"required": ["a"]}], "type": "object"}
            | {"properties": {"a": {"type": "integer", "maximum": 5}}},
            ['{"a":3}', '{"a":5,"b":1}'],
            ['{"a":2}', '{"a":6}', "{}", "[]", '{"a":"x"}'],
            id="allOf and its siblings",
        ),
        pytest.param(
            {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "lives": {"type": "integer"}}}
            | {"additionalProperties": False, "anyOf": [{"required": ["kind"]}, {"required": ["lives"]}]},
            ['{"kind":"cat"}', '{"lives":9}', '{"kind":"dog","lives":1}'],
            ["{}", '{"kind":"cow"}', "[1,2]", '{"kind":"cat","x":1}'],
            id="anyOf and its siblings",
        ),
        pytest.param(
            {"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}]},
            ["1", '"a"', "null"],
            ["true"],
            id="oneOf by type",
        ),
        pytest.param({"type": "array", "uniqueItems": False, "minItems": 1}, ["[1]"], ["[]"], id="harmless values"),
        pytest.param({"type": "string", "uniqueItems": True}, ['"a"'], ["[]"], id="keywords of other types"),
        pytest.param(
            {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a~1b%25"}]}}},
            ["null"],
            ["1"],
            id="escaped pointers, and an alias of itself that adds nothing",
        ),
        pytest.param({"x-hint": 2, "title": "t", "type": "null"}, ["null"], ["1"], id="annotations"),
    ],
)
def test_accepts(schema: Any, good: list[str], bad: list[str]) -> None:
    """The accepted texts are the spec's, in the spellings that json_text.py documents."""
    check(schema, good, bad)


def test_recursion() -> None:
    """A definition that reaches itself is a recursive rule."""
    tree = {"type": "object", "properties": {"n": {"type": "string"}, "sub": {"type": "array", "items": {"$ref": "#"}}}}
    schema = {**tree, "required": ["n"], "additionalProperties": False}
    check(schema, ['{"n":"a","sub":[{"n":"b","sub":[{"n":"c"}]},{"n":"d"}]}'], ['{"n":"a","sub":[{"m":"b"}]}'])


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"$ref": "https://example.org/x"}, "https://example.org/x", "/$ref"),
        ({"type": "string", "pattern": r"^(a)\1$"}, "backreference", "/pattern"),
        ({"type": "array", "not": {"uniqueItems": True}}, "uniqueItems", "/not/uniqueItems"),
    ],
)
def test_refused_by_name(schema: Any, keyword: str, pointer: str) -> None:
    """What is not supported is refused with the keyword and its JSON pointer; nothing is ignored in silence."""
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_grammar(Grammar.json_schema(schema), BYTES)
    assert keyword in str(caught.value)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "text"}, "/type"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a": 3}}, "/properties/a"),
        ({"required": "a"}, "/required"),
        ({"required": [1]}, "/required"),
        ({"enum": 1}, "/enum"),
        ({"anyOf": []}, "/anyOf"),
        ({"anyOf": {}}, "/anyOf"),
        ({"minLength": -1}, "/minLength"),
        ({"maxItems": "3"}, "/maxItems"),
        ({"minimum": "3"}, "/minimum"),
        ({"pattern": 3}, "/pattern"),
        ({"type": "string", "pattern": "("}, "/pattern"),
        ({"$ref": "#/$defs/gone"}, "/$ref"),
        ({"$ref": 3}, "/$ref"),
        ({"$ref": "#"}, ""),
    ],
)
def test_illegal_schemas(schema: Any, pointer: str) -> None:
    """A value that a keyword cannot have is an error that says where it is."""
    with pytest.raises(GrammarError) as caught:
        compile_grammar(Grammar.json_schema(schema), BYTES)
    assert type(caught.value) is GrammarError
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (False, ""),
        (
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 4}}, "required": ["n"]},
            "/properties/n",
        ),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, ""),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        ({"type": "array", "minItems": 1, "items": False}, ""),
        ({"enum": []}, ""),
        ({"enum": ["a"], "type": "integer"}, ""),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, ""),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}, ""),
    ],
)
def test_unsatisfiable(schema: Any, pointer: str) -> None:
    """A schema that no JSON validates against is refused when it is compiled, with where the contradiction is."""
    with pytest.raises(UnsatisfiableGrammarError) as caught:
        compile_grammar(Grammar.json_schema(schema), BYTES)
    assert caught.value.pointer in (pointer, "/items")


def test_limits() -> None:
    """Schemas that are too large or too deep end with an error that names the limit."""
    schema = {"properties": {f"key{number}": {} for number in range(100)}, "type": "object"}
    with pytest.raises(GrammarLimitError, match="rules"):
        compile_grammar(Grammar.json_schema(schema), BYTES, limits=CompileLimits(rules=50))
    with pytest.raises(GrammarLimitError, match="seconds"):
        compile_grammar(Grammar.json_schema({"anyOf": [{}] * 1000}), BYTES, limits=CompileLimits(seconds=0))
    with pytest.raises(GrammarLimitError, match="nested"):
        compile_grammar(Grammar("json_schema", '{"items":' * 100_000 + "{}" + "}" * 100_000), BYTES)
    with pytest.raises(GrammarLimitError, match="min_repeat"):
        compile_grammar(Grammar.json_schema({"type": "string", "minLength": 1_000_000}), BYTES)
    with pytest.raises(GrammarLimitError, match="digits"):
        compile_grammar(Grammar("json_schema", '{"minimum":1e999999999}'), BYTES)
    with pytest.raises(GrammarLimitError, match="digits"):
        compile_grammar(Grammar("json_schema", '{"maxLength":1e999999999}'), BYTES)


def test_huge_listed_numbers_keep_their_spelling() -> None:
    """A listed number that no float holds is written as it stands, and nothing hangs on its size."""
    compiled = compile_grammar(Grammar("json_schema", '{"enum":[1e999999999, 12345678901234567890]}'), BYTES)
    assert accepts(compiled, "1E+999999999")
    assert accepts(compiled, "12345678901234567890")


def test_keys_with_lone_surrogates_are_escaped() -> None:
    """A key that UTF-8 cannot hold is written with its escape, not changed."""
    compiled = compile_grammar(Grammar.json_schema({"const": {"\ud800": 1}}), BYTES)
    assert accepts(compiled, '{"\\ud800":1}')


def test_not_json() -> None:
    """A hand-made grammar whose source is no JSON is an error, not a crash."""
    for source in ("{", "NaN", '{"minimum": Infinity}'):
        with pytest.raises(GrammarError, match="not JSON"):
            compile_grammar(Grammar("json_schema", source), BYTES)


def test_large_bounds_are_counted_not_unrolled() -> None:
    """Strings of 300 in lists of 100 in lists of 100 take hardly more positions than short ones."""

    def schema(bound: int) -> dict[str, Any]:
        words = {"type": "array", "items": {"type": "string", "maxLength": 3 * bound}, "maxItems": bound}
        return {"type": "array", "items": words, "maxItems": bound}

    few = CompileLimits(positions=400)
    for bound in (3, 1000):
        compiled = compile_grammar(Grammar.json_schema(schema(bound)), BYTES, limits=few)
        assert accepts(compiled, json.dumps([["x" * 9] * 3] * 3))
        assert not accepts(compiled, json.dumps([["x" * (3 * bound + 1)]]))


class Colour(Enum):
    """An enum member of the model below."""

    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    """One kind of a tagged union."""

    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    """The other kind of a tagged union."""

    kind: Literal["dog"]
    name: str | None = None


class Owner(BaseModel):
    """What Pydantic makes of a usual model: $defs, anyOf with null, oneOf with a discriminator, tuples, mappings."""

    name: Annotated[str, Field(min_length=1, max_length=20)]
    colour: Colour
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    place: tuple[float, float] | None = None
    scores: dict[str, int] = {}
    friend: Owner | None = None


def test_pydantic_models() -> None:
    """Walks under a model's schema, ended in the shortest way, are instances of the model."""
    compiled = compile_grammar(Grammar.json_schema(Owner), BYTES)
    pets = [{"kind": "cat", "lives": 9}, {"kind": "dog", "name": None}]
    text = {"name": "Ada", "colour": "red", "pets": pets, "place": [1.5, 2], "scores": {"x": 1}}
    assert accepts(compiled, json.dumps(text))
    assert not accepts(compiled, json.dumps({**text, "pets": [{"kind": "cat", "name": None}]}))
    for seed in range(20):
        state, written = walk(compiled, lambda allowed, seed=seed: allowed[(seed * 7919) % len(allowed)], 30)  # type: ignore[misc]  # a bound default
        ending = bytes(compiled.shortest_ending(state))
        Owner.model_validate_json(written + ending)
