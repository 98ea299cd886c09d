"""Sampling on a GPU at real vocabularies, held to the twin in float32 on the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.sampling import ints, plan_of, setup
from torch import Tensor

from palmette.runtime.batch import NOT_FINITE, NOTHING_ALLOWED, StepMasks
from palmette.runtime.philox import signed_seed, uniform
from palmette.runtime.runner_step import DeviceTimer, RunnerStep, Scores
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.token_choice import token_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # it finds what it finds
]

MASKS = 64
GREEDY = SamplingParams(temperature=0)


def params_of(row: int) -> SamplingParams:
    """Every eighth row is filtered by rank, which takes the twin a sort."""
    ranked = (
        SamplingParams(seed=row, top_p=0.9, temperature=0.6),
        SamplingParams(seed=row, top_k=50),
        SamplingParams(seed=row, top_k=3000, top_p=0.95),
        SamplingParams(seed=row, top_p=0.5, min_p=0.01),
    )
    other = (GREEDY, SamplingParams(seed=row), SamplingParams(seed=row, temperature=1.5, min_p=0.02))
    return ranked[row // 8 % 4] if row % 8 == 0 else other[row % 3]


def bits_of(generator: np.random.Generator, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """Masks of about one token in four."""
    shape = MASKS, -(-width // 32)
    once, twice = (generator.integers(0, 1 << 32, shape, dtype=np.uint32) for _ in range(2))
    return once & twice


def logits_of(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(rows, width, device="cuda") * 2).to(dtype)


@pytest.mark.parametrize(("width", "valid"), [(128256, 128000), (49152, 49152), (50257, 50257)])
@pytest.mark.parametrize("rows", [1, 64, 512])
def test_tokens_are_those_of_the_twin(width: int, valid: int, rows: int) -> None:
    """All options and masks mixed: at most one row in fifty differs, where `exp` decides by its last bit."""
    samplers = [Sampler(width, 512, MASKS, device, valid_vocab=valid) for device in ("cpu", "cuda")]
    bits, logits = bits_of(np.random.default_rng(rows), width), logits_of(rows, width)
    masks = StepMasks(ints([row % MASKS if row % 2 else -1 for row in range(rows)]), (ints(range(MASKS)), bits))
    found = []
    for sampler, placed in zip(samplers, (logits.float().cpu(), logits), strict=True):
        sampler.load([setup(row, params_of(row)) for row in range(rows)])
        found.append(sampler.sample(placed, plan_of(range(rows), positions=range(rows)), masks).token_ids.cpu())
    expected, got = found
    assert int((expected != got).sum()) <= rows // 50
    greedy = [row for row in range(rows) if params_of(row).greedy]
    assert got[greedy].tolist() == expected[greedy].tolist()
    assert samplers[1].last_tokens[:rows].tolist() == got.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_draw_is_where_the_cumulative_weight_says(dtype: torch.dtype) -> None:
    """The random share of the total lies in the token's part of it, within what the last bits of `exp` add up to."""
    width, rows = 128256, 64
    logits = logits_of(rows, width, dtype)
    sampler = Sampler(width, rows, 1, "cuda")
    sampler.load([setup(row, SamplingParams(seed=row)) for row in range(rows)])
    tokens = sampler.sample(logits, plan_of(range(rows), positions=[3] * rows)).token_ids.cpu().long()
    scores = logits.float().cpu()
    weights = token_weights(scores, scores.amax(dim=1, keepdim=True), torch.ones(rows))
    cumulative = weights.cumsum(dim=1).double()
    total = cumulative[:, -1]
    seeds = torch.tensor([signed_seed(row) for row in range(rows)])
    share = uniform(seeds, torch.full((rows,), 3)) * total
    above = cumulative.gather(1, tokens[:, None])[:, 0]
    below = above - weights.gather(1, tokens[:, None])[:, 0]
    assert (share >= below - 1e-6 * total).all()
    assert (share <= above + 1e-6 * total).all()


def test_greedy_takes_the_first_of_equals() -> None:
    """Logits of few values have thousands of equals; the kernel finds the lowest id, as numpy does."""
    logits = logits_of(130, 128256).round()
    sampler = Sampler(128256, 130, 1, "cuda")
    tokens = sampler.sample(logits, plan_of(range(130))).token_ids
    assert tokens.tolist() == logits.float().cpu().numpy().argmax(axis=1).tolist()


