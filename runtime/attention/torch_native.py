"""Attention in plain torch: right for every case, the oracle of other backends, and the CPU's default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from palmette.runtime.batch import Int32Array
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.operators import operators_for
from palmette.runtime.layers.rotary import Angles

from .base import AttentionPlan

Int64Array = npt.NDArray[np.int64]

_MOST_SCORES = 1 << 25
"""Scores that are held at once where torch has no fused operator (128 MB in float32)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: its tokens are `start` to `stop` of the batch, its context's slots are kv_slots [seq_len]."""

    start: int
    stop: int
    kv_slots: Int64Array

    @property
    def query_len(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """The step computes the row's whole context, so that nothing need be read back from the pages."""
        return self.query_len == len(self.kv_slots)

    def visible_slots(self, window: int | None) -> Int64Array:
        """Slots that any of the row's tokens sees."""
        return self.kv_slots if window is None else self.kv_slots[-(window + self.query_len - 1) :]


class DecodeRows(Protocol):
    """Rows of one token each, ready to be computed for every layer of one window."""

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, layer: RadixAttention) -> Tensor:
        """q [D, heads, head_dim], keys and values [all slots, kv_heads, head_dim] -> [D, heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class _GatheredRows:
    """The slots that each row sees [D, L], padded, and which are real [D, 1, 1, L] (None: all)."""

    kv_slots: Tensor
    mask: Tensor | None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, layer: RadixAttention) -> Tensor:
        count, length = self.kv_slots.shape
        shape = (count, length, layer.num_kv_heads, layer.head_dim)
        k, v = (x.index_select(0, self.kv_slots.view(-1)).view(shape).transpose(1, 2) for x in (keys, values))
        grouped = q.reshape(count, layer.num_kv_heads, -1, layer.head_dim)
        if layer.softcap is None:
            out = functional.scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, scale=layer.scale)
        else:
            out = _capped_attention(grouped, k, v, self.mask, layer.scale, layer.softcap)
        return out.reshape(count, layer.num_heads, layer.head_dim)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A row of several tokens: the slots they see [L], and which token sees which [Q, L] (None: plainly causal)."""

    row: Row
    kv_slots: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _Work:
    """A step under one window: decode rows, their tokens [D] in the batch, and the other rows."""

    decode: DecodeRows | None
    tokens: Tensor
    prefills: tuple[_Prefill, ...]


