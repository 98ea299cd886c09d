"""Rows of one step: those that fail, those that are greedy, those that come back, and the same on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling import ints, masked, packed_mask, plan_of, random_logits, sampler_of, setup
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from palmette.runtime.batch import FROM_SLOT, NOT_FINITE, NOTHING_ALLOWED
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams

_V = 70
_GREEDY = SamplingParams(temperature=0)
_EVERY_WAY = [
    _GREEDY,
    SamplingParams(temperature=0, logit_bias={30: -5.0}),
    SamplingParams(seed=1),
    SamplingParams(seed=1, top_p=0.5, min_p=0.1, logprobs=1),
    SamplingParams(seed=1, top_k=3, repetition_penalty=1.2, min_tokens=5),
]


@pytest.mark.parametrize("params", _EVERY_WAY)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_mark_their_row_alone(params: SamplingParams, bad: float) -> None:
    """NaN or infinity anywhere in a row is never sampled as if it were a token, and the neighbours do not notice."""
    logits = random_logits(3, 3, _V)
    setups = [setup(slot, params, prompt=[1], ends=[4]) for slot in (2, 9, 5)]
    good = sampler_of(setups, _V).sample(logits, plan_of([2, 9, 5])).token_ids.tolist()
    logits[1, 30] = bad
    sampler = sampler_of(setups, _V)
    assert sampler.sample(logits, plan_of([2, 9, 5])).token_ids.tolist() == [good[0], NOT_FINITE, good[2]]
    assert sampler.last_tokens.min() >= 0
    sampler.check_invariants()


@pytest.mark.parametrize("params", _EVERY_WAY)
def test_an_empty_mask_marks_its_row_alone(params: SamplingParams) -> None:
    """Where nothing is allowed nothing is sampled, and the neighbours do not notice."""
    logits = random_logits(3, 3, _V)
    setups = [setup(slot, params, prompt=[1], ends=[4]) for slot in (2, 9, 5)]
    sampler = sampler_of(setups, _V)
    sampler.write_masks((ints([6]), packed_mask([], _V)[None]))
    good = sampler_of(setups, _V).sample(logits, plan_of([2, 9, 5])).token_ids.tolist()
    token_ids = sampler.sample(logits, plan_of([2, 9, 5]), masked(-1, 6, -1)).token_ids.tolist()
    assert token_ids == [good[0], NOTHING_ALLOWED, good[2]]


class _Touching(TorchDispatchMode):
    """Records the operators that read a tensor of at least `size` elements, views aside."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.size = size
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).split(".")[1]
        if name not in _VIEWS and any(isinstance(arg, Tensor) and arg.numel() >= self.size for arg in args):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


_VIEWS = {"slice", "detach", "alias", "view"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_greedy_step_only_looks_for_the_largest(dtype: torch.dtype) -> None:
    """All-greedy rows without masks read their logits for the argmax and its value: no sort, no copy, no draw."""
    logits = random_logits(3, 4, _V).to(dtype)
    sampler = sampler_of([setup(slot, _GREEDY) for slot in range(4)], _V)
    with _Touching(_V) as touching:
        token_ids = sampler.sample(logits, plan_of(range(4))).token_ids
    assert token_ids.tolist() == logits.argmax(dim=1).tolist()
    assert set(touching.names) <= {"argmax", "gather"}


def test_a_random_neighbour_does_not_change_greedy_rows() -> None:
    """Greedy rows keep their argmax in a batch where others are drawn, filtered, masked and penalised."""
    logits = random_logits(9, len(_EVERY_WAY) + 1, _V)
    setups = [setup(slot, params, prompt=[3]) for slot, params in enumerate([*_EVERY_WAY, _GREEDY])]
    token_ids = sampler_of(setups, _V).sample(logits, plan_of(range(len(setups)))).token_ids.tolist()
    best = logits.argmax(dim=1).tolist()
    assert (token_ids[0], token_ids[-1]) == (best[0], best[-1])


def test_a_retracted_request_goes_on_as_if_nothing_had_happened() -> None:
    """Loaded into another slot with its output so far, a request samples the tokens that it would have sampled."""
    params = SamplingParams(seed=77, presence_penalty=1.5, repetition_penalty=1.4, frequency_penalty=0.5)
    logits = random_logits(10, 12, _V)
    whole = _generate(sampler_of([setup(1, params, prompt=[2, 3])], _V), 1, logits, [])
    for cut in range(1, 12):
        again = sampler_of([setup(6, params, prompt=[2, 3], output=whole[:cut])], _V)
        assert int(again.last_tokens[6]) == whole[cut - 1]
        assert _generate(again, 6, logits, whole[:cut]) == whole


def _generate(sampler: Sampler, slot: int, logits: Tensor, output: list[int]) -> list[int]:
    """Output after all rows of `logits`, one a step, after a prompt of two tokens."""
    tokens = list(output)
    for position in range(len(tokens), len(logits)):
        last = [[FROM_SLOT]] if tokens else [[2, 3]]
        plan = plan_of([slot], positions=[position], tokens=last, seq_lens=[2 + position])
        tokens.append(int(sampler.sample(logits[position : position + 1], plan).token_ids))
    return tokens


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")  # good enough to find what it finds
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_nothing_waits_and_the_tokens_are_those_of_the_cpu() -> None:
    """Loading, masks, forced tokens and all ways to sample enqueue work only, and give the CPU's tokens."""
    options = [*_EVERY_WAY, SamplingParams(seed=9, logprobs=4, frequency_penalty=1.0, top_p=0.8)]
    setups = [setup(slot, params, prompt=[3], output=[5], ends=[4]) for slot, params in enumerate(options)]
    mask = (ints([2, 4]), np.stack([packed_mask(range(0, _V, 2), _V), packed_mask(range(30, _V), _V)]))
    logits = random_logits(12, len(setups), _V)
    masks = masked(*[[-1, 2, 4][slot % 3] for slot in range(len(setups))])
    steps = [
        plan_of(range(len(setups)), positions=[n] * len(setups), tokens=[[6 + n]] * len(setups)) for n in range(20)
    ]
    answers = []
    for device in ("cpu", "cuda"):
        sampler, placed = Sampler(_V, 16, 8, device), logits.to(device)
        torch.cuda.set_sync_debug_mode("error" if device == "cuda" else "default")
        try:
            sampler.load(setups)
            sampler.write_masks(mask)
            sampled = [sampler.sample(placed, plan, masks) for plan in steps]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        answers.append([step.token_ids.tolist() for step in sampled])
    assert answers[0] == answers[1]
