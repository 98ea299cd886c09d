"""Plans of FlashInfer's paged attention, below its wrapper classes: those walk a step's rows one by one on the host.

FlashInfer's own `plan` splits the work of a step over the card, into page-locked memory whose copy to the device it
begins; its `run` reads that. The page-locked memory must stay as it is until it was copied: here it is a ring, each
part with an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.runtime.kernels.launch_sizes import multiprocessors
from palmette.runtime.layers.attention import RadixAttention

from .flashinfer_kernels import Family, Kind

_INT_BYTES = 8 << 20
"""What FlashInfer's wrappers allocate for a plan."""
_RING = 4

MOST_RECORDED_BYTES = 7 << 27
"""For the parts of a recorded step's rows. It suffices for 1024 rows of 64 heads in groups of 8; in groups of more than
16 FlashInfer asks for four times as much."""

_NHD = 0  # FlashInfer's TensorLayout: [page, token, head, dim]


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows as FlashInfer plans them, int32 on the host: query_indptr [R + 1] from 0 on, page_indptr, seq_lens [R]."""

    query_indptr: Tensor
    page_indptr: Tensor
    seq_lens: Tensor


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The same on the device; page_indptr [R + 1] leads into page_ids, last_page_lens [R] is 1 to page_size."""

    query_indptr: Tensor
    page_indptr: Tensor
    page_ids: Tensor
    last_page_lens: Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """A planned step of one kind, to be run for every layer of it."""

    module: Any
    rows: DeviceRows
    floats: Tensor
    integers: Tensor
    planned: Any
    causal: bool
    window_left: int
    dependent: bool

    def run(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, layer: RadixAttention) -> None:
        """q and out [T, heads, head_dim]; keys and values [pages, page_size, kv_heads, head_dim]."""
        self.module.paged_run(
            self.floats,
            self.integers,
            self.planned,
            q,
            keys,
            values,
            self.rows.query_indptr,
            self.rows.page_indptr,
            self.rows.page_ids,
            self.rows.last_page_lens,
            out,
            None,  # no sums of exponentials
            int(self.causal),  # FlashInfer's MaskMode
            _NHD,
            self.window_left,
            self.dependent,
            *(None,) * 6,  # masks, slopes and prefixes of other kinds of attention
            layer.softcap or 0.0,
            layer.scale,
            *(None,) * 3,  # scales of 8-bit numbers
            1.0,
            1e4,  # of rotary embeddings, which are none of its business here
            0,
            0,
        )


class Planner:
    """Plans launches on one device: the memory of all of them.

    The float workspace, for parts of split contexts, is one for all, as launches run one after the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._multiprocessors = multiprocessors(device)
        self._dependent = torch.cuda.get_device_capability(device) >= (9, 0)
        self._floats = torch.zeros(0, dtype=torch.uint8, device=device)
        self._ring = [_page_locked(_INT_BYTES) for _ in range(_RING)]
        self._copied: list[torch.cuda.Event | None] = [None] * _RING
        self._turn = 0

    def floats(self, kind: Kind, recorded_rows: int = 0) -> Tensor:
        """Memory for the parts of split contexts."""
        needed = float_bytes(kind, self._multiprocessors, recorded_rows)
        if needed > len(self._floats):
            self._floats = torch.zeros(needed, dtype=torch.uint8, device=self._device)
        return self._floats

    def can_record(self, kind: Kind, rows: int) -> bool:
        """Whether the parts of so many rows may take what they need."""
        return float_bytes(kind, self._multiprocessors, rows) <= MOST_RECORDED_BYTES

    def integers(self, recorded_rows: int = 0) -> Tensor:
        """Memory for the plan of one kind of launch."""
        size = integer_bytes(self._multiprocessors, recorded_rows)
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def plan(
        self,
        kind: Kind,
        family: Family,
        host: HostRows,
        rows: DeviceRows,
        *,
        page_size: int,
        causal: bool,
        floats: Tensor,
        integers: Tensor,
        recorded: bool = False,
    ) -> Launch:
        """Plan a launch over these rows, in the current stream's order."""
        count = len(host.seq_lens)
        module = kind.kernels(family)
        pinned = self._next_pinned()
        planned = module.plan(
            floats,
            integers,
            pinned,
            host.query_indptr,
            host.page_indptr,
            host.seq_lens,
            int(host.query_indptr[-1]),
            count,
            kind.heads,
            kind.kv_heads,
            page_size,
            recorded,
            kind.head_dim,
            kind.head_dim,
            causal,
            kind.window_left,
            *self._family_arguments(family),
        )
        self._mark_copied()
        return Launch(module, rows, floats, integers, planned, causal, kind.window_left, self._dependent)

    @staticmethod
    def _family_arguments(family: Family) -> Sequence[int | bool]:
        """fa2: no fixed size of the splits, splits allowed, nothing beside it on the card."""
        return (-1, False, 0) if family == "fa2" else ()

    def _next_pinned(self) -> Tensor:
        self._turn = (self._turn + 1) % _RING
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        return self._ring[self._turn]

    def _mark_copied(self) -> None:
        event = self._copied[self._turn]
        if event is None:
            event = self._copied[self._turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        event.record()


def float_bytes(kind: Kind, multiprocessors: int, recorded_rows: int = 0) -> int:
    """What FlashInfer asks for, for the parts of split contexts; of a recorded launch, all rows are parts."""
    tile, group = 128, kind.heads // kind.kv_heads
    tiles = 2 * multiprocessors // kind.kv_heads
    if recorded_rows:
        tile = 16 if group <= 16 else 64 if group <= 64 else 128
        tiles = max(tiles, recorded_tiles(recorded_rows, group, tile))
    return kind.heads * tiles * tile * (kind.head_dim + 1) * 4 + 1024


def integer_bytes(multiprocessors: int, recorded_rows: int = 0) -> int:
    """For the plan of one kind of launch."""
    tiles = 2 * multiprocessors + 16 * recorded_rows
    return min(64 * tiles, _INT_BYTES) if recorded_rows else _INT_BYTES


def recorded_tiles(rows: int, group: int, tile: int) -> int:
    """Tiles of query rows that FlashInfer allows for in a recorded launch of so many rows of one token."""
    return -(-rows * group // tile) + rows - 1


def _page_locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
