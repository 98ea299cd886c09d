"""Errors of the runtime; the root is `palmette.constrained.errors.PalmetteError`."""

from __future__ import annotations

from palmette.constrained.errors import PalmetteError


class ModelLoadError(PalmetteError, ValueError):
    """A model folder, file or tensor that cannot be used. The message names the file and the tensor."""


class RequestError(PalmetteError, ValueError):
    """A request that the engine refuses: the caller's mistake. The message names the parameter and its value."""


class RequestAbortedError(PalmetteError):
    """The request was aborted before it ended."""


class QueueFullError(PalmetteError, RuntimeError):
    """The engine has as many waiting requests as it takes.

    Attributes:
        retry_after_s: when the same request may go well.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimeoutError(PalmetteError, TimeoutError):
    """The request had not ended after the time it was given."""


class EngineError(PalmetteError, RuntimeError):
    """The engine itself failed or was closed; what was in flight is lost."""