def test_filters_cut_through_equals_as_the_twin() -> None:
    """Rounded logits at top-k and top-p: thousands of equals at the boundary."""
    logits = logits_of(16, 128256).round()
    options = [SamplingParams(seed=row, top_k=20000, temperature=9) for row in range(8)]
    options += [SamplingParams(seed=row, top_p=0.7, temperature=9) for row in range(8)]
    found = []
    for device in ("cpu", "cuda"):
        sampler = Sampler(128256, 16, 1, device)
        sampler.load([setup(row, params) for row, params in enumerate(options)])
        placed = logits.float().cpu() if device == "cpu" else logits
        found.append(sampler.sample(placed, plan_of(range(16))).token_ids.cpu())
    assert int((found[0] != found[1]).sum()) <= 1


def test_failed_rows_are_alone() -> None:
    """NaN, infinity and no token at all mark their own rows."""
    logits = logits_of(4, 49152)
    logits[0, 49151], logits[1, 0], logits[2] = torch.nan, torch.inf, -torch.inf
    sampler = Sampler(49152, 4, 1, "cuda")
    sampler.load([setup(row, SamplingParams(seed=1)) for row in range(4)])
    tokens = sampler.sample(logits, plan_of(range(4))).token_ids.tolist()
    assert tokens[:3] == [NOT_FINITE, NOT_FINITE, NOTHING_ALLOWED]
    assert tokens[3] >= 0


def test_no_call_waits_for_the_device() -> None:
    """Loads, masks, penalties, filters and log-probabilities only enqueue work."""
    width, rows = 49152, 64
    sampler = Sampler(width, rows, MASKS, "cuda")
    options = [params_of(row) for row in range(60)]
    options += [SamplingParams(seed=1, logprobs=3, presence_penalty=0.5, logit_bias={3: 1.0}, min_tokens=2)] * 4
    setups = [setup(row, params, prompt=[3], output=[5], ends=[4]) for row, params in enumerate(options)]
    masks = StepMasks(ints(range(rows)), (ints(range(MASKS)), bits_of(np.random.default_rng(0), width)))
    logits = logits_of(rows, width)
    for mode in ("default", "error"):  # the first time compiles
        torch.cuda.set_sync_debug_mode(mode)
        try:
            sampler.load(setups)
            for position in range(8):
                sampler.sample(logits, plan_of(range(rows), positions=[position] * rows), masks)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_draws_follow_the_distribution() -> None:
    """32,768 draws over 200 tokens: chi-square within five deviations."""
    logits = logits_of(1, 200)
    sampler = Sampler(200, 512, 1, "cuda")
    sampler.load([setup(slot, SamplingParams(seed=slot)) for slot in range(512)])
    steps = [plan_of(range(512), positions=[position] * 512) for position in range(64)]
    tokens = torch.cat([sampler.sample(logits.expand(512, -1).contiguous(), plan).token_ids for plan in steps])
    seen = torch.bincount(tokens, minlength=200).double().cpu()
    expected = logits[0].double().softmax(dim=0).cpu() * len(tokens)
    enough = expected >= 5
    chi_square = float(((seen - expected) ** 2 / expected)[enough].sum())
    assert chi_square < int(enough.sum()) + 5 * math.sqrt(2 * int(enough.sum()))


def test_results_come_through_memory_that_is_used_again() -> None:
    """Two steps in flight, fifty in all, each with its own log-probabilities: every result is that of its step."""
    width, rows = 49152, 32
    sampler = Sampler(width, rows, 1, "cuda")
    sampler.load([setup(row, SamplingParams(temperature=0, logprobs=row % 4)) for row in range(rows)])
    flying: list[tuple[RunnerStep, Tensor]] = []
    for number in range(50):
        logits, device = logits_of(rows, width), torch.device("cuda")
        scores = Scores.empty(0, 0, device)
        step = RunnerStep(sampler, plan_of(range(rows), positions=[number] * rows), logits, scores, DeviceTimer(device))
        step.sample()
        flying.append((step, logits))
        if len(flying) == 2:
            check_result(*flying.pop(0))
    check_result(*flying.pop())


def check_result(step: RunnerStep, logits: Tensor) -> None:
    result = step.result()
    likely = logits.float().log_softmax(dim=1)
    best = torch.from_numpy(result.token_ids).cuda().long()
    torch.testing.assert_close(likely.gather(1, best[:, None])[:, 0], likely.amax(dim=1))
    torch.testing.assert_close(torch.from_numpy(result.logprobs).cuda(), likely.amax(dim=1), rtol=1e-5, atol=1e-4)
    for row, top in enumerate(result.top_logprobs):
        assert (top is None) == (row % 4 == 0)
        if top is not None:
            values = likely[row].topk(row % 4).values.cpu()
            torch.testing.assert_close(torch.from_numpy(top[1]), values, rtol=1e-5, atol=1e-4)
