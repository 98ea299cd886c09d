"""What the GPU's backends share: keys and values written by one kernel, pages read where they lie, decodes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from palmette.runtime.batch import Int32Array
from palmette.runtime.kernels.rotary import rotate_and_write
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.rotary import Angles

from .base import AttentionPlan


class PagedStep(Protocol):
    """A step's rows on the device."""

    @property
    def kv_slots(self) -> Tensor:
        """[T] int32, where each token's key and value are written."""

    def attend(self, q: Tensor, layer: RadixAttention, out: Tensor) -> None:
        """Attention of q [T, heads, head_dim] into out, the step's own keys and values being written."""


def write_and_attend(
    storage: KVStorage, step: PagedStep, qkv: Tensor, layer: RadixAttention, angles: Angles | None
) -> Tensor:
    """`StepAttention.run` of a step."""
    cos, sin = angles or (None, None)
    keys, values = storage.keys[layer.layer_id], storage.values[layer.layer_id]
    q = rotate_and_write(qkv, layer.num_heads, layer.num_kv_heads, cos, sin, keys, values, step.kv_slots)
    out = torch.empty_like(q)
    step.attend(q, layer, out)
    return out


def last_page_lens(batch: AttentionPlan, page_size: int) -> Int32Array:
    """[R], tokens in the last page of each row."""
    return (batch.seq_lens - 1) % page_size + 1


def query_lens(batch: AttentionPlan) -> Int32Array:
    """[R], tokens of each row in the step."""
    return np.diff(batch.query_indptr)


def most_pages(rows: int, context_length: int, page_size: int) -> int:
    """Pages that rows of at most this context can have together."""
    return rows * -(-context_length // page_size)


class GraphBuffer:
    """Memory on the device that recorded launches of all sizes share, as they are never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(0, dtype=torch.int32, device=device)

    def of(self, words: int) -> Tensor:
        """At least so many int32; where it must grow, who has the old one keeps it."""
        if words > len(self._memory):
            self._memory = torch.zeros(words, dtype=torch.int32, device=self._memory.device)
        return self._memory


def kinds_of(layers: Iterable[RadixAttention]) -> Sequence[RadixAttention]:
    """One layer for each way in which attention is compiled."""
    return list(
        {(x.num_heads, x.num_kv_heads, x.head_dim, x.sliding_window, x.softcap is None): x for x in layers}.values()
    )


def spare_plan(storage: KVStorage, tokens: int, *, decode: bool, before: int = 0) -> AttentionPlan:
    """A row of so many tokens (one, if it is a decode) after others, all on the spare page, to try a backend with."""
    pages = -(-(before + tokens) // storage.page_size)
    first = storage.spare_page * storage.page_size
    return AttentionPlan(
        kv_slots=(first + (before + np.arange(tokens)) % storage.page_size).astype(np.int32),
        query_indptr=np.array([0, tokens], dtype=np.int32),
        page_indptr=np.array([0, pages], dtype=np.int32),
        page_ids=np.full(pages, storage.spare_page, dtype=np.int32),
        seq_lens=np.array([before + tokens], dtype=np.int32),
        num_decodes=int(decode),
    )
