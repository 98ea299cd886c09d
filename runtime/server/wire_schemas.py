"""msgspec's types on the OpenAPI page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palmette.runtime.program import Event


def json_body(body_type: Any, examples: Sequence[Any]) -> dict[str, Any]:
    """The request body of a route that decodes it as `body_type`: what goes into `openapi_extra`.

    The examples are JSON in strings, as FastAPI drops every null from its page; `read_examples` makes them values.
    """
    texts = [msgspec.json.encode(example).decode() for example in examples]
    named = {f"example {place + 1}": {"value": text} for place, text in enumerate(texts)}
    content = {"schema": schema_of(body_type), "examples": named}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def read_examples(page: Mapping[str, Any]) -> None:
    """Make the examples of `json_body` values on a page that FastAPI has made."""
    for operations in page["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                if isinstance(example["value"], str):
                    example["value"] = msgspec.json.decode(example["value"])


def event_responses() -> dict[int | str, dict[str, Any]]:
    """The responses of a route that streams events. `x-event-data` is of what each holds, which OpenAPI cannot say."""
    return {
        200: {"description": "Server-sent events", "content": {"text/event-stream": {"x-event-data": schema_of(Event)}}}
    }


def schema_of(wire_type: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without references: none of the types on the wire holds itself."""
    schema = msgspec.json.schema(wire_type)
    whole = _described(_inlined(schema, schema.get("$defs", {})))
    assert isinstance(whole, dict)
    return whole


def said_of_attributes(docstring: str) -> dict[str, str]:
    """What a docstring says of each attribute."""
    text = inspect.cleandoc(docstring).partition("Attributes:\n")[2].partition("\n\nRaises:")[0]
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", said) for names, said in entries for name in names.split(", ")}


def _described(schema: Any) -> Any:
    """The schema with what docstrings say of attributes where the attributes are."""
    if isinstance(schema, list):
        return [_described(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _described(value) for key, value in schema.items()}
    said = found.get("description")
    if isinstance(said, str) and isinstance(found.get("properties"), dict):
        found["description"] = re.split(r"\n\n(?:Attributes|Raises|Args):", inspect.cleandoc(said))[0]
        for name, text in said_of_attributes(said).items():
            if isinstance(found["properties"].get(name), dict):
                found["properties"][name].setdefault("description", text)
    return found


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items() if key not in ("$defs", "discriminator")}