class TorchNativeAttention:
    """See `AttentionBackend`. Decode rows are computed together, prefill rows one by one."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._rotate = operators_for(storage.placement).rotate
        self._kv_slots = torch.empty(0, dtype=torch.int64)
        self._rows: tuple[Row, ...] = ()
        self._work: dict[int | None, _Work] = {}

    def plan(self, batch: AttentionPlan) -> None:
        """Prepare for a step's rows."""
        self._kv_slots = self._upload(batch.kv_slots.astype(np.int64))
        self._rows = tuple(_rows(batch, self._storage.page_size))
        self._work = {}

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn, write and attend; shapes as in `StepAttention.run`."""
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        qk = qkv if angles is None else self._rotate(qkv, heads + kv_heads, *angles)
        q, k, v = qk[:, :heads], qk[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        self._storage.write(layer.layer_id, self._kv_slots, k, v)
        if layer.sliding_window not in self._work:
            self._work[layer.sliding_window] = self._prepare(layer.sliding_window)
        work = self._work[layer.sliding_window]
        keys, values = self._storage.keys[layer.layer_id], self._storage.values[layer.layer_id]
        if work.decode is not None and not work.prefills:
            return work.decode.attend(q, keys, values, layer)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if work.decode is not None:
            out[work.tokens] = work.decode.attend(q[work.tokens], keys, values, layer)
        for prefill in work.prefills:
            part = slice(prefill.row.start, prefill.row.stop)
            out[part] = self._prefill(prefill, q[part], k[part], v[part], layer)
        return out

    def decode_graph(self, rows: int, context_length: int) -> None:
        """None: the work depends on the rows."""

    def _prefill(self, work: _Prefill, q: Tensor, k: Tensor, v: Tensor, layer: RadixAttention) -> Tensor:
        """q [Q, heads, head_dim], k and v [Q, kv_heads, head_dim] of one row."""
        if work.kv_slots is not None:
            k = self._storage.keys[layer.layer_id].index_select(0, work.kv_slots)
            v = self._storage.values[layer.layer_id].index_select(0, work.kv_slots)
        if layer.softcap is not None:
            return _capped_prefill(q, k, v, work.mask, layer.scale, layer.softcap)
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k.transpose(0, 1).unsqueeze(0),
            v.transpose(0, 1).unsqueeze(0),
            attn_mask=work.mask,
            is_causal=work.mask is None,
            scale=layer.scale,
            enable_gqa=layer.num_heads != layer.num_kv_heads,
        )
        return out.squeeze(0).transpose(0, 1)

    def _prepare(self, window: int | None) -> _Work:
        decodes = [row for row in self._rows if row.query_len == 1]
        return _Work(
            self._decode_rows(decodes, window) if decodes else None,
            self._upload(np.array([row.start for row in decodes], dtype=np.int64)),
            tuple(self._prepare_prefill(row, window) for row in self._rows if row.query_len > 1),
        )

    def _decode_rows(self, rows: Sequence[Row], window: int | None) -> DecodeRows:
        seen = [row.visible_slots(window) for row in rows]
        lengths = np.array([len(slots) for slots in seen])
        padded = np.empty((len(rows), lengths.max()), dtype=np.int64)
        for line, slots in zip(padded, seen, strict=True):
            line[: len(slots)] = slots
            line[len(slots) :] = slots[0]  # any slot that was written: zero weight times NaN would still be NaN
        real = np.arange(padded.shape[1]) < lengths[:, None]
        return _GatheredRows(self._upload(padded), None if real.all() else self._upload(real)[:, None, None, :])

    def _prepare_prefill(self, row: Row, window: int | None) -> _Prefill:
        if row.is_whole and (window is None or window >= row.query_len):
            return _Prefill(row, None, None)
        slots = row.visible_slots(window)
        queries = np.arange(len(slots) - row.query_len, len(slots))[:, None]
        keys = np.arange(len(slots))
        sees = keys <= queries
        if window is not None:
            sees &= keys > queries - window
        return _Prefill(row, None if row.is_whole else self._upload(slots), self._upload(sees))

    def _upload(self, array: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._storage.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._storage.device, non_blocking=True)


def _capped_prefill(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """q [Q, heads, head_dim] of one row over k and v [L, kv_heads, head_dim], a bounded number of scores at a time.

    Args:
        mask: [Q, L], which query sees which key; None is plainly causal, with Q = L.
    """
    count, heads, head_dim = q.shape
    grouped = q.view(count, k.shape[1], -1, head_dim).permute(1, 2, 0, 3)
    keys, values = k.transpose(0, 1).unsqueeze(1), v.transpose(0, 1).unsqueeze(1)
    if mask is None:
        mask = torch.ones(count, len(k), dtype=torch.bool, device=q.device).tril()
    at_once = max(1, _MOST_SCORES // (heads * len(k)))
    pieces = zip(torch.split(grouped, at_once, dim=2), torch.split(mask, at_once), strict=True)
    parts = [_capped_attention(part, keys, values, seen, scale, softcap) for part, seen in pieces]
    return torch.cat(parts, dim=2).permute(2, 0, 1, 3).reshape(count, heads, head_dim)


def _capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """Attention whose scores s are softcap * tanh(s / softcap); shapes as of torch's, the softmax in float32."""
    scores = (q @ k.transpose(-1, -2)).mul_(scale / softcap).tanh_().mul_(softcap).float()
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v


def _rows(batch: AttentionPlan, page_size: int) -> list[Row]:
    rows = []
    for r, seq_len in enumerate(batch.seq_lens.tolist()):
        pages = batch.page_ids[batch.page_indptr[r] : batch.page_indptr[r + 1]]
        start, stop = batch.query_indptr[r : r + 2].tolist()
        rows.append(Row(start, stop, _slots_of(pages, page_size)[:seq_len]))
    return rows


def _slots_of(pages: Int32Array, page_size: int) -> Int64Array:
    """Slots of all tokens of these pages, in order."""
    return (pages.astype(np.int64)[:, None] * page_size + np.arange(page_size)).reshape(-1)
