"""uvicorn, run from within a process that has its own ideas of signals: listen, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from palmette.runtime.errors import RequestError
from palmette.runtime.server_settings import ServerSettings

logger = logging.getLogger("palmette.server")

_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_LAST_WORDS_S = 1.0
_CLOSING_S = 1.0


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; nothing is accepted before it is served.

    Raises:
        RequestError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise RequestError(f"cannot listen at host={host!r}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        hint = "choose another port, or port=0 for any that is free"
        raise RequestError(f"cannot listen at host={host!r}, port={port}: {error.strerror}; {hint}") from error
    return listener


class HttpServer(uvicorn.Server):
    """An app on a listening socket. Signals are the caller's."""

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                server_header=False,
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE_S,
                backlog=_BACKLOG,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                ssl_ca_certs=settings.ssl_ca_certs,
                ssl_keyfile_password=settings.ssl_keyfile_password,
                ssl_cert_reqs=ssl.CERT_REQUIRED if settings.ssl_ca_certs else ssl.CERT_NONE,
            )
        )
        try:
            self.config.load()
        except (OSError, ssl.SSLError) as error:
            raise RequestError(
                f"ssl_certfile={settings.ssl_certfile!r}, ssl_keyfile={settings.ssl_keyfile!r}: {error}"
            ) from error

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals as they are."""
        yield

    async def begin(self, listener: socket.socket) -> asyncio.Task[None]:
        """Serve in a task of its own; returns when requests are accepted.

        Raises:
            RuntimeError: the app did not start.
        """
        task = asyncio.create_task(self.serve(sockets=[listener]))
        while not self.started and not task.done():
            await asyncio.sleep(0.005)
        if task.done():
            task.result()
            raise RuntimeError("the app did not start; see the log")
        return task

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: open requests are answered, idle connections closed, and those cut that do not take it."""
        cutting = asyncio.create_task(self._cut_silent())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_silent(self) -> None:
        """Cut closed connections whose clients do not answer the end of TLS: it would be waited for half a minute."""
        while True:
            await asyncio.sleep(_CLOSING_S)
            for connection in list(self.server_state.connections):
                transport = connection.transport
                if transport is not None and transport.is_closing() and transport.get_write_buffer_size() == 0:
                    transport.abort()

    def drain(self, timeout_s: float) -> None:
        """Accept nothing more, let open requests go on for so long, then end."""
        self.config.timeout_graceful_shutdown = timeout_s + _LAST_WORDS_S  # type: ignore[assignment]  # waits as long
        self.should_exit = True
