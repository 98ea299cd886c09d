"""msgspec's types on the OpenAPI page."""

from __future__ import annotations

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
    """The responses of a route that streams events."""
    schema = {**schema_of(Event), "description": "The data of each server-sent event."}
    return {200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": schema}}}}


def schema_of(wire_type: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without references: none of the types on the wire holds itself."""
    schema = msgspec.json.schema(wire_type)
    whole = _inlined(schema, schema.get("$defs", {}))
    assert isinstance(whole, dict)
    return whole


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items() if key not in ("$defs", "discriminator")}
