"""Settings of the server: who may connect to it, how much it takes from them, and what it writes down."""

from __future__ import annotations

import difflib
import math
import os
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from .errors import RequestError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server listens, what it refuses and what it logs; checked when it is built.

    Attributes:
        host, port: where to listen; port 0 takes one that is free.
        model_name: what clients call the model; None is its id, or the name of its folder or file.
        api_key: what clients must send as a bearer token; None asks for none.
        cors_origins: web pages of these origins may call the server; none by default, "*" is every one.
        max_body_bytes: largest body of a request; a larger one gets 413.
        max_open_requests: most HTTP requests that are answered at once; more get 503.
        idle_timeout_s: a program of `/programs` that nobody listens to or extends for so long is dropped.
        drain_timeout_s: time for open requests to end after SIGTERM or Ctrl-C.
        ssl_certfile, ssl_keyfile, ssl_ca_certs, ssl_keyfile_password: TLS, as uvicorn takes them; `ssl_ca_certs` asks
            clients for certificates that it signed.
        web_page: show queues, cache and speed at `/`.
        log_level: the least important lines that are written.
        log_format: a line for people, or a JSON object a line.
        log_requests: one line of log for each request, without its text.
        log_prompts: prompts, answers and what errors quote of them may stand in the log.
        status_interval_s: a line of status so often while there is work; 0 writes none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 << 20
    max_open_requests: int = 4096
    idle_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)
    web_page: bool = True
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_requests: bool = False
    log_prompts: bool = False
    status_interval_s: float = 5.0

    def __post_init__(self) -> None:
        self._check_address()
        for name in ("max_body_bytes", "max_open_requests"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("idle_timeout_s", "drain_timeout_s", "status_interval_s"):
            self._check_seconds(name)
        for name, allowed in (("log_level", get_args(LogLevel)), ("log_format", get_args(LogFormat))):
            _check_choice(name, getattr(self, name), allowed)
        for name in ("web_page", "log_requests", "log_prompts"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        self._check_secrets()
        self._check_origins()
        self._check_tls()

    @property
    def scheme(self) -> str:
        """ "https" where there is a certificate, else "http"."""
        return "https" if self.ssl_certfile else "http"

    def _check_address(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise RequestError(f"host must be a name or an address such as '127.0.0.1', not {self.host!r}")
        if "/" in self.host or any(character.isspace() for character in self.host):
            raise RequestError(f"host must be a name or an address without scheme and port, not {self.host!r}")
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 <= self.port <= 65535:
            raise RequestError(f"port must be a whole number from 0 (any free port) to 65535, not {self.port!r}")

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        least = 0 if name in ("status_interval_s", "drain_timeout_s") else None
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or (value < 0 if least == 0 else value <= 0):
            lowest = "of at least 0" if least == 0 else "above 0"
            raise RequestError(f"{name} must be a number of seconds {lowest}, not {value!r}")

    def _check_secrets(self) -> None:
        if self.model_name is not None and (not isinstance(self.model_name, str) or not self.model_name.strip()):
            raise RequestError(f"model_name must be a name, or None for the model's own, not {self.model_name!r}")
        key = self.api_key
        if key is None:
            return
        if not isinstance(key, str) or not key:
            raise RequestError("api_key must not be empty; leave it out where clients need none")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise RequestError("api_key must be of printable ASCII characters without spaces: it travels in a header")

    def _check_origins(self) -> None:
        if not isinstance(self.cors_origins, tuple):
            raise RequestError(f"cors_origins must be a tuple of origins, not {self.cors_origins!r}")
        for origin in self.cors_origins:
            parts = urlsplit(origin) if isinstance(origin, str) else None
            if origin != "*" and (parts is None or f"{parts.scheme}://{parts.netloc}" != origin or not parts.netloc):
                raise RequestError(
                    f"cors_origins must be '*' or origins such as 'https://example.org', without a path, not {origin!r}"
                )

    def _check_tls(self) -> None:
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, str) and os.path.isfile(path)):
                raise RequestError(f"{name} must be a file, and there is none at {path!r}")
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_keyfile_password"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} goes with ssl_certfile, the certificate, which is not given")
        elif self.ssl_keyfile is None and not _holds_key(self.ssl_certfile):
            raise RequestError(f"ssl_certfile {self.ssl_certfile!r} holds no private key; name its file as ssl_keyfile")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RequestError(f"{name} must be one of {', '.join(allowed)}, not {value!r}{hint}")


def _holds_key(certificate: str) -> bool:
    """Whether a PEM file holds a private key beside its certificate."""
    with open(certificate, "rb") as file:
        return b"PRIVATE KEY-----" in file.read(1 << 20)
