"""The masks last used by all grammars of a vocabulary, within one bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray


class MaskCache:
    """Keeps masks alive until they are the least recently used and there are too many. Equal masks are one array.

    Grammars hold weak references to what is kept here, so that a mask costs memory once and is forgotten everywhere at
    the same time. Threads may share it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept: OrderedDict[bytes, NDArray[np.uint32]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def keep(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """A read-only array equal to `mask`, kept for a while."""
        content = mask.tobytes()
        with self._lock:
            known = self._kept.get(content)
            if known is None:
                known = self._kept[content] = np.frombuffer(content, np.uint32)
                self._bytes += len(content)
            self._kept.move_to_end(content)
            while self._bytes > self._capacity_bytes and len(self._kept) > 1:
                forgotten, _ = self._kept.popitem(last=False)
                self._bytes -= len(forgotten)
        return known

    def touch(self, mask: NDArray[np.uint32]) -> None:
        """`mask`, which `keep` returned, was used."""
        content = mask.base  # the bytes that it was made from
        assert isinstance(content, bytes)
        with self._lock:
            if content in self._kept:
                self._kept.move_to_end(content)
