"""A step's numbers on their way to the device: all of them in one copy from page-locked memory that is used again."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from .batch import Int32Array

_ALIGNED = 4
"""Words: every array begins at a multiple of 16 bytes, so that a kernel compiled for one such address serves all."""

_FIRST_BUFFERS = 4
_MOST_BUFFERS = 64
"""So many copies may be on their way before the host waits for the oldest: they come after what the device still has to
compute, so that waiting for one would be waiting for a step."""


class PinnedStaging:
    """Uploads int32 arrays, in the order of the device's current stream and without waiting for what it computes.

    A copy from ordinary memory would make the host wait until the device has done all that was asked of it before;
    page-locked memory must stay as it is until it was read. Each buffer of a ring is written again once the copy that
    read it is done, which an event tells; where the oldest is not, the ring grows. On a CPU the arrays are used where
    they lie.

    Args:
        capacity_words: of each buffer, to begin with; larger uploads make them grow.
    """

    def __init__(self, device: torch.device, capacity_words: int = 1 << 14) -> None:
        self._device = device
        self._capacity_words = capacity_words
        first = _FIRST_BUFFERS if device.type == "cuda" else 0
        self._ring = deque(_Buffer(capacity_words) for _ in range(first))  # the one used longest ago first

    def upload(self, arrays: Sequence[Int32Array], out: Tensor | None = None) -> list[Tensor]:
        """A tensor on the device of each array [n].

        Args:
            out: int32 memory on the device that they are to fill from its beginning on, `staged_words(arrays)` at
                least; None takes new memory. Views of it are returned.
        """
        places, words = _layout(arrays)
        if self._device.type == "cpu":
            tensors = [torch.from_numpy(array) for array in arrays]
            if out is None:
                return tensors
            for place, tensor in zip(places, tensors, strict=True):
                out[place : place + len(tensor)] = tensor
        else:
            if out is None:
                out = torch.empty(words, dtype=torch.int32, device=self._device)
            self._next().send(arrays, places, words, out)
        return [out[place : place + len(array)] for place, array in zip(places, arrays, strict=True)]

    def _next(self) -> _Buffer:
        """A buffer that may be written, at once or once its copy is done."""
        grows = len(self._ring) < _MOST_BUFFERS and not self._ring[0].is_free
        self._ring.append(_Buffer(self._capacity_words) if grows else self._ring.popleft())
        return self._ring[-1]


def staged_words(sizes: Sequence[int]) -> int:
    """Words that arrays of these sizes take in one upload."""
    return sum(map(_aligned, sizes))


def _layout(arrays: Sequence[Int32Array]) -> tuple[list[int], int]:
    """Where each array begins, and the words of all."""
    *places, words = itertools.accumulate((_aligned(len(array)) for array in arrays), initial=0)
    return places, words


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Buffer:
    """Page-locked memory, and the event after the copy that reads it."""

    def __init__(self, capacity_words: int) -> None:
        self._allocate(capacity_words)
        self._copied: torch.cuda.Event | None = None

    def _allocate(self, words: int) -> None:
        self._pinned = torch.empty(words, dtype=torch.int32, pin_memory=True)
        self._words: Int32Array = self._pinned.numpy()

    @property
    def is_free(self) -> bool:
        """The copy that read it is done."""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]  # as below

    def send(self, arrays: Sequence[Int32Array], places: Sequence[int], words: int, out: Tensor) -> None:
        """Begin to copy the arrays to their places in `out`."""
        if self._copied is None:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        else:
            self._copied.synchronize()
        if words > len(self._words):
            self._allocate(2 * words)
        for place, array in zip(places, arrays, strict=True):
            self._words[place : place + len(array)] = array
        out[:words].copy_(self._pinned[:words], non_blocking=True)
        self._copied.record()
