"""What can be asked of a backend beside running programs."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

from .backend import Backend, checked_backend, default_backend
from .errors import NoBackendError


@runtime_checkable
class HasCache(Protocol):
    """A backend that keeps prefixes."""

    def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped."""


@runtime_checkable
class HasStats(Protocol):
    """A backend that counts what it does."""

    def stats(self) -> Any:
        """Counts of this moment, as a dataclass or msgspec struct."""


def flush_cache(backend: Backend | None = None) -> int:
    """Drop every prefix that no running request uses; returns the number of tokens dropped, 0 where none are kept.

    Raises:
        NoBackendError: no backend was given and there is no default.
    """
    chosen = chosen_backend(backend)
    return chosen.flush_cache() if isinstance(chosen, HasCache) else 0


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """What a backend says of its model and, where it counts, of its queues and cache at this moment.

    The fields of `ModelInfo`, and ``stats``: a dict, empty for a backend that counts nothing.

    Raises:
        NoBackendError: no backend was given and there is no default.
    """
    chosen = chosen_backend(backend)
    stats = msgspec.to_builtins(chosen.stats()) if isinstance(chosen, HasStats) else {}
    return {**msgspec.structs.asdict(chosen.model_info), "stats": stats}


def chosen_backend(given: Backend | None) -> Backend:
    """`given`, or the default backend.

    Raises:
        TypeError: `given` cannot run programs.
        NoBackendError: there is neither.
    """
    chosen = default_backend() if given is None else checked_backend(given)
    if chosen is None:
        raise NoBackendError(
            "there is no backend to run on; pass backend=..., or call pt.set_default_backend(pt.runtime.launch()) once"
        )
    return chosen
