"""What an attention backend is: `plan` once a step, then `run` once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from palmette.runtime.batch import Int32Array, StepPlan
from palmette.runtime.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.runtime.layers.attention import RadixAttention
    from palmette.runtime.layers.rotary import Angles


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The part of a step that attention needs; fields as in `StepPlan`.

    Attributes:
        kv_slots: [T], where each token's key and value are written.
        query_indptr: [R + 1], tokens of row r are query_indptr[r] to query_indptr[r + 1].
        page_indptr: [R + 1], into page_ids.
        page_ids: pages of each row's whole context, in order; the last may be partly filled.
        seq_lens: [R], tokens of context including this step's.
        num_decodes: the first so many rows have one token each; a row after them may have one as well.
    """

    kv_slots: Int32Array
    query_indptr: Int32Array
    page_indptr: Int32Array
    page_ids: Int32Array
    seq_lens: Int32Array
    num_decodes: int = 0

    @classmethod
    def of(cls, plan: StepPlan) -> AttentionPlan:
        """The part of `plan` that attention needs."""
        counts = np.diff(plan.query_indptr)
        num_decodes = len(counts) if (counts == 1).all() else int((counts != 1).argmax())
        return cls(plan.kv_slots, plan.query_indptr, plan.page_indptr, plan.page_ids, plan.seq_lens, num_decodes)


class StepAttention(Protocol):
    """Causal attention over paged keys and values, for the rows of one step."""

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        """Turn queries and keys by their positions' angles, write keys and values at the step's kv_slots, attend.

        All rows' keys and values are written before any row is computed: a row may have pages that another one writes.

        Args:
            qkv: [T, layer.num_heads + 2 * layer.num_kv_heads, layer.head_dim], contiguous: queries, keys, values. The
                backend may overwrite it.
            angles: of the tokens' positions; None leaves queries and keys as they are.

        Returns:
            [T, layer.num_heads, layer.head_dim]. The token at position p of a row sees positions 0 to p of it, or the
            last `sliding_window` of those; scores are scaled by layer.scale and capped by layer.softcap.
        """


class PlannedAttention(StepAttention, Protocol):
    """The same for one step after the other."""

    def plan(self, batch: AttentionPlan) -> None:
        """Prepare for a step's rows. Must not wait for the device."""


class AttentionBackend(PlannedAttention, Protocol):
    """The same for steps of any kind."""

    def decode_graph(self, rows: int, context_length: int) -> PlannedAttention | None:
        """Attention for steps of exactly `rows` rows of one token each, of at most `context_length` tokens of context.

        Its `plan` fills memory that was allocated once, and its `run`, once it has run every layer, only launches
        kernels over that memory: it may be recorded as a CUDA graph that is replayed after each `plan`. Rows that fill
        a step up are ordinary ones, of one token on a spare page. Two such backends are never between plan and replay
        at once: they may share memory. Make the one of the most rows first, and less is allocated.

        None where this backend cannot be recorded.
        """


class KernelCompilationError(EngineError):
    """A library's kernels could not be compiled on this machine. The message says why."""


@runtime_checkable
class CompiledAttention(Protocol):
    """A backend whose kernels are compiled at their first use."""

    def warm_up(self, layers: Sequence[RadixAttention]) -> None:
        """Compile, or load from the machine's cache, what a model's layers need, before a request waits for it.

        Raises:
            KernelCompilationError: that failed.
        """
