"""Sampling options by request slot: numbers on the device that samples, and flags on the host that plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import SlotSetup
from .errors import EngineError
from .philox import signed_seed
from .sampling_params import SamplingParams, check_vocabulary
from .token_choice import DrawOptions
from .upload import upload

_SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)

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
        bias: token ids and what to add to their logits, by slot; absent where there is none.
    """

    def __init__(self, vocab_size: int, max_slots: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self.greedy: BoolArray = np.ones(max_slots, dtype=np.bool_)
        self.ranked: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.floored: BoolArray = np.zeros(max_slots, dtype=np.bool_)
        self.min_tokens: Int64Array = np.zeros(max_slots, dtype=np.int64)
        self.logprobs: Int64Array = np.full(max_slots, -1, dtype=np.int64)
        self.end_ids: dict[int, Int64Array] = {}
        self.bias: dict[int, tuple[Int64Array, npt.NDArray[np.float32]]] = {}
        self._seeds = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._draw = DrawOptions(
            temperature=torch.ones(max_slots, dtype=torch.float32, device=device),
            min_p=torch.zeros(max_slots, dtype=torch.float32, device=device),
            top_k=torch.full((max_slots,), vocab_size, dtype=torch.int64, device=device),
            top_p=torch.ones(max_slots, dtype=torch.float64, device=device),
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
        ends = np.unique(setup.end_ids[setup.end_ids < self._vocab_size]).astype(np.int64)
        self.end_ids.pop(setup.slot, None)
        if len(ends):
            self.end_ids[setup.slot] = ends
        self.bias.pop(setup.slot, None)
        if bias := setup.params.logit_bias:
            ids, values = np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float32)
            self.bias[setup.slot] = (ids, values)

    def _load_numbers(self, setups: Sequence[SlotSetup]) -> None:
        """Write what the device needs, in two copies however many slots there are."""
        integers = [(each.slot, signed_seed(each.params.seed or 0), self._top_k(each.params)) for each in setups]
        slots, seeds, top_k = upload(np.array(integers, dtype=np.int64).T, self._device)
        fractions = [(each.params.temperature, each.params.min_p, each.params.top_p) for each in setups]
        temperature, min_p, top_p = upload(np.array(fractions, dtype=np.float64).T, self._device)
        self._seeds[slots] = seeds
        self._draw.top_k[slots] = top_k
        self._draw.temperature[slots] = temperature.float().clamp(min=_SMALLEST_TEMPERATURE)
        self._draw.min_p[slots] = min_p.float()
        self._draw.top_p[slots] = top_p

    def _top_k(self, params: SamplingParams) -> int:
        return min(params.top_k or self._vocab_size, self._vocab_size)

    def seeds(self, slots: Tensor) -> Tensor:
        """[R] int64, as `signed_seed` gives them, for slots [R] on the device."""
        return self._seeds[slots]

    def draw_options(self, slots: Tensor) -> DrawOptions:
        """The options of slots [R] on the device."""
        return self._draw.rows(slots)
