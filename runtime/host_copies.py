"""Numbers from the device to the host: page-locked memory that is taken for a step and given back when it was read."""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = 4096


class HostCopies:
    """A stock of page-locked buffers of one device. On the CPU nothing is copied."""

    def __init__(self, device: torch.device) -> None:
        self._on_cpu = device.type == "cpu"
        self._free: list[Tensor] = []

    def begin(self, words: Tensor) -> HostCopy:
        """Begin to copy words [n] int32, in the order of the current stream."""
        if self._on_cpu:
            return HostCopy(words, None, self._free)
        if not len(words):
            return HostCopy(words.new_empty(0, device="cpu"), None, self._free)
        buffer = self._buffer(len(words))
        place = buffer[: len(words)]
        place.copy_(words, non_blocking=True)
        return HostCopy(place, buffer, self._free)

    def _buffer(self, words: int) -> Tensor:
        """The first that is free and large enough."""
        for index, buffer in enumerate(self._free):
            if len(buffer) >= words:
                return self._free.pop(index)
        size = max(_WORDS, 1 << (words - 1).bit_length())
        return torch.empty(size, dtype=torch.int32, pin_memory=True)


class HostCopy:
    """Words on their way to the host."""

    def __init__(self, place: Tensor, buffer: Tensor | None, free: list[Tensor]) -> None:
        self._place = place
        self._buffer = buffer
        self._free = free

    def take(self) -> Tensor:
        """The words [n] on the CPU, in memory of their own. To be called once, when the device has done the copy."""
        if self._buffer is None:
            return self._place
        words = self._place.clone()
        self._free.append(self._buffer)
        self._buffer = None
        return words
