"""Schemas of every draft in their canonical form, and where their references lead."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from tests.constrained.shared_data import DATA, read_lines, unscored

from palmette.constrained import CompileLimits, GrammarError, GrammarLimitError, UnsupportedGrammarError
from palmette.constrained.json_document import Document

DRAFT = "http://json-schema.org/draft-0{}/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

_ONE = (
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("dependentSchemas", "patternProperties", "properties")


def document(schema: Any) -> Document:
    """The document of `schema`, its numbers read as compile_grammar reads them."""
    return Document(json.loads(json.dumps(schema), parse_float=Decimal), CompileLimits())


def start(schema: Any) -> Any:
    """The canonical form of the whole of `schema`."""
    read = document(schema)
    return read.schema(read.start)


def plain(read: Document) -> dict[str, Any]:
    """`read` as a schema of draft 2020-12, every subschema a definition, for a validator that knows no other draft."""
    names = {read.start: "0"}
    definitions: dict[str, Any] = {}
    todo = [read.start]

    def refer(pointer: str) -> dict[str, str]:
        if pointer not in names:
            names[pointer] = str(len(names))
            todo.append(pointer)
        return {"$ref": f"#/$defs/{names[pointer]}"}

    def spelled(keyword: str, value: Any) -> Any:
        if keyword in _ONE:
            return refer(value)
        if keyword in _LISTS:
            return [refer(pointer) for pointer in value]
        if keyword in _NAMED:
            return {name: refer(pointer) for name, pointer in value.items()}
        return refer(value)["$ref"] if keyword == "$ref" else _floats(value)

    while todo:
        pointer = todo.pop()
        schema = read.schema(pointer)
        definitions[names[pointer]] = (
            {keyword: spelled(keyword, value) for keyword, value in schema.items()}
            if isinstance(schema, Mapping)
            else schema
        )
    return {"$schema": DRAFT_2020, "$ref": "#/$defs/0", "$defs": definitions}


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _floats(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_floats(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def test_every_subschema_is_named_by_its_pointer() -> None:
    """Applicators hold pointers, escaped as RFC 6901 says, that lead to the canonical form of what stands there."""
    read = document({"properties": {"a/b": {"type": "string"}}, "items": False, "anyOf": [True, {"minLength": 2.0}]})
    assert read.schema("") == {
        "properties": {"a/b": "/properties/a~1b"},
        "items": "/items",
        "anyOf": ["/anyOf/0", "/anyOf/1"],
    }
    assert read.schema("/properties/a~1b") == {"type": ("string",)}
    assert read.schema("/items") is False
    assert read.schema("/anyOf/1") == {"minLength": 2}


def test_values_have_one_form() -> None:
    """Types are in one order, numbers exact, names each once; what says nothing is left out."""
    schema = {
        "type": ["null", "string", "object", "integer", "number"],
        "minimum": 0.1,
        "required": ["a", "b", "a"],
        "minLength": 0,
        "uniqueItems": False,
        "properties": {},
        "maxLength": 0,
        "title": "a title",
        "unheardOf": [1],
        "default": {"$ref": "#/nowhere"},
    }
    assert start(schema) == {
        "type": ("object", "string", "number", "null"),
        "minimum": Decimal("0.1"),
        "required": ["a", "b"],
        "maxLength": 0,
    }


def test_keywords_of_other_types_are_dropped() -> None:
    """What says nothing of the types that a schema allows is checked and left out, so that its denial is not asked."""
    schema = {"type": "string", "uniqueItems": True, "minimum": 1, "required": ["a"], "maxLength": 2, "not": {}}
    assert start(schema) == {"type": ("string",), "maxLength": 2, "not": "/not"}
    with pytest.raises(GrammarError):
        start({"type": "string", "minItems": "x"})


def test_const_is_an_enum_of_one_and_both_are_an_intersection() -> None:
    """`const` beside `enum` leaves what both list, by JSON equality: 1 is 1.0, and true is not 1."""
    assert start({"const": None}) == {"enum": [None]}
    assert start({"const": 1, "enum": [True, 1.0, "1"]}) == {"enum": [1]}
    assert start({"enum": [{"b": [1], "a": 2}, 3], "const": {"a": 2.0, "b": [1.0]}})["enum"] != []
    assert start({"const": 1, "enum": [True]}) == {"enum": []}


def test_names_of_members_are_no_keywords() -> None:
    """Members called `$ref`, `id`, `type` or `$schema` are members, and what `enum` holds is data."""
    schema = {"properties": {"$ref": {"type": "string"}, "id": {}, "$schema": {}}, "enum": [{"$ref": 1, "$id": "x"}]}
    assert list(start(schema)["properties"]) == ["$ref", "id", "$schema"]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"items": ["not", "a", "schema"]}, "/items/0"),
        ({"minLength": "3"}, "/minLength"),
        ({"minLength": -1}, "/minLength"),
        ({"minItems": 1.5}, "/minItems"),
        ({"maxItems": True}, "/maxItems"),
        ({"type": "strng"}, "/type"),
        ({"type": []}, "/type"),
        ({"required": "a"}, "/required"),
        ({"required": ["a", 1]}, "/required"),
        ({"$schema": DRAFT.format(4), "required": True}, "/required"),
        ({"pattern": 1}, "/pattern"),
        ({"format": {}}, "/format"),
        ({"enum": 1}, "/enum"),
        ({"allOf": []}, "/allOf"),
        ({"anyOf": {}}, "/anyOf"),
        ({"oneOf": [1]}, "/oneOf/0"),
        ({"not": None}, "/not"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"minimum": "1"}, "/minimum"),
        ({"uniqueItems": 1}, "/uniqueItems"),
        ({"$ref": 1}, "/$ref"),
        ({"$ref": "#/definitions/a"}, "/$ref"),
        ({"$ref": "#/a~2b", "a~2b": {}}, "/$ref"),
        ({"$ref": "#/allOf/00", "allOf": [{}]}, "/$ref"),
        ({"$ref": "#/title", "title": "t"}, "/$ref"),
        ({"$ref": "#name"}, "/$ref"),
        ({"dependencies": {"a": [1]}}, "/dependencies/a"),
        ({"dependentRequired": {"a": "b"}}, "/dependentRequired/a"),
        ({"prefixItems": [{}], "items": [{}]}, "/items"),
    ],
)
def test_malformed_values_are_told_apart_by_pointer(schema: dict[str, Any], pointer: str) -> None:
    """What no draft allows is an error at the keyword, not a constraint that is silently dropped."""
    with pytest.raises(GrammarError) as caught:
        start(schema)
    assert caught.value.pointer == pointer
    assert not isinstance(caught.value, UnsupportedGrammarError)


def test_a_document_is_an_object_or_a_boolean() -> None:
    """Booleans are schemas, at the root too; anything else is not."""
    assert start(True) is True
    with pytest.raises(GrammarError, match="object or a boolean"):
        document(["a"])


def test_numbers_with_huge_exponents_are_limited() -> None:
    """A number that would take as many digits as its exponent says is refused, in a moment."""
    for keyword in ("minimum", "maxLength"):
        with pytest.raises(GrammarLimitError):
            Document({keyword: Decimal("1e999999")}, CompileLimits()).schema("")


def test_old_forms() -> None:
    """Forms of older drafts are read wherever they can mean only one thing."""
    assert start({"minimum": 1, "exclusiveMinimum": True}) == {"exclusiveMinimum": Decimal(1)}
    assert start({"maximum": 1, "exclusiveMaximum": False}) == {"maximum": Decimal(1)}
    assert start({"items": [{}, True], "additionalItems": False}) == {
        "prefixItems": ["/items/0", "/items/1"],
        "items": "/additionalItems",
    }
    assert start({"items": {}, "additionalItems": False}) == {"items": "/items"}
    assert start({"dependencies": {"a": ["b"], "c": {}, "d": []}}) == {
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"c": "/dependencies/c"},
    }
    assert start({"properties": {"a": {"required": True}, "b": {"required": False}}})["required"] == ["a"]


def test_each_draft_has_its_own_keywords() -> None:
    """A keyword that a later draft brought means nothing under an earlier `$schema`, and the other way round."""
    later = {"const": 1, "if": {}, "then": {}, "contains": {}, "propertyNames": {}}
    assert start({"$schema": DRAFT.format(4), **later}) == {}
    assert start({"$schema": DRAFT.format(6), **later}).keys() == {"enum", "contains", "propertyNames"}
    assert start({"$schema": DRAFT.format(7), **later}).keys() == {"enum", "if", "then", "contains", "propertyNames"}
    assert start({"$schema": DRAFT.format(7), "contains": {}, "minContains": 2}) == {"contains": "/contains"}
    assert start({"$schema": DRAFT_2019, "prefixItems": [{}], "dependentRequired": {"a": ["b"]}}) == {
        "dependentRequired": {"a": ["b"]}
    }
    assert start({"$schema": "https://example.org/own", "const": 1}) == {"enum": [1]}


def test_draft_three() -> None:
    """Unions of types and schemas, `disallow`, `extends`, `divisibleBy` and boolean `required` of draft 3."""
    schema = {
        "$schema": DRAFT.format(3),
        "type": ["string", {"minimum": 1}],
        "disallow": "null",
        "extends": {"maxLength": 3},
        "divisibleBy": 2,
        "properties": {"a": {"type": "any", "required": True}},
        "dependencies": {"a": "b"},
    }
    validator = jsonschema.Draft202012Validator(plain(document(schema)))
    assert [validator.is_valid(value) for value in ("abc", 2, True, None, "abcd", 0, 3)] == 3 * [True] + 4 * [False]
    assert start({"$schema": DRAFT.format(3), "type": "any"}) == {}
    assert start(schema)["required"] == ["a"]
    assert start(schema)["dependentRequired"] == {"a": ["b"]}


def test_siblings_of_a_reference() -> None:
    """Up to draft 7 a `$ref` hides what stands beside it; later both hold."""
    schema = {"$ref": "#/definitions/a", "minLength": 1, "definitions": {"a": {}}}
    assert start({"$schema": DRAFT.format(7), **schema}) == {"$ref": "/definitions/a"}
    assert start(schema) == {"$ref": "/definitions/a", "minLength": 1}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ""),
        ("#/$defs/a~1b%25", "/$defs/a~1b%"),
        ("#/unheardOf/1/x", "/unheardOf/1/x"),
        ("#here", "/$defs/named"),
        ("other.json", "/$defs/other"),
        ("http://example.org/dir/other.json#/$defs/in", "/$defs/other/$defs/in"),
        ("other.json#inside", "/$defs/other/$defs/in"),
        ("urn:example:one", "/$defs/urn"),
        ("urn:example:one#inside", "/$defs/urn/$defs/in"),
    ],
)
def test_references(reference: str, target: str) -> None:
    """JSON pointers, percent escapes, anchors and URIs lead to one pointer, through unknown keywords too."""
    inner = {"in": {"$anchor": "inside"}}
    schema = {
        "$id": "http://example.org/dir/root.json",
        "$ref": reference,
        "$defs": {
            "a/b%": {},
            "named": {"$anchor": "here"},
            "other": {"$id": "other.json", "$defs": inner},
            "urn": {"$id": "urn:example:one", "$defs": inner},
        },
        "unheardOf": [0, {"x": {}}],
    }
    read = document(schema)
    assert read.schema("") == {"$ref": target}
    assert read.schema(target) is not False


def test_pointers_are_relative_to_the_resource_that_they_stand_in() -> None:
    """Inside a schema with an `$id`, ``#/`` is that schema; up to draft 4 the keyword is `id`."""
    for draft, keyword in ((DRAFT_2020, "$id"), (DRAFT.format(4), "id")):
        inner = {keyword: "inner", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {}}}
        read = document({"$schema": draft, "definitions": {"inner": inner, "x": {}}, "allOf": [{"$ref": "inner"}]})
        read.schema("")
        read.schema("/allOf/0")
        read.schema("/definitions/inner")
        assert read.schema("/definitions/inner/properties/a") == {"$ref": "/definitions/inner/definitions/x"}


