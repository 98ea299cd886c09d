"""A growing array of int32: token ids and page tables that are appended to at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .batch import Int32Array


class Int32Buffer:
    """A numpy int32 array with spare room at its end.

    `view` is a window on the memory itself, so a step over a long context copies nothing. A view taken before an append
    keeps its values, but not those appended since.
    """

    __slots__ = ("_data", "_length")

    def __init__(self, values: Sequence[int] | Int32Array = ()) -> None:
        self._length = len(values)
        self._data: Int32Array = np.empty(max(16, self._length + self._length // 4), dtype=np.int32)
        self._data[: self._length] = values

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> Int32Array:
        return self._data[: self._length]

    def first(self, count: int) -> Int32Array:
        """A window on the first `count` values, of which there are so many."""
        return self._data[:count]

    def between(self, place: int, stop: int) -> list[int]:
        """The values from `place` to `stop`, which is not past the end."""
        values: list[int] = self._data[place:stop].tolist()
        return values

    def append(self, value: int) -> None:
        if self._length == len(self._data):
            self._grow(1)
        self._data[self._length] = value
        self._length += 1

    def extend(self, values: Int32Array) -> None:
        end = self._length + len(values)
        if end > len(self._data):
            self._grow(len(values))
        self._data[self._length : end] = values
        self._length = end

    def clear(self) -> None:
        self._length = 0

    def _grow(self, more: int) -> None:
        grown = np.empty(2 * (self._length + more), dtype=np.int32)
        grown[: self._length] = self.view
        self._data = grown
