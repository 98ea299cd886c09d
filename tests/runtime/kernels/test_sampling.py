"""The sampling kernels against their twin in torch: the same tokens from the same streams, in every way to sample.

The blocks are made small, so that a small vocabulary has many of them. The examples are fixed: the kernels' `exp` may
differ from torch's in the last bit, which about one draw in a million shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tests.sampling import ints, masked, packed_mask, plan_of, random_logits, setup
from torch import Tensor

from palmette.runtime import kernel_chooser
from palmette.runtime.batch import NOT_FINITE, NOTHING_ALLOWED, SlotSetup, StepMasks, StepPlan
from palmette.runtime.kernels import sampling, sampling_rank
from palmette.runtime.kernels.sampling_scores import uniform, weights_of
from palmette.runtime.philox import signed_seed
from palmette.runtime.philox import uniform as twin_uniform
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.token_choice import token_weights

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_SLOTS, _MASKS = 16, 8
_GREEDY = SamplingParams(temperature=0)

_ALONE = (
    _GREEDY,
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.01),
    SamplingParams(seed=3, temperature=1e6),
    SamplingParams(seed=4, top_k=1),
    SamplingParams(seed=5, top_k=7),
    SamplingParams(seed=6, top_k=1000),
    SamplingParams(seed=7, top_p=0.001),
    SamplingParams(seed=8, top_p=0.9, temperature=2.0),
    SamplingParams(seed=9, min_p=0.05, temperature=3.0),
    SamplingParams(seed=10, min_p=1.0),
    SamplingParams(seed=2**64 - 1, top_k=50, top_p=0.5),
    SamplingParams(seed=12, repetition_penalty=1.7),
    SamplingParams(temperature=0, presence_penalty=3.0, frequency_penalty=-1.0),
    SamplingParams(seed=14, logit_bias={3: 8.0, 5: -100.0}),
    SamplingParams(temperature=0, min_tokens=9),
    SamplingParams(seed=16, logprobs=0),
    SamplingParams(temperature=0, logprobs=5),
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 64)
    monkeypatch.setattr(sampling, "_PROGRAMS", 6)
    monkeypatch.setattr(sampling_rank, "_BINS", 64)
    monkeypatch.setattr(sampling_rank, "_CANDIDATES", 32)
    monkeypatch.setattr(sampling_rank, "_BLOCK", 64)
    monkeypatch.setattr(sampling_rank, "_PROGRAMS", 6)
    monkeypatch.setattr(kernel_chooser, "LOGITS_AT_ONCE", 400)  # a few rows are shaped at a time


class _Both:
    """A sampler of kernels and its twin, which are given the same."""

    def __init__(self, setups: Sequence[SlotSetup], vocab_size: int, *, valid_vocab: int | None = None) -> None:
        self.twin = Sampler(vocab_size, _SLOTS, _MASKS, "cpu", valid_vocab=valid_vocab)
        self.tested = Sampler(vocab_size, _SLOTS, _MASKS, _DEVICE, valid_vocab=valid_vocab, kernels=True)
        self.vocab_size = vocab_size
        self.load(setups)

    def load(self, setups: Sequence[SlotSetup]) -> None:
        for sampler in (self.twin, self.tested):
            sampler.load(setups)

    def write_masks(self, allowed: dict[int, Sequence[int]]) -> None:
        rows = np.stack([packed_mask(tokens, self.vocab_size) for tokens in allowed.values()])
        for sampler in (self.twin, self.tested):
            sampler.write_masks((ints(list(allowed)), rows))

    def sample(self, logits: Tensor, plan: StepPlan, masks: StepMasks | None = None) -> list[int]:
        """The tokens, on which both agree, as they do on everything else."""
        expected = self.twin.sample(logits, plan, masks)
        placed = logits.to(_DEVICE)
        before = placed.clone()
        got = self.tested.sample(placed, plan, masks)
        tokens: list[int] = got.token_ids.tolist()
        assert tokens == expected.token_ids.tolist()
        assert self.tested.last_tokens.tolist() == self.twin.last_tokens.tolist()
        torch.testing.assert_close(got.logprobs.cpu(), expected.logprobs, equal_nan=True)
        for mine, theirs in zip(got.top, expected.top, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert mine[0].tolist() == theirs[0].tolist()
                torch.testing.assert_close(mine[1].cpu(), theirs[1])
        torch.testing.assert_close(placed, before, rtol=0, atol=0, equal_nan=True)
        return tokens


def test_every_option_alone_samples_as_the_twin() -> None:
    """Each option in a row of its own, with and without masks."""
    rows, vocab_size = range(_SLOTS), 170
    both = _Both([setup(row, _ALONE[row], prompt=[3, 7], output=[5], ends=[4, 9]) for row in rows], vocab_size)
    both.write_masks({2: range(0, vocab_size, 2), 4: range(30, vocab_size)})
    masks = masked(*[(-1, 2, 4)[row % 3] for row in rows])
    logits = random_logits(12, _SLOTS, vocab_size)
    both.sample(logits, plan_of(rows, positions=[5] * _SLOTS, tokens=[[6]] * _SLOTS))
    both.load([setup(row, _ALONE[2 + row], prompt=[3], ends=[4]) for row in rows])
    both.sample(logits.bfloat16(), plan_of(rows[::-1]), masks)


@pytest.mark.parametrize("seed", range(6))
def test_options_together_sample_as_the_twin(seed: int) -> None:
    """Any options in any rows: slots and masks in any order, some rows padding, logits of any dtype."""
    chance = random.Random(seed)
    vocab_size = chance.choice([33, 64, 100, 257, 320])
    valid = vocab_size - chance.choice([0, 0, 5])
    slots = chance.sample(range(_SLOTS), chance.randint(1, 6))
    setups = [setup(slot, _any_params(chance, valid), prompt=[1, 2], output=[2, 3], ends=[4]) for slot in slots]
    both = _Both(setups, vocab_size, valid_vocab=valid)
    both.write_masks({row: chance.sample(range(valid), valid // 3) for row in range(_MASKS)})
    dtype = chance.choice([torch.float32, torch.bfloat16, torch.float16])
    for step in range(2):
        logits = (random_logits(seed + 100 * step, len(slots), vocab_size) * chance.choice([0.1, 1, 4])).to(dtype)
        plan = plan_of(slots, positions=[chance.randrange(1000) for _ in slots], seq_lens=[5 + step] * len(slots))
        masks = masked(*[chance.randrange(-1, _MASKS) for _ in slots]) if chance.random() < 0.7 else None
        both.sample(logits, plan, masks)


def _any_params(chance: random.Random, vocab_size: int) -> SamplingParams:
    def one(*values: Any) -> Any:
        return chance.choice(values)

    return SamplingParams(
        temperature=one(0.0, 0.3, 1.0, 1.0, 2.5),
        top_p=one(1.0, 1.0, 0.9, 0.4, 0.01),
        top_k=one(0, 0, 1, 5, 40, 2000),
        min_p=one(0.0, 0.0, 0.1, 1.0),
        frequency_penalty=one(0.0, 0.0, 0.0, 0.7),
        repetition_penalty=one(1.0, 1.0, 1.0, 1.3),
        logit_bias=one({}, {}, {}, {chance.randrange(vocab_size): 3.0}),
        seed=chance.randrange(1 << 64),
        min_tokens=one(0, 0, 0, 99),
        logprobs=one(None, None, 0, 3),
    )


@pytest.mark.parametrize("steps", [1, 5])
def test_ties_go_to_the_lowest_ids(steps: int) -> None:
    """Logits of few different values: greedy, top-k and top-p cut through equals as the twin does, 0 and -0 alike."""
    logits = (random_logits(steps, 6, 100) / 12 * steps).round()
    logits[logits == 0] = torch.tensor([0.0, -0.0]).repeat(len(logits[logits == 0]) // 2 + 1)[: (logits == 0).sum()]
    options = [
        _GREEDY,
        SamplingParams(seed=1, top_k=3),
        SamplingParams(seed=2, top_k=40, temperature=5),
        SamplingParams(seed=3, top_p=0.3),
        SamplingParams(seed=4, top_p=0.97, temperature=9),
        SamplingParams(seed=5, top_k=70, top_p=0.6, temperature=9),
    ]
    both = _Both([setup(slot, params) for slot, params in enumerate(options)], 100)
    assert both.sample(logits, plan_of(range(6), positions=[steps] * 6))[0] == int(logits[0].numpy().argmax())


def test_rows_that_cannot_be_sampled_are_marked_and_alone() -> None:
    """NaN, infinity and nothing allowed, greedy and random; NaN shows through a mask, a masked infinity does not."""
    logits = random_logits(1, 12, 150)
    logits[0:2, 140] = torch.nan
    logits[2:4, 3] = torch.inf
    logits[4:6] = -torch.inf
    logits[6:8] = torch.nan
    logits[8:10, 7] = torch.inf
    setups = [setup(row, SamplingParams(seed=row, top_p=0.9) if row % 2 else _GREEDY) for row in range(12)]
    both = _Both(setups, 150)
    both.write_masks({0: [2, 5], 1: [], 2: [10, 11]})
    tokens = both.sample(logits, plan_of(range(12)), masked(0, 0, -1, -1, -1, -1, -1, -1, 2, 2, 1, 1))
    assert tokens[:8] == [NOT_FINITE] * 4 + [NOTHING_ALLOWED] * 2 + [NOT_FINITE] * 2
    assert {*tokens[8:10]} <= {10, 11}
    assert tokens[10:] == [NOTHING_ALLOWED] * 2


def test_padding_is_never_sampled() -> None:
    """What the padding holds does not matter, be it the largest, NaN or allowed by a mask."""
    logits = torch.zeros((4, 100))
    logits[:, 90:] = 50
    logits[1:, 95] = torch.nan
    options = (_GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_k=4), SamplingParams(seed=2, min_tokens=1))
    both = _Both([setup(row, params, ends=[1]) for row, params in enumerate(options)], 100, valid_vocab=90)
    both.write_masks({0: range(80, 100)})
    for rows in ((-1, -1, -1, -1), (0, 0, 0, -1)):
        assert max(both.sample(logits, plan_of(range(4)), masked(*rows))) < 90


def test_a_token_does_not_depend_on_its_batch() -> None:
    """A request gets the same token alone, in any slot and at any place of a batch."""
    options = [_ALONE[index] for index in (1, 5, 8, 11)]
    logits = random_logits(4, 4, 130)
    together = _Both([setup(row, params) for row, params in enumerate(options)], 130)
    tokens = together.sample(logits, plan_of(range(4), positions=range(4)))
    for row, params in enumerate(options):
        alone = _Both([setup(15, params)], 130)
        assert alone.sample(logits[row : row + 1], plan_of([15], positions=[row])) == [tokens[row]]


def test_warming_up_changes_nothing() -> None:
    """It runs all kernels, and touches no slot."""
    both = _Both([setup(0, _GREEDY, output=[7])], 70, valid_vocab=66)
    both.tested.warm_up(torch.bfloat16)
    both.twin.warm_up(torch.bfloat16)
    assert both.tested.last_tokens.tolist() == both.twin.last_tokens.tolist()
    assert both.sample(random_logits(1, 1, 70), plan_of([0]))


def test_no_rows() -> None:
    """A step that samples nothing launches nothing."""
    assert _Both([], 50).sample(torch.empty((0, 50)), plan_of([])) == []


@triton.jit  # type: ignore[untyped-decorator]  # Triton leaves it unannotated
def _weights(scores, peak, temperature, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's language
    at = tl.arange(0, BLOCK)
    tl.store(out + at, weights_of(tl.load(scores + at), peak, temperature))


def test_weights_are_those_of_the_twin_within_one_unit_of_float32() -> None:
    """exp is as exact as torch's, from 1 down to 2**-40, and 1 is met exactly."""
    scores = torch.cat([torch.linspace(-30, 0, 1022), torch.tensor([-torch.inf, -1e30])]).to(_DEVICE)
    for temperature in (1.0, 0.7):
        weights = torch.empty(1024, dtype=torch.int64, device=_DEVICE)
        _weights[(1,)](scores, 0.0, temperature, weights, BLOCK=1024)
        expected = token_weights(scores[None].cpu(), torch.zeros(1, 1), torch.tensor([temperature]))[0]
        off = (weights.cpu() - expected).abs()
        assert (off <= expected * 2.0**-22 + 1).all()
        assert weights[1021] == 1 << 40
        assert weights[1022:].tolist() == [0, 0]


@triton.jit
def _uniforms(seeds, positions, out, count):  # type: ignore[no-untyped-def]  # Triton's language
    at = tl.program_id(0)
    tl.store(out + at, uniform(tl.load(seeds + at), tl.load(positions + at)))


def test_random_numbers_are_those_of_philox() -> None:
    """Any seed and position give the twin's number, to the last bit."""
    seeds = torch.tensor([signed_seed(seed) for seed in (0, 1, 2**32, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15)])
    positions = torch.tensor([0, 1, 77, 2**31 - 1, 5, 123456])
    out = torch.empty(6, dtype=torch.float64, device=_DEVICE)
    _uniforms[(6,)](seeds.to(_DEVICE), positions.int().to(_DEVICE), out, 6)
    assert out.tolist() == twin_uniform(seeds, positions).tolist()
