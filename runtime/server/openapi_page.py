"""The OpenAPI page: what FastAPI makes of the routes, with the errors and the answers that these really give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palmette.runtime.server_settings import ServerSettings

from .answer_examples import ANSWERS
from .wire_schemas import read_examples

_ERRORS = {
    400: "The request cannot be; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "A web page of another site, which may not call this server.",
    404: "Nothing of this model, id or address is here.",
    409: "A request of this `rid` is being answered.",
    410: "Events that are not kept any more.",
    413: "The body is larger than the server takes.",
    415: "The body was not sent as JSON.",
    499: "The request was aborted by another one.",
    500: "The server failed; its log says why under the request's id.",
    503: "Too much to do, or the engine is gone. `Retry-After` says when the same may go well.",
    504: "The request had not ended in its time.",
}
_GENERATIONS = frozenset(
    f"POST {path}" for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate")
)
_FURTHER: Mapping[str, tuple[int, ...]] = {
    "POST /tokenize": (404,),
    "POST /detokenize": (404,),
    "POST /abort": (404,),
    "GET /programs/{program_id}/events": (410,),
    "GET /channels/{channel_id}/events": (410,),
}
_ERROR_SCHEMA = {
    "type": "object",
    "description": "OpenAI's error object.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "What was wrong, what is allowed and what to do."},
                "type": {"type": "string", "enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"], "description": "The field that was wrong."},
                "code": {"type": ["string", "null"], "description": "A short name of the error, for programs."},
            },
        }
    },
}
_METHODS = frozenset(("get", "post", "put", "delete"))


def complete_page(page: dict[str, Any], settings: ServerSettings) -> None:
    """Put on a page that FastAPI has made what it does not know of the routes."""
    read_examples(page)
    schemas = page.setdefault("components", {}).setdefault("schemas", {})
    for made_up in ("HTTPValidationError", "ValidationError"):
        schemas.pop(made_up, None)  # a body that is wrong gets 400 and OpenAI's error object
    schemas["Error"] = _ERROR_SCHEMA
    if settings.api_key is not None:
        page["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for name, operation in _operations(page):
        has_key = settings.api_key is not None and name != "GET /health"
        if has_key:
            operation["security"] = [{"key": []}]
        responses = operation["responses"]
        responses.pop("422", None)
        responses.update(_errors(name, operation, has_key=has_key))
        _add_answer(responses, name)
        operation["responses"] = dict(sorted(responses.items()))


def _operations(page: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                yield f"{method.upper()} {path}", operation


def _errors(name: str, operation: Mapping[str, Any], *, has_key: bool) -> dict[str, Any]:
    """The errors of an operation, by their statuses."""
    statuses = {500, *_FURTHER.get(name, ())}
    if "requestBody" in operation:
        statuses |= {400, 413, 415}
    if operation.get("parameters"):
        statuses.add(400)
    if not name.startswith("GET "):
        statuses.add(403)
    if name in _GENERATIONS:
        statuses |= {404, 409, 499, 503, 504}
    if "{" in name:
        statuses.add(404)
    if has_key:
        statuses.add(401)
    if not name.startswith("GET /metrics"):
        statuses.add(503)  # as many requests are open as may be
    return {str(status): _error(status) for status in statuses}


def _error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": _ERRORS[status], "content": content}


def _add_answer(responses: dict[str, Any], name: str) -> None:
    """Describe the answers that are no errors: with an example and the schema that it is of."""
    answers = ANSWERS[name]
    if not any(answer.status == 200 for answer in answers):
        responses.pop("200", None)
    for answer in answers:
        described = responses.setdefault(str(answer.status), {})
        described["description"] = answer.description
        content = described.setdefault("content", {})
        if answer.is_json:
            content["application/json"] = {"schema": answer.schema, "example": answer.example}
        else:
            content.setdefault(answer.media_type, {})["example"] = answer.example
