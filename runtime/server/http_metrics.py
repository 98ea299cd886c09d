"""Counts every HTTP request by its route and status."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palmette.runtime.metrics import Metrics

from .errors import CLIENT_GONE

NO_ROUTE = "(none)"
"""What stands for every path that no route has: clients must not be able to make names."""


class HttpMetrics:
    """ASGI middleware; what goes around it is not counted."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = CLIENT_GONE, time.monotonic()

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.open_http_requests += 1
        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.open_http_requests -= 1
            path = getattr(scope.get("route"), "path", NO_ROUTE)
            status = scope.get("state", {}).get("status", status)
            method = scope["method"] if path != NO_ROUTE else NO_ROUTE
            self._metrics.count_http(method, path, status, time.monotonic() - began_s)
