"""Programs on a Palmette server somewhere else."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Any, Self

import msgspec

from palmette.runtime.errors import EngineError
from palmette.runtime.messages import SchedulerStats
from palmette.runtime.program import ModelInfo

from .backend import EventSink
from .http_channel import HttpChannel
from .http_connection import LOST, HttpClient, ServerAddress
from .http_session import HttpSession

PROTOCOL = 1


class HttpBackend:
    """Runs programs on a Palmette server, named by its URL. A context manager: leaving it ends what still runs.

    All programs share a connection and two threads. A connection that is lost is made again and nothing of a program
    is lost with it; a server that is gone ends its programs with an `EngineError`.

    Args:
        url: of the server, such as ``http://127.0.0.1:30000`` or ``https://llm.example.org``.
        api_key: the server's key, where it asks for one.
        timeout_s: for connecting, and for answers other than generations, which may take any time.
        verify: of https: False does not check the server's certificate, and a path names a file of certificates that
            are trusted.

    Raises:
        RequestError: an argument cannot be used.
        EngineError: no Palmette server answers there, or it refuses the key.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, timeout_s: float = 30.0, verify: bool | str = True
    ) -> None:
        self._address = ServerAddress(url, api_key=api_key, timeout_s=timeout_s, verify=verify)
        self._opening = threading.Lock()
        self._connection = _Connection(HttpClient(self._address))
        self._finalizer = weakref.finalize(self, self._connection.close)
        try:
            self._model_info = self._ask_for_model()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Of the server, without a slash at its end."""
        return self._address.url

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    def open(self, events: EventSink, *, program: str | None = None) -> HttpSession:
        """Open an empty request tree whose events go to `events`, called from a thread of this backend's.

        Raises:
            EngineError: the backend was closed, or the server is gone.
        """
        with self._opening:
            if self._connection.closed:
                raise EngineError("the backend was closed; make another one")
            channel = self._connection.channel
            if channel is None or channel.failed:
                self._connection.channel = channel = HttpChannel(self._address)
        return channel.open(events, program)

    def stats(self) -> SchedulerStats:
        """Counts of the server's scheduler at this moment.

        Raises:
            EngineError: the server does not answer.
        """
        return msgspec.convert(self._server_info()["stats"], SchedulerStats)

    def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped.

        Raises:
            EngineError: the server does not answer.
        """
        return int(self._ask("POST", "/flush_cache")["tokens"])

    def close(self) -> None:
        """End what still runs, and the connection. Closing twice is allowed."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask_for_model(self) -> ModelInfo:
        info = self._server_info()
        try:
            protocol = info["protocol"]
            if protocol != PROTOCOL:
                raise EngineError(
                    f"the server at {self._address.url} is palmette {info['version']} and speaks protocol {protocol},"
                    f" not {PROTOCOL}; use the same version here and there"
                )
            return msgspec.convert(info["model"], ModelInfo)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise EngineError(
                f"what answers at {self._address.url} is no Palmette server: {error!r} in its /server_info"
            ) from error

    def _server_info(self) -> dict[str, Any]:
        return self._ask("GET", "/server_info")

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        if self._connection.closed:
            raise EngineError("the backend was closed; make another one")
        try:
            answer = self._connection.client.ask(method, path)
        except LOST as error:
            raise self._address.unreachable(error) from error
        if answer.status == 404:
            raise EngineError(f"what answers at {self._address.url} is no Palmette server: {answer.error()}")
        if answer.status != 200:
            raise answer.error()
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise EngineError(
                f"what answers at {self._address.url} is no Palmette server: {method} {path} gives no JSON object"
            ) from error


class _Connection:
    """What is to be closed when the backend is closed or forgotten."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.channel: HttpChannel | None = None
        self.closed = False

    def close(self) -> None:
        self.closed = True
        if self.channel is not None:
            self.channel.close()
        self.client.close()
