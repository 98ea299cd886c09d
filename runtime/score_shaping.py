"""What changes a row's logits before a token is chosen: penalties, grammar mask, min_tokens and bias, in this order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import UNCONSTRAINED, Int32Array
from .mask_table import MaskTable
from .penalties import PenaltyCounts
from .pinned_staging import PinnedStaging
from .slot_options import SlotOptions


class ScoreShaper:
    """Shapes scores by the options of their rows' slots. All of it is torch, on any device."""

    def __init__(
        self, options: SlotOptions, penalties: PenaltyCounts, masks: MaskTable, staging: PinnedStaging
    ) -> None:
        self._options = options
        self._penalties = penalties
        self._masks = masks
        self._staging = staging

    def shaped_rows(self, slots: Int32Array, output_positions: Int32Array) -> npt.NDArray[np.intp]:
        """The rows for which more is to be done than a mask."""
        shaped = self._options.biased[slots] | self._held_back(slots, output_positions)
        if penalised := self._penalties.rows_of(slots):
            shaped[penalised] = True
        return np.flatnonzero(shaped)

    def _held_back(self, slots: Int32Array, output_positions: Int32Array) -> npt.NDArray[np.bool_]:
        return self._options.has_ends[slots] & (output_positions < self._options.min_tokens[slots])

    def shape(
        self, scores: Tensor, slots: Int32Array, output_positions: Int32Array, mask_rows: Int32Array | None
    ) -> Tensor:
        """Scores [R, V] of the rows of `slots` [R], shaped; the input itself where no row asks for anything.

        Args:
            mask_rows: [R], rows of the mask table.
        """
        held_back = np.flatnonzero(self._held_back(slots, output_positions))
        penalised = bool(self._penalties.rows_of(slots))
        biased = np.flatnonzero(self._options.biased[slots])
        if penalised or len(held_back) or len(biased):
            scores = scores.to(torch.float32, copy=True)
        if penalised:
            self._penalties.apply(scores, slots)
        if mask_rows is not None and (mask_rows != UNCONSTRAINED).any():
            scores = torch.minimum(scores, self._masks.ceilings(mask_rows)[:, : scores.shape[1]])
        if len(held_back):
            self._hold_back_ends(scores, slots, held_back)
        if len(biased):
            self._add_bias(scores, slots, biased)
        return scores

    def _hold_back_ends(self, scores: Tensor, slots: Int32Array, held_back: npt.NDArray[np.intp]) -> None:
        """Forbid the end tokens of rows that are still short of min_tokens, except where nothing else is allowed."""
        ends = [self._options.end_ids[slot] for slot in slots[held_back].tolist()]
        places = np.repeat(held_back, [len(ids) for ids in ends])
        rows, tokens = self._staging.upload([places.astype(np.int32), np.concatenate(ends)])
        before = scores[rows, tokens]
        scores[rows, tokens] = torch.full_like(before, -torch.inf)
        nothing_left = scores.amax(dim=1) == -torch.inf
        scores[rows, tokens] = torch.where(nothing_left[rows], before, -torch.inf)

    def _add_bias(self, scores: Tensor, slots: Int32Array, biased: npt.NDArray[np.intp]) -> None:
        entries = [self._options.bias[slot] for slot in slots[biased].tolist()]
        places = np.repeat(biased, [len(ids) for ids, _ in entries])
        tokens = np.concatenate([ids for ids, _ in entries])
        values = np.concatenate([values for _, values in entries])
        on_device = self._staging.upload([places.astype(np.int32), tokens, values.view(np.int32)])
        scores[on_device[0], on_device[1]] += on_device[2].view(torch.float32)  # -inf, a masked token, stays -inf
