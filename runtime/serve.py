"""`palmette serve`, without its options: run an engine until somebody ends it."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from .config import EngineConfig
from .errors import EngineError
from .logging_setup import LogSettings, configure_logging, fields
from .runtime_client import Runtime
from .server_settings import ServerSettings

logger = logging.getLogger("palmette.engine")

_LOOK_EVERY_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(engine: EngineConfig, server: ServerSettings, *, restart: bool = False) -> int:
    """Serve until SIGTERM or Ctrl-C, then let open requests end; a second signal ends at once. For the main thread.

    Returns:
        the exit status: 0 after a signal, 1 where a process died, which the log tells.

    Raises:
        PalmetteError: the engine could not be started.
        KeyboardInterrupt: a signal came while it was starting.
    """
    configure_logging("palmette", LogSettings.of(server))
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        with Runtime.start(engine, server, restart=restart) as runtime:
            logger.info("ready", extra=fields(model=runtime.model_info.name, url=runtime.url))
            return _run(runtime, server.drain_timeout_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(runtime: Runtime, drain_s: float) -> int:
    asked: list[int] = []
    for number in _SIGNALS:
        signal.signal(number, lambda number, frame: asked.append(number))
    try:
        while not runtime.wait(_LOOK_EVERY_S):
            if asked:
                _drain(runtime, drain_s, asked)
                return 0
    except EngineError:
        return 1
    return 0


def _drain(runtime: Runtime, drain_s: float, asked: list[int]) -> None:
    """Let what is open end, unless another signal comes."""
    logger.info("ends when open requests have; again to end now", extra=fields(drain_s=drain_s))
    draining = threading.Thread(target=runtime.shutdown, kwargs={"drain_s": drain_s}, daemon=True)
    draining.start()
    while draining.is_alive():
        draining.join(_LOOK_EVERY_S)
        if len(asked) > 1:
            runtime.shutdown()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A signal while the engine is starting."""
    raise KeyboardInterrupt
