"""`launch`: from the name of a model to a running engine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from .config import EngineConfig, EngineSettings
from .server_settings import LogFormat, LogLevel, ServerSettings

if TYPE_CHECKING:
    from .engine import Engine
    from .processes.runtime_client import Runtime


class ServerOptions(TypedDict, total=False):
    """The fields of `ServerSettings`, as keyword arguments of `launch`."""

    host: str
    port: int
    model_name: str | None
    api_key: str | None
    cors_origins: tuple[str, ...]
    max_body_bytes: int
    max_open_requests: int
    idle_timeout_s: float
    drain_timeout_s: float
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_ca_certs: str | None
    ssl_keyfile_password: str | None
    web_page: bool
    log_level: LogLevel
    log_format: LogFormat
    log_requests: bool
    log_prompts: bool
    status_interval_s: float


class LaunchSettings(EngineSettings, ServerOptions, total=False):
    """Settings of an engine and of its server."""


_SERVER_DEFAULTS: ServerOptions = {"log_level": "warning"}
"""Where a server inside a script differs from `ServerSettings`."""


@overload
def launch(
    model: str | Path | None = None, *, processes: Literal[False], **settings: Unpack[EngineSettings]
) -> Engine: ...


@overload
def launch(
    model: str | Path | None = None,
    *,
    processes: Literal[True] = True,
    restart: bool = False,
    **settings: Unpack[LaunchSettings],
) -> Runtime: ...


def launch(
    model: str | Path | None = None, *, processes: bool = True, restart: bool = False, **settings: Any
) -> Engine | Runtime:
    """Load a model and start an engine; returns when it can work.

    Args:
        model: a folder of safetensors, a ``.gguf`` file, a Hugging Face id, which is fetched into that library's cache,
            or None for the built-in default, SmolLM2-135M-Instruct, which is fetched once into the user's cache.
        processes: run scheduler, detokenizer and HTTP server in processes of their own; False runs the engine in a
            thread of this process, without a server.
        restart: start the engine anew when a process of it dies, up to 5 times in 10 minutes; what was open then has
            failed.
        settings: any field of `EngineConfig`, and with processes any of `ServerSettings`: by default the server listens
            at 127.0.0.1, at a free port.

    Returns:
        the engine, a language backend and a context manager: leaving it shuts the engine down. With processes it has
        the server's `url`.

    Raises:
        ModelLoadError: the model cannot be found, fetched or read; the message names the file and the tensor.
        RequestError: a setting is out of its range, or the address is not to be had.
        EngineError: a process died while it was starting; the message has the last lines of its log.
        TypeError: a setting does not exist.
    """
    name = os.fspath(model) if isinstance(model, Path) else model
    if not processes:
        _refuse_unknown(settings, restart)
        from .loading import load_engine

        return load_engine(EngineConfig(model=name, **settings))
    return _launch_processes(name, restart, settings)


def _launch_processes(model: str | None, restart: bool, settings: Mapping[str, Any]) -> Runtime:
    from .processes.runtime_client import Runtime

    _refuse_unknown(settings, restart=None)
    engine = {name: settings[name] for name in EngineSettings.__annotations__ if name in settings}
    server = {name: settings[name] for name in ServerOptions.__annotations__ if name in settings}
    return Runtime.start(
        EngineConfig(model=model, **engine), ServerSettings(**{**_SERVER_DEFAULTS, **server}), restart=restart
    )


def _refuse_unknown(names: Iterable[str], restart: bool | None) -> None:
    """Refuse what is no setting; `restart` is None where those of a server are settings too."""
    known = list(EngineSettings.__annotations__)
    served = [*ServerOptions.__annotations__, "restart"]
    if restart is None:
        known += served
    for name in [*names, *(["restart"] if restart else [])]:
        if name in known:
            continue
        if name in served:
            raise TypeError(f"launch(processes=False) has no server, so no setting {name!r}; leave out processes=False")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"settings are {', '.join(known)}"
        raise TypeError(f"launch() has no setting {name!r}; {hint}")
