"""What a client is told when something is wrong: OpenAI's error object, with a status for each kind of mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from palmette.constrained.errors import GrammarError, PalmetteError
from palmette.runtime.errors import QueueFullError, RequestError
from palmette.runtime.program import Failed

from .responding import json_bytes
from .tool_choice import ToolError
from .validation import validation_error

CLIENT_GONE = 499
"""Status in the log of a request whose client hung up, and of one that was aborted by another request."""

_GRAMMAR_KINDS = frozenset(
    ("GrammarError", "UnsupportedGrammarError", "UnsatisfiableGrammarError", "GrammarLimitError", "GrammarBackendError")
)
NO_RETRY = {"x-should-retry": "false"}
"""Headers of errors that another try would meet again: OpenAI's clients look at them before they try."""

_DEFAULT_RETRY_S = 1.0
_LONGEST_MESSAGE = 1600
_LONGEST_PARAM = 256
_STATUSES = frozenset(status.value for status in HTTPStatus)


class ApiError(HTTPException):
    """An answer that is an error.

    Attributes:
        status_code: of HTTP.
        message: what was wrong, the value, what is allowed and what to do.
        kind: OpenAI's `type`: "invalid_request_error", or "server_error" where the client made no mistake.
        param: the field of the request that was wrong.
        code: a short name of the error for programs.
    """

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = _shortened(message)
        super().__init__(status_code, message, dict(headers) if headers else None)
        self.message = message
        self.kind = "server_error" if status_code >= 500 else "invalid_request_error"
        self.param = param if param is None or len(param) <= _LONGEST_PARAM else None
        self.code = code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


class ClientGoneError(Exception):
    """The client hung up before it had its answer; nobody is left to tell."""


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The caller's mistake."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_s: float | None) -> ApiError:
    """Too much to do now; the same request may go well after `retry_after_s`."""
    return _later(message, _DEFAULT_RETRY_S if retry_after_s is None else retry_after_s, "overloaded")


def _later(message: str, retry_after_s: float, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"retry-after": str(max(1, math.ceil(retry_after_s)))})


def refused(error: PalmetteError, *, fields: Collection[str] = (), grammar_param: str | None = None) -> ApiError:
    """An error that was raised while a request was taken in. `fields` are those that the request may have named."""
    retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else None
    kind = type(error).__name__
    if isinstance(error, ToolError):
        return bad_request(str(error), param=error.param)
    if isinstance(error, RequestError):
        kind = "RequestError"
    elif isinstance(error, GrammarError):
        kind = "GrammarError"
    return of_kind(kind, str(error), retry_after_s, fields=fields, grammar_param=grammar_param)


def failed(event: Failed, *, fields: Collection[str] = (), grammar_param: str | None = None) -> ApiError:
    """The failure of a node, as the answer to its client."""
    return of_kind(event.kind, event.message, event.retry_after_s, fields=fields, grammar_param=grammar_param)


def of_kind(
    kind: str,
    message: str,
    retry_after_s: float | None = None,
    *,
    fields: Collection[str] = (),
    grammar_param: str | None = None,
) -> ApiError:
    """The answer to an error whose class is called `kind`."""
    if kind == "RequestError":
        return _request_error(message, fields)
    if kind in _GRAMMAR_KINDS:
        return bad_request(message, param=grammar_param, code="invalid_grammar")
    if kind == "QueueFullError":
        return overloaded(message, retry_after_s)
    if kind == "RequestTimeoutError":
        return ApiError(504, message, param="timeout", code="timeout", headers=NO_RETRY)
    if kind == "RequestAbortedError":
        return ApiError(CLIENT_GONE, message, code="aborted", headers=NO_RETRY)
    if retry_after_s is not None:  # the engine is gone, and another may come
        return _later(message, retry_after_s, "engine_error")
    return ApiError(500, message, code="engine_error")


def _shortened(message: str) -> str:
    """A message that quotes a request of any length, without its middle."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    kept = _LONGEST_MESSAGE // 2
    return f"{message[:kept]} [...] {message[-kept:]}"


def error_response(error: ApiError) -> Response:
    """The error as a response."""
    return Response(json_bytes(error.body()), error.status_code, error.headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Have every error of the app answered by OpenAI's error object."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(PalmetteError, _on_palmette)
    app.add_exception_handler(ClientGoneError, _on_gone)


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param = validation_error(error)
    return error_response(bad_request(message, param=param))


async def _on_palmette(request: Request, error: Exception) -> Response:
    assert isinstance(error, PalmetteError)
    return error_response(refused(error))


async def _on_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ClientDisconnect):  # while FastAPI read the body
        raise ClientGoneError from error
    return error_response(error if isinstance(error, ApiError) else _of_framework(request, error))


def _of_framework(request: Request, error: HTTPException) -> ApiError:
    """Errors that Starlette and FastAPI raise themselves, in words that say what to do."""
    place = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(404, f"there is no {place}; GET /docs lists what there is", code="unknown_url")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{place} is not allowed; this path takes {allowed}"
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    if error.status_code == 400:
        return bad_request(f"the body of {place} could not be read: it must be one JSON object in UTF-8")
    phrase = HTTPStatus(error.status_code).phrase if error.status_code in _STATUSES else "error"
    return ApiError(error.status_code, str(error.detail) or phrase, headers=error.headers)


def _request_error(message: str, fields: Collection[str]) -> ApiError:
    word = re.match(r"\w+", message)
    param = word.group() if word is not None and word.group() in fields else None
    if "this model's context of" in message:
        return bad_request(message, param=param, code="context_length_exceeded")
    return bad_request(message, param=param)
