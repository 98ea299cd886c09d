"""Attention by Palmette's own kernels: wherever Triton runs, every head size, dtype and page size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from palmette.runtime.batch import Int32Array
from palmette.runtime.kernels.decode_attention import (
    LEAST_CHUNK,
    DecodeRows,
    decode_attention,
    item_lists,
    most_splits,
    split_rows,
)
from palmette.runtime.kernels.launch_sizes import multiprocessors
from palmette.runtime.kernels.prefill_attention import (
    BLOCKS_M,
    PrefillRows,
    PrefillTile,
    prefill_attention,
    prefill_tile,
    work_list,
)
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.rotary import Angles
from palmette.runtime.pinned_staging import PinnedStaging, staged_words

from .base import AttentionPlan
from .paged import GraphBuffer, kinds_of, most_pages, query_lens, spare_plan, write_and_attend


@dataclass(frozen=True, slots=True)
class _Prefill:
    """The rows after the decodes; query_indptr counts the tokens after theirs."""

    rows: PrefillRows
    tile: PrefillTile
    group: int


@dataclass(frozen=True, slots=True)
class _Step:
    """See `PagedStep`."""

    storage: KVStorage
    kv_slots: Tensor
    num_decodes: int
    decode: DecodeRows | None
    is_split: bool
    prefill: _Prefill | None

    def attend(self, q: Tensor, layer: RadixAttention, out: Tensor) -> None:
        keys, values = self.storage.keys[layer.layer_id], self.storage.values[layer.layer_id]
        count = self.num_decodes
        if self.decode is not None:
            decode_attention(
                q[:count],
                keys,
                values,
                self.decode,
                out[:count],
                page_size=self.storage.page_size,
                scale=layer.scale,
                softcap=layer.softcap,
                window=layer.sliding_window,
                merge=self.is_split,
            )
        if self.prefill is not None:
            prefill_attention(
                q[count:],
                keys,
                values,
                self.prefill.rows,
                out[count:],
                tile=self.prefill.tile,
                page_size=self.storage.page_size,
                scale=layer.scale,
                softcap=layer.softcap,
                window=layer.sliding_window,
            )


class TritonAttention:
    """See `AttentionBackend`. Decode rows and the others are one launch each, and two where long contexts are split."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._staging = PinnedStaging(storage.device)
        self._more = most_splits(storage.keys[0].shape[1], multiprocessors(storage.device))
        self._graph_buffer = GraphBuffer(storage.device)
        self._group = 1
        self._batch: AttentionPlan | None = None
        self._step: _Step | None = None

    def plan(self, batch: AttentionPlan) -> None:
        """Prepare for a step's rows: everything goes to the device in one copy."""
        self._batch = batch
        decodes = batch.num_decodes
        splits = split_rows(batch.seq_lens[:decodes], self._more) if decodes else np.empty(0, dtype=np.int32)
        prefill, tile = self._prefill_work(batch)
        shared = [batch.kv_slots, batch.page_ids, batch.page_indptr, batch.seq_lens]
        arrays = [*shared, *item_lists(splits), *prefill]
        kv_slots, page_ids, page_indptr, seq_lens, item_rows, split_indptr, *work = self._staging.upload(arrays)
        decode = DecodeRows(page_ids, page_indptr, seq_lens, item_rows, split_indptr) if decodes else None
        rows = None
        if work:
            rest = PrefillRows(page_ids, work[0], work[1], work[2], work[3], work[4])
            rows = _Prefill(rest, tile, self._group)
        self._step = _Step(self._storage, kv_slots, decodes, decode, bool((splits > 1).any()), rows)

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn, write and attend; shapes as in `StepAttention.run`."""
        group = layer.num_heads // layer.num_kv_heads
        assert self._step is not None
        assert self._batch is not None
        if self._step.prefill is not None and self._step.prefill.group != group:  # the first layer tells the model's
            self._group = group
            self.plan(self._batch)
        return write_and_attend(self._storage, self._step, qkv, layer, angles)

    def warm_up(self, layers: Sequence[RadixAttention]) -> None:
        """Compile what the layers of a model need, where it is not in Triton's cache, before a request waits for it."""
        for layer in kinds_of(layers):
            self._try(layer, spare_plan(self._storage, 1, decode=True, before=LEAST_CHUNK))  # in two parts
            for block in BLOCKS_M:
                tokens = max(1, block * layer.num_kv_heads // layer.num_heads)
                self._try(layer, spare_plan(self._storage, tokens, decode=False))

    def _try(self, layer: RadixAttention, batch: AttentionPlan) -> None:
        total = layer.num_heads + 2 * layer.num_kv_heads
        self.plan(batch)
        self.run(self._storage.keys[0].new_zeros(len(batch.kv_slots), total, layer.head_dim), layer)

    def decode_graph(self, rows: int, context_length: int) -> TritonDecodeGraph:
        """See `AttentionBackend.decode_graph`."""
        return TritonDecodeGraph(self._storage, self._staging, self._graph_buffer, rows, context_length, self._more)

    def _prefill_work(self, batch: AttentionPlan) -> tuple[list[Int32Array], PrefillTile]:
        """Arrays of `PrefillRows` from page_indptr on, none without such rows, and the tile they are for."""
        first = batch.num_decodes
        keys = self._storage.keys[0]
        lens = query_lens(batch)[first:]
        tile = prefill_tile(keys.shape[-1], keys.dtype, int(lens.max(initial=1)) * self._group)
        if not len(lens):
            return [], tile
        seq_lens = batch.seq_lens[first:]
        items = work_list(lens, seq_lens, self._group, tile.block_m)
        return [batch.page_indptr[first:], seq_lens, batch.query_indptr[first:] - first, *items], tile


class TritonDecodeGraph:
    """Attention for steps of exactly so many rows of one token each: see `AttentionBackend.decode_graph`."""

    def __init__(
        self,
        storage: KVStorage,
        staging: PinnedStaging,
        memory: GraphBuffer,
        rows: int,
        context_length: int,
        more: int,
    ) -> None:
        self._storage = storage
        self._staging = staging
        self._more = more
        self._items = rows + more
        pages = most_pages(rows, context_length, storage.page_size)
        self._buffer = memory.of(staged_words([rows, rows + 1, rows, self._items, rows + 1, pages]))
        self._step: _Step | None = None

    def plan(self, batch: AttentionPlan) -> None:
        """Bring a step's rows to where the recorded launches read them."""
        splits = split_rows(batch.seq_lens, self._more)
        item_rows, split_indptr = item_lists(splits, self._items)
        arrays = [batch.kv_slots, batch.page_indptr, batch.seq_lens, item_rows, split_indptr, batch.page_ids]
        kv_slots, page_indptr, seq_lens, items, indptr, page_ids = self._staging.upload(arrays, self._buffer)
        rows = DecodeRows(page_ids, page_indptr, seq_lens, items, indptr)
        self._step = _Step(self._storage, kv_slots, len(batch.seq_lens), rows, True, None)

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn, write and attend; shapes as in `StepAttention.run`."""
        assert self._step is not None
        return write_and_attend(self._storage, self._step, qkv, layer, angles)
