"""A token for each row of a step: the protocol, its two forms, and which of them a device takes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .batch import NOT_FINITE, NOTHING_ALLOWED, Int32Array
from .philox import uniform
from .pinned_staging import PinnedStaging
from .sampled import Sampled
from .score_shaping import ScoreShaper
from .slot_options import SlotOptions
from .token_choice import argmax_rows, draw, drop_unlikely, kept_by_rank, likeliest, token_weights

LOGITS_AT_ONCE = 1 << 23
"""What takes many times the logits' memory is done for so many of them at a time (32 MiB in float32)."""

_DRAWN_AT_ONCE = LOGITS_AT_ONCE // 4
"""The same where torch draws tokens, which takes four times as much."""

_WORK_BYTES = 48
"""Most that shaping or log-probabilities take for each of these logits: 29 in torch's tensors, the rest within its
operators. A draw by torch: 58 of 192."""


def work_bytes(logits: int) -> int:
    """Memory that is at work at once where so many logits are shaped, drawn from, or scored."""
    return max(min(logits, LOGITS_AT_ONCE) * _WORK_BYTES, min(logits, _DRAWN_AT_ONCE) * 4 * _WORK_BYTES)


class TokenChooser(Protocol):
    """Chooses tokens by the options of the rows' slots."""

    def choose(
        self, logits: Tensor, slots: Int32Array, output_positions: Int32Array, mask_rows: Int32Array | None
    ) -> Sampled:
        """Tokens of logits [S, V], which are left as they are; each is also written to its slot's last token.

        Args:
            slots, output_positions: [S].
            mask_rows: [S], rows of the mask table, or `UNCONSTRAINED`; None for no masks.
        """


class TorchChooser:
    """The choice in torch's operators: for CPUs, and what the kernels are held to."""

    def __init__(
        self,
        options: SlotOptions,
        shaper: ScoreShaper,
        last_tokens: Tensor,
        valid_vocab: int,
        staging: PinnedStaging,
    ) -> None:
        self._options = options
        self._shaper = shaper
        self._last_tokens = last_tokens
        self._valid = valid_vocab
        self._staging = staging

    def choose(
        self, logits: Tensor, slots: Int32Array, output_positions: Int32Array, mask_rows: Int32Array | None
    ) -> Sampled:
        """See `TokenChooser`."""
        at_once = max(1, _DRAWN_AT_ONCE // logits.shape[1])
        parts = [slice(first, first + at_once) for first in range(0, len(slots) or 1, at_once)]
        token_ids = torch.cat(
            [
                self._choose(
                    logits[part, : self._valid],
                    slots[part],
                    output_positions[part],
                    None if mask_rows is None else mask_rows[part],
                )
                for part in parts
            ]
        )
        known = token_ids.clamp(min=0)
        self._last_tokens[self._upload(slots)] = known
        sampled = Sampled.empty(len(slots), self._options.logprobs[slots], self._valid, logits.device)
        sampled.token_ids.copy_(token_ids)
        if len(sampled.asked):
            fill_logprobs(sampled, logits, known, self._upload(sampled.asked), self._valid)
        return sampled

    def _choose(
        self, logits: Tensor, slots: Int32Array, output_positions: Int32Array, mask_rows: Int32Array | None
    ) -> Tensor:
        """[S] int64: the argmax of greedy rows, a draw for the others; negative where there is nothing to choose."""
        scores = self._shaper.shape(logits, slots, output_positions, mask_rows)
        token_ids = argmax_rows(scores)
        peaks = scores.gather(1, token_ids[:, None])
        random = np.flatnonzero(~self._options.greedy[slots])
        if len(random):
            rows = self._upload(random)
            token_ids[rows] = self._draw(
                scores[rows].float(), peaks[rows].float(), slots[random], output_positions[random]
            )
        failures = torch.where(peaks[:, 0] == -torch.inf, NOTHING_ALLOWED, NOT_FINITE)
        return torch.where(peaks[:, 0].isfinite(), token_ids, failures)

    def _draw(self, scores: Tensor, peaks: Tensor, slots: Int32Array, output_positions: Int32Array) -> Tensor:
        on_device = self._upload(slots)
        options = self._options.draw_options(on_device)
        weights = token_weights(scores, peaks, options.temperature)
        ranked = np.flatnonzero(self._options.ranked[slots])
        if len(ranked):
            rows = self._upload(ranked)
            weights[rows] *= kept_by_rank(scores[rows], peaks[rows], options.rows(rows))
        if self._options.floored[slots].any():
            weights = drop_unlikely(weights, options.min_p)
        return draw(weights, uniform(self._options.seeds(on_device), self._upload(output_positions).long()))

    def _upload(self, indices: np.ndarray[tuple[int], np.dtype[np.integer]]) -> Tensor:
        return self._staging.upload([indices.astype(np.int32)])[0]


def fill_logprobs(sampled: Sampled, logits: Tensor, token_ids: Tensor, rows: Tensor, valid_vocab: int) -> None:
    """Fill in the log-probabilities of the rows that ask for them.

    Args:
        logits: [S, V], raw.
        token_ids: [S] int64, what was sampled; 0 where that failed.
        rows: [A] int32, `sampled.asked` on the device.
    """
    at_once = max(1, LOGITS_AT_ONCE // logits.shape[1])
    for first in range(0, len(rows), at_once):
        part = slice(first, first + at_once)
        raw = logits[rows[part]].float()
        total = raw.logsumexp(dim=1, keepdim=True)
        sampled.asked_logprobs[part].copy_((raw.gather(1, token_ids[rows[part], None]) - total)[:, 0])
        if most := sampled.most:
            ids, values = likeliest(raw[:, :valid_vocab], most)
            sampled.top_ids[part].copy_(ids)
            sampled.top_logprobs[part].copy_(values - total)
