"""What is surely true of all values of a schema, cheap to know: to leave out options that cannot be."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, cast

from .json_document import Document
from .json_terms import ANY_TYPE, OBJECT, Keywords, type_bit, types_of
from .json_values import json_key

Listed = dict[Hashable, Any]
"""Values by their `json_key`."""

_MAX_DEPTH = 20


@dataclass(slots=True)
class Summary:
    """Bounds from above on the values of a schema.

    Attributes:
        types: the types that they may have.
        values: the only ones that there may be; None where nothing is listed.
        required: keys that all of its objects have.
        tags: the only values of the members of some keys, which need not be required.
        closed: the only keys that its objects may have; None where others may be.
    """

    types: int = ANY_TYPE
    values: Listed | None = None
    required: set[str] = field(default_factory=set)
    tags: dict[str, Listed] = field(default_factory=dict)
    closed: set[str] | None = None

    def meet(self, other: Summary) -> None:
        """Both hold."""
        self.types &= other.types
        self.values = both(self.values, other.values)
        self.required |= other.required
        for key, values in other.tags.items():
            self.tags[key] = cast("Listed", both(self.tags.get(key), values))
        if other.closed is not None:
            self.closed = other.closed if self.closed is None else self.closed & other.closed


def both(first: Listed | None, second: Listed | None) -> Listed | None:
    """Values of both lists, None being all values."""
    if first is None or second is None:
        return second if first is None else first
    return {key: value for key, value in first.items() if key in second}


def are_disjoint(first: Summary, second: Summary, types: int) -> bool:
    """Whether surely no value of one of `types` is of both."""
    common = first.types & second.types & types
    if not common:
        return True
    if first.values is not None and second.values is not None:
        return first.values.keys().isdisjoint(second.values)
    if common != OBJECT:
        return False
    for one, other in ((first, second), (second, first)):
        if other.closed is not None and not one.required <= other.closed:
            return True
    required = first.required | second.required
    return any(
        key in required and key in second.tags and values.keys().isdisjoint(second.tags[key])
        for key, values in first.tags.items()
    )


class Summaries:
    """Summaries of the schemas of one document."""

    def __init__(self, document: Document) -> None:
        self._schema = document.schema
        self._known: dict[str, Summary] = {}
        self._listed: dict[str, Listed | None] = {}
        self._depth = 0

    def of(self, pointer: str) -> Summary:
        """The summary of the schema at `pointer`."""
        known = self._known.get(pointer)
        if known is not None:
            return known
        schema = self._schema(pointer)
        if isinstance(schema, bool):
            known = self._known[pointer] = Summary(types=ANY_TYPE if schema else 0)
            return known
        if self._depth > _MAX_DEPTH:
            return Summary()
        self._known[pointer] = Summary()  # for schemas that refer to themselves
        self._depth += 1
        known = self._make(cast("Keywords", schema))
        self._depth -= 1
        self._known[pointer] = known
        return known

    def _make(self, schema: Keywords) -> Summary:
        found = Summary()
        if "type" in schema:
            found.types = types_of(schema["type"])
        if "enum" in schema:
            listed = {json_key(value): value for value in schema["enum"] if type_bit(value) & found.types}
            found.values = listed
            mask = 0
            for value in listed.values():
                mask |= type_bit(value)
            found.types &= mask
        if found.types & OBJECT:
            self._members(found, schema)
        for inner in (*([schema["$ref"]] if "$ref" in schema else ()), *schema.get("allOf", ())):
            found.meet(self.of(inner))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                found.meet(_union([self.of(option) for option in schema[keyword]]))
        return found

    def _members(self, found: Summary, schema: Keywords) -> None:
        properties = schema.get("properties", {})
        if "additionalProperties" in schema and self._schema(schema["additionalProperties"]) is False:
            found.closed = set(properties) if "patternProperties" not in schema else None
        found.required.update(schema.get("required", ()))
        for key, inner in properties.items():
            values = self.listed(inner)
            if values is not None:
                found.tags[key] = values

    def listed(self, pointer: str) -> Listed | None:
        """The only values of the schema at `pointer`, past plain references; None where none are listed."""
        start = pointer
        if start in self._listed:
            return self._listed[start]
        for _ in range(_MAX_DEPTH):
            schema = self._schema(pointer)
            if isinstance(schema, bool):
                break
            if "enum" in schema:
                found = {json_key(value): value for value in schema["enum"]}
                self._listed[start] = found
                return found
            if "$ref" not in schema:
                break
            pointer = schema["$ref"]
        self._listed[start] = None
        return None


def _union(options: list[Summary]) -> Summary:
    if len(options) == 1:
        return options[0]
    found = Summary(types=0)
    for option in options:
        found.types |= option.types
    if all(option.values is not None for option in options):
        found.values = {key: value for option in options for key, value in (option.values or {}).items()}
    if options and all(option.types == OBJECT for option in options):
        found.required = set.intersection(*(option.required for option in options))
        for key in options[0].tags:
            if all(key in option.tags for option in options):
                found.tags[key] = {name: value for option in options for name, value in option.tags[key].items()}
    return found
