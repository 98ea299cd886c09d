"""What stands before every request: its id, who may ask, how many at once, and how much they may send.

Plain ASGI, one small class for each; BaseHTTPMiddleware would cost more than all of them and hide lost clients.
"""

from __future__ import annotations

import hmac
import logging
import random
import re
import time
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palmette.runtime.server_settings import ServerSettings

from . import api_page, page
from .errors import CLIENT_GONE, ApiError, ClientGoneError, error_response, overloaded
from .request_log import log_request

logger = logging.getLogger("palmette.server")

OPEN_PATHS = page.PUBLIC_PATHS | api_page.PUBLIC_PATHS | {"/health"}
"""Answered without an API key: what watches a server needs no secret, and the pages ask for it."""

UNCOUNTED_PATHS = frozenset(("/health", "/metrics"))
"""Answered however many requests are open: a full server is still watched."""

_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def install_security(app: FastAPI, settings: ServerSettings) -> None:
    """Put the layers around an app, the last added outermost."""
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(SameSite, cors_origins=settings.cors_origins)
    app.add_middleware(OpenRequestLimit, max_open_requests=settings.max_open_requests)
    if settings.api_key is not None:
        app.add_middleware(ApiKey, api_key=settings.api_key)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    app.add_middleware(RequestIds, log_requests=settings.log_requests)


class RequestIds:
    """Gives each request an id, the client's X-Request-Id where it sent a usable one, and logs how it ended.

    The id is in the answer's headers and in the log of what went wrong. It stands in ``scope["state"]``.
    """

    def __init__(self, app: ASGIApp, *, log_requests: bool) -> None:
        self._app = app
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _given_id(scope) or f"req-{random.getrandbits(64):016x}"
        header = (b"x-request-id", request_id.encode())
        status, first_s, began_s = 0, None, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status, first_s
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            elif first_s is None and message.get("more_body"):
                first_s = time.monotonic() - began_s
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientGoneError, ClientDisconnect):  # the second where it went before all of its request had come
            state["status"] = CLIENT_GONE
        except Exception:
            logger.exception("request %s failed", request_id)
            if status:  # too late to say so: the connection is cut, so that nobody takes the answer for whole
                raise
            failure = ApiError(500, f"the server failed; its log says why under request id {request_id}")
            await error_response(failure)(scope, receive, send_with_id)
        status = state.get("status", status)
        if self._log_requests or status == CLIENT_GONE:
            log_request(scope, status, time.monotonic() - began_s, first_s)


class ApiKey:
    """Lets only requests with the key through, and those to OPEN_PATHS."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        message = "this server asks for an API key: send the header Authorization: Bearer KEY with the right one"
        await error_response(ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}))(
            scope, receive, send
        )

    def _has_key(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return hmac.compare_digest(key.strip(), self._expected) and scheme.lower() == b"bearer"


class SameSite:
    """Refuses what a web page of another site has a browser send, unless its origin is named.

    It could not read the answer, but it could make the server work. Browsers say where a request comes from in a
    header that pages cannot set; other clients send none.
    """

    def __init__(self, app: ASGIApp, *, cors_origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        message = "a web page of another site sent this; start the server with cors_origins that name its origin"
        await error_response(ApiError(403, message, code="cross_site"))(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        site = origin = b""
        for name, value in scope["headers"]:
            if name == b"sec-fetch-site":
                site = value
            elif name == b"origin":
                origin = value
        return site != b"cross-site" or b"*" in self._origins or origin in self._origins


class OpenRequestLimit:
    """Answers 503 while as many requests are open as the server takes."""

    def __init__(self, app: ASGIApp, *, max_open_requests: int) -> None:
        self._app = app
        self._most = max_open_requests
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNCOUNTED_PATHS:
            await self._app(scope, receive, send)
            return
        if self._open >= self._most:
            message = f"{self._most} requests are open, which is as many as this server takes; try again in a second"
            await error_response(overloaded(message, 1.0))(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1


class BodyLimit:
    """Refuses bodies that are too large: by the length that a client states, else while they come."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._most = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if stated is None:
            await self._app(scope, self._counted(receive), send)
        elif int(stated) <= self._most:
            await self._app(scope, receive, send)
        else:
            await error_response(self._too_large(f"{int(stated)} bytes"))(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise self._too_large("more")
            return message

        return counting

    def _too_large(self, size: str) -> ApiError:
        message = f"the body has {size}, but at most {self._most} bytes are allowed; send less in one request"
        return ApiError(413, message, code="body_too_large", headers={"connection": "close"})


def _given_id(scope: Scope) -> str | None:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else None
