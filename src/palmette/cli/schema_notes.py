"""What a JSON Schema says that its grammar does not hold a text to, or holds it to by more than its looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palmette.constrained.json_drafts import INNER_SCHEMAS, NAMED_SCHEMAS
from palmette.constrained.json_formats import FORMATS

_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$vocabulary",
    ]
)
_OTHER_KEYWORDS = frozenset(
    [
        "$schema",
        "$id",
        "id",
        "$ref",
        "$anchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "divisibleBy",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minItems",
        "maxItems",
        "minContains",
        "maxContains",
        "uniqueItems",
        "required",
        "minProperties",
        "maxProperties",
        "dependentRequired",
    ]
)
_MEANT = INNER_SCHEMAS | NAMED_SCHEMAS | _OTHER_KEYWORDS
_FEW = 4


def notes_on(schema: Any) -> list[str]:
    """Formats that are enforced or unknown, and keywords that say nothing, each with where it stands."""
    found: dict[str, list[str]] = {}
    for pointer, inner in _schemas(schema):
        for keyword, value in inner.items():
            note = _note(keyword, value)
            if note is not None:
                found.setdefault(note, []).append(pointer or "/")
    return [f"{note}: {_places(places)}" for note, places in found.items()]


def _note(keyword: str, value: Any) -> str | None:
    if keyword == "format" and isinstance(value, str):
        return f"format {value!r} is enforced" if _is_enforced(value) else f"format {value!r} is unknown and ignored"
    if keyword in _ANNOTATIONS:
        return f"{keyword} is an annotation"
    return None if keyword in _MEANT else f"keyword {keyword!r} is unknown and ignored"


def _is_enforced(name: str) -> bool:
    return name in FORMATS or name == "regex"  # the only one that is not regular itself


def _places(pointers: list[str]) -> str:
    shown = ", ".join(pointers[:_FEW])
    return shown if len(pointers) <= _FEW else f"{shown} and {len(pointers) - _FEW} more"


def _schemas(root: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All schemas with their pointers, in the order of the text; booleans left out."""
    stack = [("", root)]
    while stack:
        pointer, schema = stack.pop()
        if not isinstance(schema, Mapping):
            continue
        yield pointer, schema
        stack += reversed(list(_inner(pointer, schema)))


def _inner(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        here = f"{pointer}/{keyword}"
        if keyword in NAMED_SCHEMAS and isinstance(value, Mapping):
            for name, inner in value.items():
                yield f"{here}/{name.replace('~', '~0').replace('/', '~1')}", inner
        elif keyword in INNER_SCHEMAS and isinstance(value, list):
            for place, inner in enumerate(value):
                yield f"{here}/{place}", inner
        elif keyword in INNER_SCHEMAS:
            yield here, value
