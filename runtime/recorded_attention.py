"""Attention as a recorded step meets it: padded rows of decodes, and what stands between the pieces of other steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .attention import AttentionPlan, StepAttention
from .batch import Int32Array
from .kv_storage import KVStorage
from .layers.attention import RadixAttention
from .layers.rotary import Angles
from .step_recorder import StepRecorder

Piece = Callable[[int], None]
"""Computes a part of a step, of whose tokens so many are real."""


class FirstTokens:
    """See `StepAttention`. Attention for the first tokens of a padded step; the others get zeros."""

    def __init__(self, attention: StepAttention, tokens: int) -> None:
        self._attention = attention
        self._tokens = tokens

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        out = qkv.new_zeros(len(qkv), layer.num_heads, layer.head_dim)
        _attend_first(self._attention, self._tokens, qkv, layer, angles, out)
        return out


class Pieces:
    """See `StepAttention`. Ends a graph at every layer's attention, which stays outside, and begins the next one."""

    def __init__(self, attention: StepAttention, recorder: StepRecorder) -> None:
        self._attention = attention
        self._recorder = recorder
        self._pieces: list[Piece] = []
        self._out: dict[tuple[int, ...], Tensor] = {}  # by shape: a layer reads it before the next one's is written

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        self._end_piece()
        shape = (len(qkv), layer.num_heads, layer.head_dim)
        if shape not in self._out:
            self._out[shape] = qkv.new_zeros(shape)
        out, lent = self._out[shape], self._recorder.lent(qkv)

        def attend(tokens: int) -> None:
            _attend_first(self._attention, tokens, lent, layer, angles, out)

        self._pieces.append(attend)
        self._recorder.begin()
        return out

    def end(self) -> list[Piece]:
        """The whole step, piece by piece; each is told how many tokens are real."""
        self._end_piece()
        return self._pieces

    def _end_piece(self) -> None:
        launch = self._recorder.end()
        self._pieces.append(lambda tokens: launch())


def _attend_first(
    attention: StepAttention, tokens: int, qkv: Tensor, layer: RadixAttention, angles: Angles | None, out: Tensor
) -> None:
    """Attention of the first tokens of qkv, into the first rows of out."""
    turned = None if angles is None else (angles[0][:tokens], angles[1][:tokens])
    out[:tokens].copy_(attention.run(qkv[:tokens], layer, turned))


def padded_plan(plan: AttentionPlan, rows: int, storage: KVStorage) -> AttentionPlan:
    """A plan of decodes with more rows, each of one token on the storage's spare page."""
    more = rows - len(plan.seq_lens)
    if not more:
        return plan
    return replace(
        plan,
        kv_slots=_extended(plan.kv_slots, np.full(more, storage.spare_page * storage.page_size)),
        query_indptr=np.arange(rows + 1, dtype=np.int32),
        page_indptr=_extended(plan.page_indptr, plan.page_indptr[-1] + np.arange(1, more + 1)),
        page_ids=_extended(plan.page_ids, np.full(more, storage.spare_page)),
        seq_lens=_extended(plan.seq_lens, np.ones(more)),
        num_decodes=rows,
    )


def _extended(array: Int32Array, more: npt.NDArray[np.integer | np.floating]) -> Int32Array:
    return np.concatenate((array, more.astype(np.int32)))