def test_ids_that_are_no_keywords_move_nothing() -> None:
    """An `id` without a `$schema` does not change what ``#/`` means, but a reference may name it."""
    schema = {
        "definitions": {"x": {}, "y": {"id": "http://example.org/y", "$ref": "#/definitions/x"}},
        "$ref": "http://example.org/y",
    }
    read = document(schema)
    assert read.schema("") == {"$ref": "/definitions/y"}
    assert read.schema("/definitions/y") == {"$ref": "/definitions/x"}


def test_foreign_references_are_refused_by_name() -> None:
    """Another document is never fetched and never stands for anything; the meta-schemas are other documents."""
    for uri, what in (("http://example.org/a.json#/b", "another document"), (DRAFT.format(7), "meta-schema")):
        with pytest.raises(UnsupportedGrammarError, match=what) as caught:
            start({"properties": {}, "$ref": uri})
        assert caught.value.pointer == "/$ref"


def test_dynamic_references_follow_the_way_that_led_to_them() -> None:
    """A `$dynamicRef` means the outermost schema of its name: lists of numbers here, lists of strings there."""
    generic = {
        "$id": "list",
        "items": {"$dynamicRef": "#item"},
        "$defs": {"item": {"$dynamicAnchor": "item"}},
    }
    schema = {
        "$schema": DRAFT_2020,
        "$id": "http://example.org/root",
        "properties": {"numbers": {"$ref": "numbers"}, "strings": {"$ref": "strings"}, "any": {"$ref": "list"}},
        "$defs": {
            "list": generic,
            "numbers": {
                "$id": "numbers",
                "$ref": "list",
                "$defs": {"item": {"$dynamicAnchor": "item", "type": "number"}},
            },
            "strings": {
                "$id": "strings",
                "$ref": "list",
                "$defs": {"item": {"$dynamicAnchor": "item", "type": "string"}},
            },
        },
    }
    validator = jsonschema.Draft202012Validator(plain(document(schema)))
    assert validator.is_valid({"numbers": [1], "strings": ["a"], "any": [1, "a"]})
    assert not validator.is_valid({"numbers": ["a"]})
    assert not validator.is_valid({"strings": [1]})


