"""Sampling options by request slot: numbers on the device that samples, and flags on the host that plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import Int32Array, SlotSetup
from .errors import EngineError
from .philox import signed_seed
from .pinned_staging import PinnedStaging
from .sampling_params import SamplingParams, check_vocabulary
from .token_choice import DrawOptions

_SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
_WORDS = 8

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class SlotOptions:
    """What each of `max_slots` slots was loaded with. A slot's entries change only in `load`.

    Attributes:
        greedy: [max_slots], temperature is 0.
        ranked: [max_slots], top-k or top-p is in use.
        floored: [max_slots], min-p is in use.
        min_tokens: [max_slots].
        logprobs: [max_slots], how many of the likeliest tokens are wanted besides the sampled one; -1 for none at all.
        end_ids: tokens that min_tokens holds back, by slot; absent where there are none.
        has_ends: [max_slots], whether `end_ids` has an entry.
        bias: token ids and what to add to their logits, by slot; absent where there is none.
        biased: [max_slots], whether `bias` has an entry.
        table: [max_slots, 8] int32 on the device, what a draw needs: words 0 and 1 are the seed (int64), 2 and 3 top-p
            (float64), 4 the temperature (float32), 5 min-p (float32), 6 top-k, 7 whether the slot is random.
    """

    def __init__(
        self, vocab_size: int, max_slots: int, device: torch.device, staging: PinnedStaging | None = None
    ) -> None:
        self._vocab_size = vocab_size
        self._staging = staging or PinnedStaging(device)
        self.greedy: BoolArray = np.ones(max_slots, dtype=np.bool_)
        self.ranked: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.floored: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.min_tokens: Int64Array = np.zeros(max_slots, dtype=np.int64)
        self.logprobs: Int64Array = np.full(max_slots, -1, dtype=np.int64)
        self.end_ids: dict[int, Int32Array] = {}
        self.bias: dict[int, tuple[Int32Array, npt.NDArray[np.float32]]] = {}
        self.has_ends: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.biased: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.table = torch.zeros((max_slots, _WORDS), dtype=torch.int32, device=device)
        self._seeds = self.table.view(torch.int64)[:, 0]
        self._draw = DrawOptions(
            temperature=self.table.view(torch.float32)[:, 4],
            min_p=self.table.view(torch.float32)[:, 5],
            top_k=self.table[:, 6],
            top_p=self.table.view(torch.float64)[:, 1],
        )

    def load(self, setups: Sequence[SlotSetup]) -> None:
        """Replace everything that these slots held.

        Raises:
            EngineError: there is no such slot, or a random request has no seed; nothing was loaded.
            RequestError: a logit bias names a token that the model does not have; nothing was loaded.
        """
        for setup in setups:
            self._check(setup)
        for setup in setups:
            self._load_flags(setup)
            self._load_lists(setup)
        if setups:
            self._load_numbers(setups)

    def _check(self, setup: SlotSetup) -> None:
        slot, params = setup.slot, setup.params
        if not 0 <= slot < len(self.greedy):
            raise EngineError(f"slot {slot} is not one of the sampler's {len(self.greedy)} slots")
        if params.seed is None and not params.greedy:
            raise EngineError(f"slot {slot} was loaded without a seed: draw one when the request is admitted")
        check_vocabulary(params, self._vocab_size)

    def _load_flags(self, setup: SlotSetup) -> None:
        slot, params = setup.slot, setup.params
        self.greedy[slot] = params.greedy
        self.ranked[slot] = bool(params.top_k) or params.top_p < 1
        self.floored[slot] = params.min_p > 0
        self.min_tokens[slot] = params.min_tokens
        self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs

    def _load_lists(self, setup: SlotSetup) -> None:
        ends = np.unique(setup.end_ids[setup.end_ids < self._vocab_size]).astype(np.int32)
        self.end_ids.pop(setup.slot, None)
        if len(ends):
            self.end_ids[setup.slot] = ends
        self.has_ends[setup.slot] = len(ends) > 0
        self.bias.pop(setup.slot, None)
        if bias := setup.params.logit_bias:
            ids, values = np.array(list(bias), dtype=np.int32), np.array(list(bias.values()), dtype=np.float32)
            self.bias[setup.slot] = (ids, values)
        self.biased[setup.slot] = bool(bias)

    def _load_numbers(self, setups: Sequence[SlotSetup]) -> None:
        """Write what the device needs, in one copy however many slots there are."""
        rows = np.zeros((len(setups), _WORDS), dtype=np.int32)
        params = [setup.params for setup in setups]
        rows.view(np.int64)[:, 0] = [signed_seed(each.seed or 0) for each in params]
        rows.view(np.float64)[:, 1] = [each.top_p for each in params]
        rows.view(np.float32)[:, 4] = [max(each.temperature, _SMALLEST_TEMPERATURE) for each in params]
        rows.view(np.float32)[:, 5] = [each.min_p for each in params]
        rows[:, 6] = [self._top_k(each) for each in params]
        rows[:, 7] = [not each.greedy for each in params]
        slots = np.array([setup.slot for setup in setups], dtype=np.int32)
        places, values = self._staging.upload([slots, rows.ravel()])
        self.table[places] = values.view(-1, _WORDS)

    def _top_k(self, params: SamplingParams) -> int:
        return min(params.top_k or self._vocab_size, self._vocab_size)

    def seeds(self, slots: Tensor) -> Tensor:
        """[R] int64, as `signed_seed` gives them, for slots [R] on the device."""
        return self._seeds[slots]

    def draw_options(self, slots: Tensor) -> DrawOptions:
        """The options of slots [R] on the device."""
        return self._draw.rows(slots)
