"""A route that checks JSON bodies by itself: FastAPI describes it, and none of its machinery runs for a request."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError

_LARGE = 1 << 16
_MOST_MEMBERS = 1_000
_MOST_ERRORS = 10_000
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])

Handler = Callable[[Request, Any], Awaitable[Response]]


class JsonRoute(APIRoute):
    """Calls an endpoint of the form ``async def f(request: Request, body: Model) -> Response``.

    The body is parsed and validated in one go, which is most of what FastAPI would take its time for. It must be sent
    as JSON: a web page of another origin can make a browser send other kinds without asking.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        super().__init__(path, endpoint, **described)
        if self.body_field is None:
            return  # it takes no body, and is FastAPI's to call
        model = self.body_field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        self.app = _app(endpoint, model.__pydantic_validator__.validate_json)


def _app(endpoint: Handler, validate: Callable[[bytes], Any]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        data = await json_body(request)
        if len(data) > _LARGE:
            _check_members(data)
        try:
            body = validate(data)
        except ValidationError as error:
            raise _described(error, data) from None
        response = await endpoint(request, body)
        await response(scope, receive, send)

    return app


def _check_members(data: bytes) -> None:
    """Raise ApiError for a body of so many members that finding out how wrong each is would hold everybody up."""
    try:
        count = len(_MEMBERS.decode(data))
    except (msgspec.DecodeError, RecursionError):
        return  # which the model says better
    if count > _MOST_MEMBERS:
        raise ApiError(400, f"the body has {count} members, but no request has more than {_MOST_MEMBERS}")


async def json_body(request: Request) -> bytes:
    """The body of a request.

    Raises:
        ApiError: it was not sent as JSON.
    """
    data = await request.body()
    if not _is_json(request.headers.get("content-type", "")):
        message = "the body must be JSON, sent with the header content-type: application/json"
        raise ApiError(415, message, code="unsupported_media_type")
    return data


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _described(error: ValidationError, data: bytes) -> RequestValidationError:
    """The error as FastAPI has it, with the body, in which the place of the error is looked up."""
    if (count := error.error_count()) > _MOST_ERRORS:
        message = f"the body is wrong in {count} places, too many to name; GET /docs lists the fields there are"
        raise ApiError(400, message)
    found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    return RequestValidationError(found, body=body)
