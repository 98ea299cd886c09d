"""What it means that a JSON Schema does not hold: one of its keywords does not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import combinations
from typing import Any, cast

from .json_document import Document
from .json_terms import (
    ANY_TYPE,
    ARRAY,
    OBJECT,
    Count,
    Keywords,
    Need,
    Term,
    Terms,
    fails,
    holds,
    only,
    types_of,
)
from .json_unevaluated import Decisions
from .json_values import json_key

Options = tuple[Terms, ...]


class Denials:
    """The ways in which schemas of one document fail, each a conjunction.

    Attributes:
        values: arrays and objects that something must differ from, by their `json_key`.
    """

    def __init__(self, document: Document) -> None:
        self.values: dict[Hashable, Any] = {}
        self._schema = document.schema
        self._options: dict[str, Options] = {}

    def options(self, pointer: str) -> Options:
        """The conjunctions of which one holds where the schema (no boolean) at `pointer` does not."""
        found = self._options.get(pointer)
        if found is None:
            schema = cast("Keywords", self._schema(pointer))
            found = tuple(option for keyword in schema for option in self._keyword(schema, keyword, pointer))
            self._options[pointer] = found
        return found

    def _keyword(self, schema: Keywords, keyword: str, pointer: str) -> Options:
        deny = _DENIALS.get(keyword)
        if deny is not None:
            return deny(schema, pointer)
        if keyword in _SIDE_KEYWORDS:
            return ()
        if keyword in ("unevaluatedProperties", "unevaluatedItems"):
            return ((Term("unevaluated", pointer, Decisions(keyword, is_denied=True)),),)
        return ((Term("denied", pointer, keyword),),)

    def different(self, key: Hashable) -> Options:
        """The ways in which a value differs from the array or object known by `key`."""
        value = self.values[key]
        return self._other_array(value) if isinstance(value, list) else self._other_object(value)

    def _differs(self, value: Any) -> Term:
        """`value` may be of any type."""
        key = json_key(value)
        self.values[key] = value
        return Term("differs", "", key)

    def _other_array(self, value: list[Any]) -> Options:
        length = len(value)
        options: list[Terms] = [(only(ANY_TYPE & ~ARRAY),), (only(ARRAY), Term("items", "", (length + 1, None)))]
        if length:
            options.append((only(ARRAY), Term("items", "", (0, length - 1))))
        for index, element in enumerate(value):
            terms: Terms = (self._differs(element),)
            options.append((only(ARRAY), Term("items", "", (index + 1, None)), Term("element", "", (index, terms))))
        return tuple(options)

    def _other_object(self, value: dict[str, Any]) -> Options:
        other = Need(frozenset(value), (), None, (), (), "")
        options: list[Terms] = [(only(ANY_TYPE & ~OBJECT),), (Term("some", "", other),)]
        for key, member in value.items():
            options.append((only(OBJECT), Term("absent", "", key)))
            options.append((Term("required", "", key), Term("member", "", (key, (self._differs(member),)))))
        return tuple(options)


_SIDE_KEYWORDS = frozenset(("then", "else", "minContains", "maxContains"))
"""Keywords that say nothing without another one, whose denial speaks for them."""


def _type(schema: Keywords, _: str) -> Options:
    left = ANY_TYPE & ~types_of(schema["type"])
    return ((only(left),),) if left else ()


def _reference(schema: Keywords, _: str) -> Options:
    return ((fails(schema["$ref"]),),)


def _all_of(schema: Keywords, _: str) -> Options:
    return tuple((fails(part),) for part in schema["allOf"])


def _any_of(schema: Keywords, _: str) -> Options:
    return (tuple(fails(part) for part in schema["anyOf"]),)


def _one_of(schema: Keywords, _: str) -> Options:
    none = tuple(fails(part) for part in schema["oneOf"])
    return (none, *((holds(first), holds(second)) for first, second in combinations(schema["oneOf"], 2)))


def _not(schema: Keywords, _: str) -> Options:
    return ((holds(schema["not"]),),)


def _if(schema: Keywords, _: str) -> Options:
    options: list[Terms] = []
    if "then" in schema:
        options.append((holds(schema["if"]), fails(schema["then"])))
    if "else" in schema:
        options.append((fails(schema["if"]), fails(schema["else"])))
    return tuple(options)


def _required(schema: Keywords, _: str) -> Options:
    return tuple((only(OBJECT), Term("absent", "", key)) for key in schema["required"])


def _dependent_required(schema: Keywords, _: str) -> Options:
    return tuple(
        (Term("required", "", key), Term("absent", "", other))
        for key, others in schema["dependentRequired"].items()
        for other in others
    )


def _dependent_schemas(schema: Keywords, _: str) -> Options:
    return tuple((Term("required", "", key), fails(part)) for key, part in schema["dependentSchemas"].items())


def _properties(schema: Keywords, _: str) -> Options:
    return tuple(
        (Term("required", "", key), Term("member", "", (key, (fails(part),))))
        for key, part in schema["properties"].items()
    )


def _pattern_properties(schema: Keywords, pointer: str) -> Options:
    where = f"{pointer}/patternProperties"
    return tuple(
        (Term("some", "", Need(frozenset(), (), pattern, (), (fails(part),), where)),)
        for pattern, part in schema["patternProperties"].items()
    )


def _additional_properties(schema: Keywords, pointer: str) -> Options:
    names = frozenset(schema.get("properties", ()))
    patterns = tuple(schema.get("patternProperties", ()))
    value = (fails(schema["additionalProperties"]),)
    return ((Term("some", "", Need(names, patterns, None, (), value, f"{pointer}/additionalProperties")),),)


def _property_names(schema: Keywords, pointer: str) -> Options:
    key = (fails(schema["propertyNames"]),)
    return ((Term("some", "", Need(frozenset(), (), None, key, (), f"{pointer}/propertyNames")),),)


def _prefix_items(schema: Keywords, _: str) -> Options:
    return tuple(
        (only(ARRAY), Term("items", "", (index + 1, None)), Term("element", "", (index, (fails(part),))))
        for index, part in enumerate(schema["prefixItems"])
    )


def _items(schema: Keywords, pointer: str) -> Options:
    start = len(schema.get("prefixItems", ()))
    count = Count(start, (fails(schema["items"]),), 1, None, f"{pointer}/items")
    return ((only(ARRAY), Term("contained", "", count)),)


def _contains(schema: Keywords, pointer: str) -> Options:
    terms: Terms = (holds(schema["contains"]),)
    low, high = schema.get("minContains", 1), schema.get("maxContains")
    where = f"{pointer}/contains"
    options: list[Terms] = []
    if low:
        options.append((only(ARRAY), Term("contained", "", Count(0, terms, 0, low - 1, where))))
    if high is not None:
        options.append((only(ARRAY), Term("contained", "", Count(0, terms, high + 1, None, where))))
    return tuple(options)


_DENIALS: Mapping[str, Callable[[Keywords, str], Options]] = {
    "type": _type,
    "$ref": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "required": _required,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "prefixItems": _prefix_items,
    "items": _items,
    "contains": _contains,
}
