"""A route that checks JSON bodies by itself: FastAPI describes it, and none of its machinery runs for a request."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError

Handler = Callable[[Request, Any], Awaitable[Response]]


class JsonRoute(APIRoute):
    """Calls an endpoint of the form ``async def f(request: Request, body: Model) -> Response``.

    The body is parsed and validated in one go, which is most of what FastAPI would take its time for. It must be sent
    as JSON: a web page of another origin can make a browser send other kinds without asking.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        super().__init__(path, endpoint, **described)
        assert self.body_field is not None
        model = self.body_field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        self.app = _app(endpoint, model.__pydantic_validator__.validate_json)


def _app(endpoint: Handler, validate: Callable[[bytes], Any]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        data = await request.body()
        if not _is_json(request.headers.get("content-type", "")):
            message = "the body must be JSON, sent with the header content-type: application/json"
            raise ApiError(415, message, code="unsupported_media_type")
        try:
            body = validate(data)
        except ValidationError as error:
            raise _described(error, data) from None
        response = await endpoint(request, body)
        await response(scope, receive, send)

    return app


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _described(error: ValidationError, data: bytes) -> RequestValidationError:
    """The error as FastAPI has it, with the body, in which the place of the error is looked up."""
    found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    return RequestValidationError(found, body=body)
