"""From logits to one token a row: penalties, grammar mask, min_tokens, bias, filters, and the draw itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import NOT_FINITE, NOTHING_ALLOWED, UNCONSTRAINED, Int32Array, SlotSetup, StepMasks, StepPlan, UInt32Array
from .errors import EngineError
from .penalties import PenaltyCounts
from .philox import uniform
from .slot_options import SlotOptions
from .token_choice import argmax_rows, draw, drop_unlikely, kept_by_rank, likeliest, token_weights
from .upload import upload


class Sampled(NamedTuple):
    """What one step sampled, on the sampler's device.

    Attributes:
        token_ids: [S] int32; `NOT_FINITE` or `NOTHING_ALLOWED` where the row could not be sampled.
        logprobs: [S] float32, under the raw logits; NaN where not asked for.
        top: per row the likeliest tokens under the raw logits, likeliest first, as (ids [k] int32, logprobs [k]
            float32); None where not asked for.
    """

    token_ids: Tensor
    logprobs: Tensor
    top: tuple[tuple[Tensor, Tensor] | None, ...]


class Sampler:
    """Samples the rows of a step by the options of their request slots.

    All state is held by slot on the device, so the next step may be launched before this one's tokens are known on the
    host: `last_tokens` has them ([max_slots] int64), and penalty counts are kept where the tokens are.

    A row's token depends on its own logits, its slot and its output position alone, never on the other rows. Greedy
    rows take the likeliest token, the lowest id of equals. A bias cannot bring back a token that the mask excludes.
    """

    def __init__(
        self,
        vocab_size: int,
        max_slots: int,
        mask_rows: int,
        device: torch.device | str,
        *,
        valid_vocab: int | None = None,
    ) -> None:
        """Make buffers for `max_slots` slots and `mask_rows` rows of the grammar mask table.

        Args:
            vocab_size: width of the logits.
            valid_vocab: how many tokens exist; ids from here to `vocab_size` are padding and never sampled.
        """
        self._vocab_size = vocab_size
        self._valid = vocab_size if valid_vocab is None else valid_vocab
        if not 0 < self._valid <= vocab_size:
            raise EngineError(f"valid_vocab={self._valid} must lie between 1 and the {vocab_size} logits of the model")
        self._device = torch.device(device)
        self._options = SlotOptions(self._valid, max_slots, self._device)
        self._penalties = PenaltyCounts(self._valid, self._device)
        self._masks = torch.zeros((mask_rows + 1, -(-vocab_size // 32)), dtype=torch.int32, device=self._device)
        self._masks[mask_rows] = -1  # all bits: the row of unconstrained rows
        self._ceilings = _byte_ceilings().to(self._device)
        self.last_tokens = torch.zeros(max_slots, dtype=torch.int64, device=self._device)

    @property
    def valid_vocab(self) -> int:
        """How many tokens exist; the logits from here on are padding."""
        return self._valid

    def load(self, setups: Sequence[SlotSetup]) -> None:
        """Replace all state of these slots.

        Raises:
            EngineError: a slot that does not exist, or a random request without a seed.
            RequestError: a logit bias on a token that the model does not have.
        """
        self._options.load(setups)
        for setup in setups:
            self._penalties.load(setup)
        continued = [(setup.slot, setup.output_ids[-1]) for setup in setups if len(setup.output_ids)]
        if continued:
            slots, last = self._upload(np.array(continued).T)
            self.last_tokens[slots] = last

    def write_masks(self, updates: tuple[Int32Array, UInt32Array] | None) -> None:
        """Write rows of the mask table: ids [U] and packed bits [U, ceil(vocab_size / 32)].

        Raises:
            EngineError: the bits are for another number of logits.
        """
        if updates is None:
            return
        rows, bits = updates
        if bits.shape != (len(rows), self._masks.shape[1]):
            raise EngineError(
                f"mask bits have shape {bits.shape}, but {len(rows)} rows of {self._vocab_size} logits "
                f"need {(len(rows), self._masks.shape[1])}"
            )
        packed = np.array(bits, dtype=np.uint32).view(np.int32)
        self._masks[self._upload(rows)] = upload(packed, self._device)

    def sample(self, logits: Tensor, plan: StepPlan, masks: StepMasks | None = None) -> Sampled:
        """Sample the plan's `sample_rows` from `logits`, [S, vocab_size], which are left as they are, under `masks`.

        Does not wait for the device. A row whose logits hold NaN or infinity, or whose mask allows no token, is marked
        in the result and does not touch the others.

        Raises:
            EngineError: the logits' shape is wrong.
        """
        if logits.shape != (len(plan.sample_rows), self._vocab_size):
            raise EngineError(
                f"logits have shape {tuple(logits.shape)}, but the step samples {len(plan.sample_rows)} rows "
                f"of {self._vocab_size} tokens"
            )
        self._penalties.count_forced(plan)
        if masks is not None:
            self.write_masks(masks.updates)
        slots = plan.slots[plan.sample_rows]
        scores = self._shape(logits[:, : self._valid], slots, plan, masks)
        token_ids = self._choose(scores, slots, plan.output_positions)
        known = token_ids.clamp(min=0)
        self.last_tokens[self._upload(slots)] = known
        self._penalties.count_sampled(slots, plan.seq_lens[plan.sample_rows], token_ids)
        logprobs, top = self._logprobs(logits, known, slots)
        return Sampled(token_ids.int(), logprobs, top)

    def _shape(self, scores: Tensor, slots: Int32Array, plan: StepPlan, masks: StepMasks | None) -> Tensor:
        """Penalties, mask, min_tokens and bias, in this order; the input itself where no row has any of them."""
        held_back = np.flatnonzero(plan.output_positions < self._options.min_tokens[slots])
        penalised = self._penalties.any_of(slots)
        biased = self._options.bias and any(slot in self._options.bias for slot in slots.tolist())
        if penalised or len(held_back) or biased:
            scores = scores.to(torch.float32, copy=True)
        if penalised:
            self._penalties.apply(scores, slots)
        if masks is not None and (masks.rows != UNCONSTRAINED).any():
            scores = torch.minimum(scores, self._mask_ceilings(masks.rows))
        if len(held_back):
            self._hold_back_ends(scores, slots, held_back)
        if biased:
            self._add_bias(scores, slots)
        return scores

    def _mask_ceilings(self, mask_rows: Int32Array) -> Tensor:
        """[S, valid_vocab]: +inf where the row's mask allows the token, -inf where it does not."""
        rows = self._upload(np.where(mask_rows == UNCONSTRAINED, len(self._masks) - 1, mask_rows))
        packed = self._masks[rows].view(torch.uint8)
        ceilings = self._ceilings.index_select(0, packed.flatten().int())
        return ceilings.view(len(mask_rows), -1)[:, : self._valid]

    def _hold_back_ends(self, scores: Tensor, slots: Int32Array, held_back: npt.NDArray[np.intp]) -> None:
        """Forbid the end tokens of rows that are still short of min_tokens, except where nothing else is allowed."""
        ends = [(index, self._options.end_ids.get(int(slots[index]))) for index in held_back]
        entries = [(index, ids) for index, ids in ends if ids is not None]
        if not entries:
            return
        rows = self._upload(np.concatenate([np.full(len(ids), index) for index, ids in entries]))
        tokens = self._upload(np.concatenate([ids for _, ids in entries]))
        before = scores[rows, tokens]
        scores[rows, tokens] = torch.full_like(before, -torch.inf)
        nothing_left = scores.amax(dim=1) == -torch.inf
        scores[rows, tokens] = torch.where(nothing_left[rows], before, -torch.inf)

    def _add_bias(self, scores: Tensor, slots: Int32Array) -> None:
        entries = [(index, *self._options.bias[s]) for index, s in enumerate(slots.tolist()) if s in self._options.bias]
        rows = self._upload(np.concatenate([np.full(len(ids), index) for index, ids, _ in entries]))
        tokens = self._upload(np.concatenate([ids for _, ids, _ in entries]))
        values = upload(np.concatenate([values for _, _, values in entries]), self._device)
        scores[rows, tokens] += values  # -inf, a masked token, stays -inf

    def _choose(self, scores: Tensor, slots: Int32Array, output_positions: Int32Array) -> Tensor:
        """[S] int64: the argmax of greedy rows, a draw for the others; negative where there is nothing to choose."""
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
        return draw(weights, uniform(self._options.seeds(on_device), self._upload(output_positions)))

    def _logprobs(
        self, logits: Tensor, token_ids: Tensor, slots: Int32Array
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor] | None, ...]]:
        """Log-probabilities of the sampled and the likeliest tokens under the raw logits, where asked for."""
        logprobs = torch.full((len(slots),), torch.nan, dtype=torch.float32, device=self._device)
        top: list[tuple[Tensor, Tensor] | None] = [None] * len(slots)
        counts = self._options.logprobs[slots]
        asked = np.flatnonzero(counts >= 0)
        if not len(asked):
            return logprobs, tuple(top)
        rows = self._upload(asked)
        raw = logits[rows].float()
        total = raw.logsumexp(dim=1, keepdim=True)
        logprobs[rows] = (raw.gather(1, token_ids[rows, None]) - total)[:, 0]
        if most := min(int(counts.max()), self._valid):
            ids, values = likeliest(raw[:, : self._valid], most)
            for place, index in enumerate(asked):
                if count := counts[index]:
                    top[index] = ids[place, :count].int(), (values - total)[place, :count]
        return logprobs, tuple(top)

    def _upload(self, indices: npt.NDArray[np.integer]) -> Tensor:
        return upload(indices.astype(np.int64), self._device)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state by slot contradicts itself."""
        self._penalties.check_invariants()
        if not bool((self._masks[-1] == -1).all()):
            raise AssertionError("the mask row of unconstrained rows was overwritten")


def _byte_ceilings() -> Tensor:
    """[256, 8] float32: for each byte of a packed mask, +inf where its bit is set and -inf where it is not."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits, np.float32(np.inf), np.float32(-np.inf)))
