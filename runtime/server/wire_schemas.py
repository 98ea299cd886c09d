"""msgspec's types on the OpenAPI page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palmette.runtime.program import Event


def json_body(body_type: Any, examples: Sequence[Any]) -> dict[str, Any]:
    """The request body of a route that decodes it as `body_type`: what goes into `openapi_extra`."""
    named = {f"example {place + 1}": {"value": example} for place, example in enumerate(examples)}
    content = {"schema": schema_of(body_type), "examples": named}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


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
