"""Reads many tensors of files into a device's memory as fast as the files can be read.

Several threads read pieces of the files, in the order of their bytes, into a few buffers. On a GPU the buffers are
page-locked and each piece goes on to its place in the model by an asynchronous copy, while its thread reads the next
piece into another buffer. So the disk or the page cache, the bus and the host's cores are busy at once, and the host
needs no more than the buffers. A piece of another dtype, or of which the rank needs some columns only, is converted or
cut on the device.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .errors import ModelLoadError
from .layers.placement import TensorSlot

READERS = 8
PIECE_BYTES = 8 << 20
_BUFFERS_EACH = 2
"""Of a reader: one is read into while the other is copied from."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its name, dtype and shape, and at which byte of the file it begins, in rows."""

    path: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_tensors(
    wanted: Sequence[tuple[StoredTensor, TensorSlot]],
    device: torch.device,
    *,
    readers: int = READERS,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Fill slots, whose targets are on `device`, each from a tensor of the slot's shape. Returns when all is there.

    Args:
        readers: threads.
        piece_bytes: read at once, a multiple of 8; one row of a tensor where that is longer. The host's memory holds
            `2 * readers` of them (`staging_bytes`).

    Raises:
        ModelLoadError: a file cannot be read, or ends before it should; names the file and the tensor. Of several such
            places it is the first.
    """
    pieces = _in_file_order(wanted, piece_bytes)
    if not pieces:
        return
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        staging = _Staging(device, pieces, readers)
        try:
            _Reading(pieces, staging).run()
        finally:
            staging.free()


def staging_bytes(
    wanted: Sequence[tuple[StoredTensor, TensorSlot]], *, readers: int = READERS, piece_bytes: int = PIECE_BYTES
) -> int:
    """The host's memory that `read_tensors` takes for its buffers."""
    count, size = _buffer_sizes(_in_file_order(wanted, piece_bytes), readers)
    return count * size


# -- what is read at once ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of a tensor's bytes, and the part of the slot's target that they fill.

    Attributes:
        slot: None where the bytes are those of `part` in the order in which they are there; otherwise they are whole
            rows of the tensor, and the slot says what of them is wanted.
    """

    stored: StoredTensor
    begin: int
    nbytes: int
    part: Tensor
    slot: TensorSlot | None

    def store(self, memory: Tensor) -> None:
        """Put the bytes [nbytes] in place; from page-locked memory this only asks for it, on the current stream."""
        values = memory.view(self.stored.dtype)
        if self.slot is None and self.part.dtype == self.stored.dtype:
            self.part.copy_(values, non_blocking=True)
            return
        values = values.to(self.part.device, non_blocking=True)
        if self.slot is not None:
            values = values.view(-1, *self.stored.shape[1:])
            if self.slot.dim > 0:
                values = values.narrow(self.slot.dim, self.slot.start, self.slot.length)
        self.part.copy_(values)


def _in_file_order(wanted: Sequence[tuple[StoredTensor, TensorSlot]], piece_bytes: int) -> list[_Piece]:
    pieces = [piece for stored, slot in wanted for piece in _pieces(stored, slot, piece_bytes)]
    return sorted(pieces, key=lambda piece: (piece.stored.path, piece.begin))


def _pieces(stored: StoredTensor, slot: TensorSlot, piece_bytes: int) -> Iterator[_Piece]:
    target = slot.target.detach()
    if not target.numel():
        return
    first_row = slot.start if slot.dim == 0 else 0
    begin = stored.begin + first_row * stored.row_bytes
    if target.is_contiguous() and (slot.dim == 0 or target.shape == slot.shape):  # one run of bytes, there and here
        size = stored.dtype.itemsize
        for first, part in _parts(target.view(-1), piece_bytes // size):
            yield _Piece(stored, begin + first * size, part.numel() * size, part, None)
        return
    for first, part in _parts(target, piece_bytes // stored.row_bytes):
        yield _Piece(stored, begin + first * stored.row_bytes, len(part) * stored.row_bytes, part, slot)


def _parts(tensor: Tensor, length: int) -> Iterator[tuple[int, Tensor]]:
    """Where each part of so many rows begins, and the part; one row at least."""
    length = max(1, length)
    for first in range(0, len(tensor), length):
        yield first, tensor[first : first + length]


# -- where it is read to ----------------------------------------------------------------------------------------------


class _Buffer:
    """Memory for a piece, and on a GPU the event of the last copy from it."""

    def __init__(self, memory: Tensor, event: torch.cuda.Event | None) -> None:
        self.memory = memory
        self._event = event

    def wait(self) -> None:
        """Wait until nothing is copied from here any more."""
        if self._event is not None:
            self._event.synchronize()

    def send(self, piece: _Piece, stream: torch.cuda.Stream | None) -> None:
        """Have the piece that was read put in place."""
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            piece.store(self.memory[: piece.nbytes])
        if self._event is not None:
            self._event.record(stream)


class _Staging:
    """The buffers of one reading, in groups of one reader each, and the stream of their copies on a GPU."""

    def __init__(self, device: torch.device, pieces: Sequence[_Piece], readers: int) -> None:
        self._is_pinned = device.type == "cuda"
        self.stream = _stream(device) if self._is_pinned else None
        if self.stream is not None:  # what used the targets' memory before may not be done with it
            self.stream.wait_stream(torch.cuda.current_stream(device))
        count, size = _buffer_sizes(pieces, readers)
        memory = torch.empty((count, size), dtype=torch.uint8, pin_memory=self._is_pinned)
        self._buffers = [_Buffer(part, _event() if self._is_pinned else None) for part in memory.unbind()]

    def groups(self) -> list[list[_Buffer]]:
        """The buffers of each reader."""
        return [self._buffers[i : i + _BUFFERS_EACH] for i in range(0, len(self._buffers), _BUFFERS_EACH)]

    def free(self) -> None:
        """Wait for the copies, and give the memory back to the system, which torch would keep for later use."""
        if self.stream is not None:
            self.stream.synchronize()
        self._buffers.clear()
        if self._is_pinned:
            _empty_host_cache()
            torch.cuda.empty_cache()  # of pieces that were converted


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's; its waiting leaves the core


def _buffer_sizes(pieces: Sequence[_Piece], readers: int) -> tuple[int, int]:
    """How many buffers there are, and the bytes of each: a multiple of 8, so that every dtype fits each."""
    longest = max((piece.nbytes for piece in pieces), default=0)
    return min(_BUFFERS_EACH * readers, len(pieces)), -(-longest // 8) * 8


def _empty_host_cache() -> None:
    empty = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
    if empty is not None:
        empty()


# -- the threads ------------------------------------------------------------------------------------------------------


class _Reading:
    """Readers that take one piece after another; after a failure no piece is begun.

    Pieces are begun in their order, so that all before one that failed were begun too.
    """

    def __init__(self, pieces: Sequence[_Piece], staging: _Staging) -> None:
        self._staging = staging
        self._next = iter(enumerate(pieces))
        self._lock = threading.Lock()  # held to take a piece, and to tell of a failure
        self._failures: list[tuple[int, Exception]] = []
        self._stopped = False

    def run(self) -> None:
        groups = self._staging.groups()
        with ThreadPoolExecutor(len(groups), thread_name_prefix="palmette-reader") as pool:
            try:
                list(pool.map(self._read, groups))
            finally:
                self._stopped = True
        if self._failures:
            raise min(self._failures, key=lambda failure: failure[0])[1]

    def _read(self, buffers: Sequence[_Buffer]) -> None:
        turn = 0
        with contextlib.closing(OpenFile()) as file:
            while (taken := self._take()) is not None:
                index, piece = taken
                buffer = buffers[turn % len(buffers)]
                turn += 1
                try:
                    buffer.wait()
                    file.read(piece.stored, piece.begin, buffer.memory[: piece.nbytes])
                    buffer.send(piece, self._staging.stream)
                except Exception as error:
                    self._fail(index, error)

    def _take(self) -> tuple[int, _Piece] | None:
        with self._lock:
            return None if self._stopped else next(self._next, None)

    def _fail(self, index: int, error: Exception) -> None:
        with self._lock:
            self._failures.append((index, error))
            self._stopped = True


class OpenFile:
    """The file that one thread reads, opened when it is asked for; its own, since the system reads ahead of each."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._fd = -1

    def close(self) -> None:
        """Close what is open."""
        if self._path is not None:
            os.close(self._fd)
            self._path = None

    def read(self, stored: StoredTensor, begin: int, memory: Tensor) -> None:
        """Fill `memory`, [bytes] uint8 on the CPU, with the bytes of the tensor's file from `begin` on.

        Raises:
            ModelLoadError: the file cannot be read, or has ended.
        """
        view = memoryview(memory.numpy().data)
        done = 0
        try:
            self._open(stored.path)
            while done < len(view):
                count = os.preadv(self._fd, [view[done:]], begin + done)
                if not count:
                    raise ModelLoadError(f"{stored.path} ends within tensor {stored.name!r}")
                done += count
        except OSError as error:
            raise ModelLoadError(f"{stored.path} cannot be read: {error}, at tensor {stored.name!r}") from error

    def _open(self, path: Path) -> None:
        if path == self._path:
            return
        self.close()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path = path
