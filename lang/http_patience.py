"""How long a server that does not answer, or is too busy, is waited for."""

from __future__ import annotations

import contextlib
import time

from palmette.runtime.errors import EngineError

from .http_connection import Answer

RECONNECT_S = 3.0
"""So long a server that does not answer is asked again before it counts as gone."""

_PAUSE_S = 0.05


class Patience:
    """How long a server that does not answer is waited for."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def reset(self) -> None:
        self._since_s = None

    def wait(self, error: Exception | None) -> None:
        """Pause before the next try.

        Raises:
            EngineError: there were enough.
        """
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > RECONNECT_S:
            why = "it closed the connection" if error is None else f"{type(error).__name__}: {error}"
            raise EngineError(
                f"the server does not answer any more ({why}); what ran there is lost. Is it still running?"
            ) from error
        time.sleep(_PAUSE_S)

    def wait_for(self, answer: Answer) -> bool:
        """Pause as a busy server asks for; False when there were enough pauses."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > RECONNECT_S:
            return False
        with contextlib.suppress(ValueError):
            time.sleep(min(1.0, float(answer.retry_after or _PAUSE_S)))
        return True
