"""FlashInfer's paged attention, below its wrapper classes: those walk a step's rows one by one on the host.

FlashInfer's own `plan` splits the work of a step over the card, into page-locked memory whose copy to the device it
begins; its `run` reads that. The page-locked memory must stay as it is until it was copied: here it is a ring, each
part with an event.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from palmette.runtime.layers.attention import RadixAttention

Family = Literal["fa2", "fa3"]

HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)
_VERSION = "0.6."
"""Of FlashInfer, whose functions below the wrappers change with the second number."""

_INT_BYTES = 8 << 20
"""What FlashInfer's wrappers allocate for a plan."""
_RING = 4

_NO_POSITIONS = 0  # FlashInfer's PosEncodingMode.NONE
_NHD = 0  # its TensorLayout: [page, token, head, dim]

_log = logging.getLogger(__name__)


def missing(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashInfer cannot serve, and what to do; None where it can."""
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, not {device}"
    if importlib.util.find_spec("flashinfer") is None:
        return "FlashInfer is not installed: pip install 'palmette[gpu]'"
    version = importlib.metadata.version("flashinfer-python")
    if not version.startswith(_VERSION):
        return f"it needs FlashInfer {_VERSION}x, not {version}: pip install 'palmette[gpu]'"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 at least"
    if dtype not in _DTYPES:
        return f"it computes in bfloat16 or float16, not in {str(dtype).removeprefix('torch.')}"
    if head_dim not in HEAD_DIMS:
        return f"it has no kernels for heads of {head_dim}, only of {', '.join(map(str, HEAD_DIMS))}"
    if not _has_compiler():
        return "its kernels are compiled by nvcc, which was not found: install the CUDA toolkit, or set CUDA_HOME"
    return None


def _has_compiler() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = any(home and (Path(home) / "bin" / "nvcc").exists() for home in homes)
    return found or shutil.which("nvcc") is not None or importlib.util.find_spec("flashinfer_jit_cache") is not None


@functools.cache
def kernels(family: Family, dtype: torch.dtype, head_dim: int, has_window: bool, has_cap: bool) -> Any:
    """FlashInfer's module of one way to compute attention: compiled once a machine, which takes up to a minute."""
    from flashinfer.prefill import get_batch_prefill_module

    _log.info("compiling attention kernels, once a machine: FlashInfer %s, heads of %d", family, head_dim)
    arguments = (dtype, dtype, dtype, torch.int32, head_dim, head_dim, _NO_POSITIONS, has_window, has_cap, False)
    return get_batch_prefill_module(family, *arguments)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan depends on beside the rows."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None
    has_cap: bool

    @classmethod
    def of(cls, layer: RadixAttention, dtype: torch.dtype) -> Kind:
        return cls(
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            dtype,
            layer.sliding_window,
            layer.softcap is not None,
        )

    @property
    def window_left(self) -> int:
        """Tokens before a query's own that it sees; -1: all."""
        return -1 if self.window is None else self.window - 1

    def kernels(self, family: Family) -> Any:
        return kernels(family, self.dtype, self.head_dim, self.window is not None, self.has_cap)


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
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._dependent = torch.cuda.get_device_capability(device) >= (9, 0)
        self._floats = torch.zeros(0, dtype=torch.uint8, device=device)
        self._ring = [_page_locked(_INT_BYTES) for _ in range(_RING)]
        self._copied: list[torch.cuda.Event | None] = [None] * _RING
        self._turn = 0

    def floats(self, kind: Kind, recorded_rows: int = 0) -> Tensor:
        """Memory for the parts of split contexts; of a recorded launch, all rows are parts."""
        tile, group = 128, kind.heads // kind.kv_heads
        tiles = 2 * self._multiprocessors // kind.kv_heads
        if recorded_rows:
            tile = 16 if group <= 16 else 64 if group <= 64 else 128
            tiles = max(tiles, recorded_tiles(recorded_rows, group, tile))
        needed = kind.heads * tiles * tile * (kind.head_dim + 1) * 4 + 1024
        if needed > len(self._floats):
            size = 1 << (needed - 1).bit_length()
            self._floats = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return self._floats

    def integers(self, recorded_rows: int = 0) -> Tensor:
        """Memory for the plan of one kind of launch."""
        tiles = 2 * self._multiprocessors + 16 * recorded_rows
        size = 64 * tiles if recorded_rows else _INT_BYTES
        return torch.empty(min(size, _INT_BYTES), dtype=torch.uint8, device=self._device)

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


def recorded_tiles(rows: int, group: int, tile: int) -> int:
    """Tiles of query rows that FlashInfer allows for in a recorded launch of so many rows of one token."""
    return -(-rows * group // tile) + rows - 1


def _page_locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
