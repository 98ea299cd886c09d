"""A pause of Python's garbage collector for code that makes many objects, none of them garbage."""

from __future__ import annotations

import gc
from threading import Lock


class Uncollected:
    """While any thread is inside, nothing is collected: else the whole heap of the process is walked many times over.

    Only reference cycles wait, until the last one leaves. A collector that was off stays off.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


UNCOLLECTED = Uncollected()
"""The one of the process."""
