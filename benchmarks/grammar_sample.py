"""Schemas with instances, from files of three shapes, and how instances are written.

- samples: ``{"id", "split", "schema", "valid": [...], "invalid": [...]}``
- JSON-Schema-Test-Suite groups: ``{"id", "keyword", "schema", "tests": [{"data", "valid"}]}``
- handmade cases: ``{"key", "schema", "cases": [{"text", "accept"}]}``, whose texts are taken as they are
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPELLINGS = ("compact", "default", "indented")
"""Without spaces; as `json.dumps` writes by default, ASCII only; with line breaks and two spaces."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and its instances. Instances of handmade cases are texts, in one spelling."""

    id: str
    split: str
    schema: Any
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]
    format_only: tuple[Any, ...] = ()
    are_texts: bool = False

    def spelled(self, instance: Any, spelling: str) -> str:
        """An instance as text."""
        return str(instance) if self.are_texts else spelled(instance, spelling)


def spelled(instance: Any, spelling: str) -> str:
    """JSON text of a value, in one of `SPELLINGS`."""
    if spelling == "default":
        return json.dumps(instance)
    if spelling == "indented":
        text = json.dumps(instance, indent=2, ensure_ascii=False)
    else:
        text = json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        return json.dumps(instance, separators=(",", ":"))
    return text


def read_cases(path: Path, splits: Sequence[str] = (), limit: int | None = None) -> list[Case]:
    """The cases of a file without the instances that its label notes strike out.

    Args:
        splits: only these; all where there are none.
        limit: at most so many, taken at even distances.
    """
    notes = _notes(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    cases = [_case(json.loads(line), notes) for line in lines if line.strip()]
    cases = [case for case in cases if not splits or case.split in splits]
    if limit is None or limit >= len(cases):
        return cases
    return [cases[place * len(cases) // limit] for place in range(limit)]


def _notes(path: Path) -> dict[str, set[tuple[str, int]]]:
    """Places of invalid instances that are so by `format` only, or only by their label."""
    notes = path.with_name("label_notes.json")
    known = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else {}
    return {
        name: {(schema_id, place) for schema_id, place in known.get(name, ())}
        for name in ("format_only", "jsonschema_says_valid")
    }


def _case(line: dict[str, Any], notes: dict[str, set[tuple[str, int]]]) -> Case:
    if "tests" in line:
        valid = tuple(test["data"] for test in line["tests"] if test["valid"])
        invalid = tuple(test["data"] for test in line["tests"] if not test["valid"])
        return Case(line["id"], line["keyword"], line["schema"], valid, invalid)
    if "cases" in line:
        valid = tuple(case["text"] for case in line["cases"] if case["accept"])
        invalid = tuple(case["text"] for case in line["cases"] if not case["accept"])
        return Case(line["key"], "handmade", line["schema"], valid, invalid, are_texts=True)
    places = [(line["id"], place) for place in range(len(line["invalid"]))]
    formats = tuple(line["invalid"][place[1]] for place in places if place in notes["format_only"])
    struck = notes["format_only"] | notes["jsonschema_says_valid"]
    invalid = tuple(line["invalid"][place[1]] for place in places if place not in struck)
    return Case(line["id"], line.get("split", "all"), line["schema"], tuple(line["valid"]), invalid, formats)


def in_schema_order(instance: Any, schema: Any) -> Any:
    """`instance` with the members of its objects in the order in which the schema names them, others behind.

    What a schema says of a place is looked for through references and all combinations of schemas, so several may name
    an object's members; the first to name one decides.
    """
    return _ordered(instance, [schema], schema, 0)


_COMBINED = ("allOf", "anyOf", "oneOf")
_DEEPEST = 200


def _ordered(instance: Any, schemas: list[Any], root: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return instance
    said = list(_all_said(schemas, root))
    if isinstance(instance, list):
        return [_ordered(item, _of_item(said, place), root, depth + 1) for place, item in enumerate(instance)]
    if not isinstance(instance, dict):
        return instance
    named = dict.fromkeys(key for schema in said for key in schema.get("properties") or ())
    keys = [key for key in named if key in instance] + [key for key in instance if key not in named]
    return {key: _ordered(instance[key], _of_member(said, key), root, depth + 1) for key in keys}


def _all_said(schemas: list[Any], root: Any) -> Iterator[dict[str, Any]]:
    """All schemas that speak of the same place."""
    waiting, seen = list(reversed(schemas)), set()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        more = [schema.get(key) for key in ("then", "else")]
        more += [each for key in _COMBINED for each in schema.get(key) or () if isinstance(schema.get(key), list)]
        if isinstance(schema.get("$ref"), str):
            more.append(_referred(schema["$ref"], root))
        waiting.extend(reversed(more))


def _referred(reference: str, root: Any) -> Any:
    """What a JSON pointer into the same schema names; None for other references."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference.lstrip("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict):
            found = found.get(key)
        else:
            return None
    return found


def _of_item(said: list[dict[str, Any]], place: int) -> list[Any]:
    found = []
    for schema in said:
        for key in ("prefixItems", "items"):
            items = schema.get(key)
            if isinstance(items, list):
                found += items[place : place + 1]
            else:
                found.append(items)
        found.append(schema.get("additionalItems"))
    return found


def _of_member(said: list[dict[str, Any]], key: str) -> list[Any]:
    found = []
    for schema in said:
        properties = schema.get("properties")
        if isinstance(properties, dict) and key in properties:
            found.append(properties[key])
        elif isinstance(patterns := schema.get("patternProperties"), dict):
            found += patterns.values()
        found.append(schema.get("additionalProperties"))
    return found
