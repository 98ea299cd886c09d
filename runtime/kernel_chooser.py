"""The choice of tokens on a GPU: one upload, a few kernels, and one piece of memory to copy back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import UNCONSTRAINED, Int32Array
from .kernels.sampling import SamplingRows, choose_tokens
from .mask_table import MaskTable
from .pinned_staging import PinnedStaging
from .sampled import Sampled
from .score_shaping import ScoreShaper
from .slot_options import SlotOptions
from .token_chooser import LOGITS_AT_ONCE, fill_logprobs


class KernelChooser:
    """See `TokenChooser`. Rows with penalties, bias or held-back ends are shaped in torch first, and only those."""

    def __init__(
        self,
        options: SlotOptions,
        shaper: ScoreShaper,
        masks: MaskTable,
        last_tokens: Tensor,
        vocab_size: int,
        valid_vocab: int,
        staging: PinnedStaging,
    ) -> None:
        self._options = options
        self._shaper = shaper
        self._masks = masks
        self._last_tokens = last_tokens
        self._staging = staging
        self._width = vocab_size
        self._valid = valid_vocab
        self._none = np.full(len(last_tokens), UNCONSTRAINED, dtype=np.int32)

    def choose(
        self, logits: Tensor, slots: Int32Array, output_positions: Int32Array, mask_rows: Int32Array | None
    ) -> Sampled:
        """See `TokenChooser`."""
        greedy = self._options.greedy[slots]
        ranked = np.flatnonzero(self._options.ranked[slots] & ~greedy)
        shaped_rows = self._shaper.shaped_rows(slots, output_positions)
        sampled = Sampled.empty(len(slots), self._options.logprobs[slots], self._valid, logits.device)
        shaped: Tensor | None = None
        shaped_places = self._none[: len(slots)]
        if len(shaped_rows):
            shaped = self._shape(logits, slots, output_positions, mask_rows, shaped_rows)
            shaped_places = self._none[: len(slots)].copy()
            shaped_places[shaped_rows] = np.arange(len(shaped_rows))
            if mask_rows is not None:
                mask_rows = mask_rows.copy()
                mask_rows[shaped_rows] = UNCONSTRAINED
        masked = mask_rows is not None and bool((mask_rows != UNCONSTRAINED).any())
        rows, asked = self._upload(
            [slots, output_positions, mask_rows if mask_rows is not None and masked else self._none[: len(slots)]],
            shaped_places,
            ranked,
            sampled.asked,
        )
        choose_tokens(
            logits,
            rows,
            self._options.table,
            self._masks.words if masked else None,
            shaped,
            self._last_tokens,
            sampled.token_ids,
            valid_vocab=self._valid,
            random=not greedy.all(),
        )
        if len(sampled.asked):
            known = self._last_tokens[rows.slots]
            fill_logprobs(sampled, logits, known, asked, self._valid)
        return sampled

    def _upload(
        self,
        a_row: list[Int32Array],
        shaped_places: Int32Array,
        ranked: npt.NDArray[np.intp],
        asked: npt.NDArray[np.intp],
    ) -> tuple[SamplingRows, Tensor]:
        """All that the kernels are told, in one copy."""
        arrays = [*a_row, shaped_places, ranked.astype(np.int32), asked.astype(np.int32)]
        *rows, asked_on_device = self._staging.upload(arrays)
        return SamplingRows(*rows), asked_on_device

    def _shape(
        self,
        logits: Tensor,
        slots: Int32Array,
        output_positions: Int32Array,
        mask_rows: Int32Array | None,
        chosen: npt.NDArray[np.intp],
    ) -> Tensor:
        """[n, V] float32, the shaped scores of the chosen rows; what lies past the vocabulary means nothing."""
        (on_device,) = self._staging.upload([chosen.astype(np.int32)])
        shaped = torch.empty((len(chosen), self._width), dtype=torch.float32, device=logits.device)
        at_once = max(1, LOGITS_AT_ONCE // self._width)
        for first in range(0, len(chosen), at_once):
            part = slice(first, first + at_once)
            rows = chosen[part]
            scores = logits.index_select(0, on_device[part])[:, : self._valid]
            masks = None if mask_rows is None else mask_rows[rows]
            shaped[part, : self._valid] = self._shaper.shape(scores, slots[rows], output_positions[rows], masks)
        return shaped
