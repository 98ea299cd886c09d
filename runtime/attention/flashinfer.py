"""Attention by FlashInfer: its tensor-core decode for the decode rows, FlashAttention 2 or 3 for the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palmette.runtime.batch import Int32Array
from palmette.runtime.errors import EngineError
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.rotary import Angles
from palmette.runtime.pinned_staging import PinnedStaging, staged_words

from .base import AttentionPlan
from .flashinfer_kernels import Family, Kind
from .flashinfer_planner import DeviceRows, HostRows, Launch, Planner
from .paged import GraphBuffer, kinds_of, last_page_lens, most_pages, query_lens, spare_plan, write_and_attend

_FA3_SHARE = 0.75
"""FlashAttention 3 is up to 1.5 times as quick as 2, but gives each query head tiles of its own: of so many of their
rows must be real. Measured on an H200, us a layer: 8 x 1024 causal 216 against 278; 64 x 64 over 2112, where half are
real, 629 against 440."""


def prefers_fa3(lens: Int32Array, seq_lens: Int32Array, head_dim: int) -> bool:
    """Whether FlashAttention 3's tiles are filled well enough by rows of these lengths [R], each by its context."""
    tile = 192 if head_dim == 64 else 128
    work = lens * seq_lens.astype(np.int64)
    padded = -(-lens // tile) * tile * seq_lens.astype(np.int64)
    return bool(work.sum() >= _FA3_SHARE * padded.sum())


@dataclass(frozen=True, slots=True)
class _Part:
    """Decode rows, or the rows after them: tokens first to stop of the step."""

    first: int
    stop: int
    family: Family
    causal: bool
    host: HostRows
    rows: DeviceRows


class FlashInferAttention:
    """See `AttentionBackend`. What a step's rows are split into is found once for each kind of layer."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._pages = _pages_of(storage)
        self._planner = Planner(storage.device)
        self._staging = PinnedStaging(storage.device)
        self._graph_buffer = GraphBuffer(storage.device)
        self._hopper = torch.cuda.get_device_capability(storage.device)[0] == 9
        self._integers: dict[tuple[Kind, bool], Tensor] = {}
        self._parts: tuple[_Part, ...] = ()
        self._launches: dict[Kind, tuple[Launch, ...]] = {}
        self.kv_slots = torch.empty(0, dtype=torch.int32)

    def plan(self, batch: AttentionPlan) -> None:
        """Prepare for a step's rows: one copy to the device, and one more for each kind of layer when it first runs."""
        decodes = batch.num_decodes
        starts = np.arange(decodes + 1, dtype=np.int32)
        rest = batch.query_indptr[decodes:] - decodes
        last = last_page_lens(batch, self._storage.page_size)
        arrays = [batch.kv_slots, batch.page_ids, batch.page_indptr, last, starts, rest]
        self.kv_slots, page_ids, page_indptr, last_lens, device_starts, device_rest = self._staging.upload(arrays)
        self._launches = {}
        parts = []
        if decodes:
            host = HostRows(
                *map(torch.from_numpy, (starts, batch.page_indptr[: decodes + 1], batch.seq_lens[:decodes]))
            )
            rows = DeviceRows(device_starts, page_indptr[: decodes + 1], page_ids, last_lens[:decodes])
            parts.append(_Part(0, decodes, "fa2", False, host, rows))
        if decodes < len(batch.seq_lens):
            host = HostRows(*map(torch.from_numpy, (rest, batch.page_indptr[decodes:], batch.seq_lens[decodes:])))
            rows = DeviceRows(device_rest, page_indptr[decodes:], page_ids, last_lens[decodes:])
            parts.append(_Part(decodes, len(batch.kv_slots), self._family(batch), True, host, rows))
        self._parts = tuple(parts)

    def _family(self, batch: AttentionPlan) -> Family:
        """Of the rows after the decodes."""
        first = batch.num_decodes
        head_dim = self._storage.keys[0].shape[-1]
        wins = self._hopper and prefers_fa3(query_lens(batch)[first:], batch.seq_lens[first:], head_dim)
        return "fa3" if wins else "fa2"

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn, write and attend; shapes as in `StepAttention.run`."""
        return write_and_attend(self._storage, self, qkv, layer, angles)

    def attend(self, q: Tensor, layer: RadixAttention, out: Tensor) -> None:
        """See `PagedStep`."""
        kind = Kind.of(layer, q.dtype)
        if kind not in self._launches:
            self._launches[kind] = tuple(self._launch(kind, part) for part in self._parts)
        keys, values = self._pages[layer.layer_id]
        for part, launch in zip(self._parts, self._launches[kind], strict=True):
            launch.run(q[part.first : part.stop], keys, values, out[part.first : part.stop], layer)

    def _launch(self, kind: Kind, part: _Part) -> Launch:
        key = (kind, part.causal)
        if key not in self._integers:
            self._integers[key] = self._planner.integers()
        return self._planner.plan(
            kind,
            part.family,
            part.host,
            part.rows,
            page_size=self._storage.page_size,
            causal=part.causal,
            floats=self._planner.floats(kind),
            integers=self._integers[key],
        )

    def warm_up(self, layers: Sequence[RadixAttention]) -> None:
        """Compile, or load, every kernel that a model's layers may need."""
        kinds = kinds_of(layers)
        families: tuple[Family, ...] = ("fa2", "fa3") if self._hopper else ("fa2",)
        dtype = self._storage.keys[0].dtype
        with ThreadPoolExecutor() as pool:  # nvcc takes up to a minute for each, on one core
            list(pool.map(lambda of: Kind.of(of[0], dtype).kernels(of[1]), itertools.product(kinds, families)))
        for layer in kinds:
            total = layer.num_heads + 2 * layer.num_kv_heads
            for tokens, decode in ((1, True), (16, False), (192, False)):  # decodes; FlashAttention 2; 3 on a Hopper
                self.plan(spare_plan(self._storage, tokens, decode=decode))
                self.run(self._storage.keys[0].new_zeros(tokens, total, layer.head_dim), layer)

    def decode_graph(self, rows: int, context_length: int) -> FlashInferDecodeGraph | None:
        """See `AttentionBackend.decode_graph`; None where the parts of so many rows would take too much memory."""
        kinds = {kind for kind, _ in self._integers}
        if not all(self._planner.can_record(kind, rows) for kind in kinds):
            return None
        for kind in kinds:  # now, so that the graph of most rows, which is made first, has all graphs' memory
            self._planner.floats(kind, rows)
        words = staged_words(
            [rows, rows + 1, rows, rows + 1, most_pages(rows, context_length, self._storage.page_size)]
        )
        return FlashInferDecodeGraph(
            self._storage, self._pages, self._planner, self._staging, self._graph_buffer.of(words), rows
        )


class FlashInferDecodeGraph:
    """Attention for steps of exactly so many rows of one token each: see `AttentionBackend.decode_graph`."""

    def __init__(
        self,
        storage: KVStorage,
        pages: Sequence[tuple[Tensor, Tensor]],
        planner: Planner,
        staging: PinnedStaging,
        buffer: Tensor,
        rows: int,
    ) -> None:
        self._storage = storage
        self._pages = pages
        self._planner = planner
        self._staging = staging
        self._buffer = buffer
        self._count = rows
        self._starts = np.arange(rows + 1, dtype=np.int32)
        self._memory: dict[Kind, tuple[Tensor, Tensor]] = {}
        self._launches: dict[Kind, Launch] = {}
        self._rows: tuple[HostRows, DeviceRows] | None = None
        self.kv_slots = torch.empty(0, dtype=torch.int32)

    def plan(self, batch: AttentionPlan) -> None:
        """Bring a step's rows to where recorded launches read them, and plan for the kinds of layers seen before."""
        last = last_page_lens(batch, self._storage.page_size)
        arrays = [batch.kv_slots, batch.page_indptr, last, self._starts, batch.page_ids]
        self.kv_slots, page_indptr, last_lens, starts, page_ids = self._staging.upload(arrays, self._buffer)
        host = HostRows(*map(torch.from_numpy, (self._starts, batch.page_indptr, batch.seq_lens)))
        self._rows = host, DeviceRows(starts, page_indptr, page_ids, last_lens)
        for kind in self._memory:
            self._launches[kind] = self._launch(kind)

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn, write and attend; shapes as in `StepAttention.run`."""
        return write_and_attend(self._storage, self, qkv, layer, angles)

    def attend(self, q: Tensor, layer: RadixAttention, out: Tensor) -> None:
        """See `PagedStep`.

        Raises:
            EngineError: the step is being recorded, and no layer of this kind was run before.
        """
        kind = Kind.of(layer, q.dtype)
        if kind not in self._launches:
            if torch.cuda.is_current_stream_capturing():
                raise EngineError("attention cannot be planned while it is recorded: run the step once before")
            self._memory[kind] = (self._planner.floats(kind, self._count), self._planner.integers(self._count))
            self._launches[kind] = self._launch(kind)
        self._launches[kind].run(q, *self._pages[layer.layer_id], out, layer)

    def _launch(self, kind: Kind) -> Launch:
        assert self._rows is not None
        host, rows = self._rows
        floats, integers = self._memory[kind]
        return self._planner.plan(
            kind,
            "fa2",
            host,
            rows,
            page_size=self._storage.page_size,
            causal=False,
            floats=floats,
            integers=integers,
            recorded=True,
        )


def _pages_of(storage: KVStorage) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, [pages, page_size, kv_heads, head_dim]."""
    shape = (-1, storage.page_size, *storage.keys[0].shape[1:])
    return [(k.view(shape), v.view(shape)) for k, v in zip(storage.keys, storage.values, strict=True)]