def test_recursive_references() -> None:
    """A `$recursiveRef` means the outermost schema with a `$recursiveAnchor` where its own has one, else its own."""
    tree: dict[str, Any] = {"$id": "tree", "properties": {"child": {"$recursiveRef": "#"}}}
    for anchor, expected in ((True, False), (False, True)):
        schema = {
            "$schema": DRAFT_2019,
            "$id": "http://example.org/strict",
            "$recursiveAnchor": True,
            "$ref": "tree",
            "required": ["name"],
            "$defs": {"tree": {**tree, "$recursiveAnchor": anchor}},
        }
        validator = jsonschema.Draft202012Validator(plain(document(schema)))
        assert validator.is_valid({"name": 1, "child": {}}) is expected


def test_contains_evaluates_nothing_in_2019() -> None:
    """In 2019-09 `unevaluatedItems` looks past `contains`; in 2020-12 it does not."""
    schema = {"contains": {"const": 1}, "minContains": 1, "unevaluatedItems": False}
    for draft, expected in ((DRAFT_2019, False), (DRAFT_2020, True)):
        validator = jsonschema.Draft202012Validator(plain(document({"$schema": draft, **schema})))
        assert validator.is_valid([1]) is expected


def test_only_what_is_asked_for_is_read() -> None:
    """A definition that nothing refers to may hold anything, and a schema of 1 MB begins at once."""
    big = {"properties": {"a": {}}, "definitions": {str(n): {"type": "strng"} for n in range(60_000)}}
    root = json.loads(json.dumps(big))
    began = time.process_time()
    read = Document(root, CompileLimits())
    read.schema("/properties/a" if read.schema("") is False else "")
    assert time.process_time() - began < 0.15


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data is not at {DATA}")
def test_canonical_forms_mean_the_same() -> None:
    """Validators find the instances of the sample and of the test suite as their labels say, by the canonical form."""
    skipped = unscored()
    wrong: list[tuple[Any, ...]] = []
    for sample in read_lines("jsb_sample.jsonl")[::4]:
        try:
            validator = jsonschema.Draft202012Validator(plain(document(sample["schema"])))
        except UnsupportedGrammarError:
            continue
        labels = [(kind, n, value) for kind in ("valid", "invalid") for n, value in enumerate(sample[kind])]
        wrong += [
            (sample["id"], kind, n)
            for kind, n, value in labels
            if (kind == "valid" or (sample["id"], n) not in skipped) and validator.is_valid(value) != (kind == "valid")
        ]
    assert not wrong
    for group in read_lines("jsts_draft2020-12.jsonl"):
        if any(part in group["id"] for part in ("ecmascript-regex", "pattern", "optional/format", "vocabulary#0")):
            continue  # of which python-jsonschema knows less; an unknown `$schema` is read as that of 2020-12
        try:
            validator = jsonschema.Draft202012Validator(plain(document(group["schema"])))
        except UnsupportedGrammarError:
            continue
        wrong += [(group["id"], test) for test in group["tests"] if validator.is_valid(test["data"]) != test["valid"]]
    assert not wrong
