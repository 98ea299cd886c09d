"""Settings of the server: who may connect to it, and how much it takes from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server listens and what it refuses.

    Attributes:
        host, port: where to listen; port 0 takes one that is free.
        model_name: what clients call the model; None is the name it was loaded by.
        api_key: what clients must send as a bearer token; None asks for none.
        cors_origins: web pages of these origins may call the server; none by default.
        max_body_bytes: largest body of a request.
        max_open_requests: most HTTP requests that are answered at once; more get 503.
        request_timeout_s: an HTTP request that takes longer fails; None lets it take any time.
        idle_timeout_s: a program of `/programs` that nobody listens to or extends for so long is dropped.
        drain_timeout_s: time for open requests to end after SIGTERM.
        ssl_certfile, ssl_keyfile, ssl_ca_certs, ssl_keyfile_password: TLS, as uvicorn takes them.
        log_requests: one line of log for each request, without its text.
        log_prompts: prompts and answers may stand in the log.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model_name: str | None = None
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 << 20
    max_open_requests: int = 4096
    request_timeout_s: float | None = None
    idle_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_keyfile_password: str | None = None
    log_requests: bool = False
    log_prompts: bool = False
