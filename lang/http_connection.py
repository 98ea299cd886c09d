"""HTTP to one server, by the standard library's client: a request costs a third of what it does by a general one."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError, QueueFullError, RequestError

LOST = (OSError, http.client.HTTPException)
"""What is raised where a server cannot be reached, or the connection to it breaks."""

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to a request; `retry_after` is that header, "" where there is none."""

    asked: str
    status: int
    body: bytes
    retry_after: str = ""

    def said(self) -> str:
        """The message of an error object, else the beginning of the body."""
        with contextlib.suppress(msgspec.DecodeError, LookupError, TypeError):
            return str(msgspec.json.decode(self.body)["error"]["message"])
        return self.body[:200].decode(errors="replace") or http.client.responses.get(self.status, "nothing")

    def error(self) -> EngineError:
        """The error of an answer that is none."""
        hint = "; give the server's key as api_key=..." if self.status == 401 else ""
        return EngineError(f"{self.asked}: the server answers {self.status}: {self.said()}{hint}")

    def refusal(self) -> PalmetteError:
        """The error of nodes that the server did not take."""
        if self.status in (429, 503):
            return QueueFullError(self.said(), retry_after_s=1.0)
        return RequestError(self.said()) if 400 <= self.status < 500 else self.error()


class ServerAddress:
    """Where a server is, and how it is spoken to.

    Args:
        url: of the server.
        api_key: its key, where it asks for one.
        timeout_s: for connecting, and for answers.
        verify: of https: False does not check the certificate; a path names a file of certificates that are trusted.

    Raises:
        RequestError: an argument cannot be used.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float, verify: bool | str) -> None:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise RequestError(f"url must be one such as 'http://127.0.0.1:30000', not {url!r}")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise RequestError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
        self.url = url.rstrip("/")
        self.timeout_s = float(timeout_s)
        self.prefix = parts.path.rstrip("/")
        self.headers = {"Accept-Encoding": "identity"}
        if api_key is not None:
            self.headers["Authorization"] = f"Bearer {_checked_key(api_key)}"
        try:
            self._port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise RequestError(f"url {url!r}: {error}") from error
        self._host = parts.hostname
        self._tls = _tls(verify) if parts.scheme == "https" else None
        self._proxy = _proxy(parts.scheme, self._host)

    def connection(self) -> http.client.HTTPConnection:
        """A connection that is not made yet."""
        host, port = self._proxy or (self._host, self._port)
        made: http.client.HTTPConnection
        if self._tls is not None:
            made = http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self._tls)
        else:
            made = http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        if self._proxy is not None:
            made.set_tunnel(self._host, self._port)
        return made

    def unreachable(self, error: BaseException) -> EngineError:
        """The error of a server that cannot be reached."""
        return EngineError(
            f"no server answers at {self.url} ({type(error).__name__}: {error}); start one with `palmette serve`, or"
            " check host, port and scheme of the URL"
        )


class HttpClient:
    """One connection, kept open between requests. Threads may share it: their requests go one after the other."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._connection = address.connection()
        self._asking = threading.Lock()

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """The answer to a request. It is sent again where a connection that was kept open turns out to be closed.

        Raises:
            OSError, http.client.HTTPException: the server cannot be reached; see `LOST`.
        """
        with self._asking:
            kept_open = self._connection.sock is not None
            try:
                return self._ask(method, path, body)
            except LOST:
                self._connection.close()
                if not kept_open:
                    raise
            try:
                return self._ask(method, path, body)
            except LOST:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the connection; a later request makes it anew."""
        with self._asking:
            self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        headers = (
            self._address.headers if body is None else {**self._address.headers, "Content-Type": "application/json"}
        )
        self._connection.request(method, self._address.prefix + path, body, headers)
        with self._connection.getresponse() as response:
            text = response.read()
        retry_after = response.headers.get("retry-after", "")
        return Answer(f"{method} {path.partition('?')[0]}", response.status, text, retry_after)


@contextlib.contextmanager
def stream(
    address: ServerAddress, path: str, headers: Mapping[str, str], *, silence_s: float
) -> Iterator[tuple[Answer, Iterator[bytes]]]:
    """The answer to a GET on a connection of its own, and its body as it comes; of an error, all of it at once.

    Args:
        silence_s: time without a byte after which the connection counts as broken.

    Raises:
        OSError, http.client.HTTPException: the connection is lost; see `LOST`.
    """
    with contextlib.closing(address.connection()) as connection:
        connection.connect()
        connection.sock.settimeout(silence_s)
        connection.request("GET", address.prefix + path, headers={**address.headers, **headers})
        with connection.getresponse() as response:
            text = b"" if response.status == 200 else response.read()
            chunks = iter(lambda: response.read1(_CHUNK_BYTES), b"")
            yield Answer(f"GET {path}", response.status, text), chunks


def _checked_key(api_key: str) -> str:
    if not isinstance(api_key, str) or not api_key or not api_key.isascii() or not api_key.isprintable():
        raise RequestError("api_key must be of printable ASCII characters: it travels in a header")
    return api_key


def _tls(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, str):
        try:
            return ssl.create_default_context(cafile=verify)
        except OSError as error:
            raise RequestError(f"verify={verify!r} is no file of certificates: {error}") from error
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(scheme: str, host: str) -> tuple[str, int] | None:
    """The proxy that the environment (HTTPS_PROXY and its like) names for a server; none stands before this machine."""
    found = urllib.request.getproxies().get(scheme)
    if not found or host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(found if "//" in found else f"http://{found}")
    return (parts.hostname, parts.port or 8080) if parts.hostname else None
