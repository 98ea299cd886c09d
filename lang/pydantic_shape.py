"""Pydantic models as shapes. They are known by their methods: Pydantic is never imported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from .shapes import Defined, Definitions, Schema

_ONE = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_KEYED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def pydantic_shape(base: Any) -> PydanticShape | None:
    """The shape of a model class or a `TypeAdapter`; None for anything else."""
    if isinstance(base, type) and hasattr(base, "model_json_schema") and hasattr(base, "model_validate_json"):
        return PydanticShape(base, base.__name__, base.model_json_schema, base.model_validate_json)
    if not isinstance(base, type) and hasattr(base, "json_schema") and hasattr(base, "validate_json"):
        return PydanticShape(id(base), "answer", base.json_schema, base.validate_json)
    return None


@dataclass(frozen=True, slots=True)
class PydanticShape(Defined):
    """What Pydantic validates; its schema keeps its own `$defs` below its own name."""

    source: Hashable
    name: str
    json_schema: Callable[..., Schema]
    validate_json: Callable[[str], Any]

    def definition(self, name: str, definitions: Definitions) -> Schema:
        return closed(self.json_schema(ref_template=f"#/$defs/{name}/$defs/{{model}}"))

    def read(self, value: Any, where: str) -> Any:
        try:
            return self.validate_json(json.dumps(value))
        except ValueError as error:
            raise ValueError(_pydantic_message(error, where)) from error


def _pydantic_message(error: ValueError, where: str) -> str:
    """What Pydantic found, each with its place; its own text has a web address in every paragraph."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{where}: {error}"
    return "; ".join(f"{where}{''.join(f'[{step!r}]' for step in found['loc'])}: {found['msg']}" for found in errors())


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of `schema` in which ``additionalProperties`` is false in objects with `properties` that do not say.

    Without it a model may add members of any name. A type that wants them says so: Pydantic writes
    ``additionalProperties: true`` for ``extra="allow"``.
    """
    copied = copy.deepcopy(schema)
    todo: list[Any] = [copied]
    while todo:
        here = todo.pop()
        if not isinstance(here, dict):
            continue
        todo.extend(_subschemas(here))
        if here.get("type") == "object" and "properties" in here:
            here.setdefault("additionalProperties", False)
    return copied


def _subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas right inside; not the values of `const`, `enum`, `default` and `examples`, which are data."""
    yield from (schema[keyword] for keyword in _ONE if keyword in schema)
    yield from (option for keyword in _LISTED for option in schema.get(keyword, ()))
    yield from (member for keyword in _KEYED for member in schema.get(keyword, {}).values())
