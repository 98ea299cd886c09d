"""The sampler against a slow reference that knows one row only, and the laws of its slots."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import ints, masked, packed_mask, plan_of, random_logits, sampler_of, setup
from torch import Tensor

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.philox import signed_seed, uniform
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams

_V = 70
_GREEDY = SamplingParams(temperature=0)
_TOKENS = st.lists(st.integers(0, _V - 1), max_size=6)


@st.composite
def _params(draw: st.DrawFn) -> SamplingParams:
    """Any options that change which token is taken."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4, 0.01])),
        top_k=draw(st.sampled_from([0, 1, 5, 200])),
        min_p=draw(st.sampled_from([0.0, 0.1, 1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7, -0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 1.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        logit_bias=draw(st.dictionaries(st.integers(0, _V - 1), st.floats(-100, 100), max_size=3)),
        seed=draw(st.integers(0, (1 << 64) - 1)),
        min_tokens=draw(st.integers(0, 3)),
    )


def _possible(
    logits: Tensor,
    params: SamplingParams,
    *,
    prompt: list[int],
    output: list[int],
    ends: list[int],
    allowed: list[int] | None,
    position: int,
) -> dict[int, float]:
    """Each token that may be sampled with its probability: DESIGN section 3, step 8, one token after the other."""
    scores = dict(enumerate(logits.double().tolist()))
    for token in set(prompt) | set(output):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in output:
        scores[token] -= params.frequency_penalty
    for token in set(output):
        scores[token] -= params.presence_penalty
    if allowed is not None:
        scores = {token: scores[token] for token in allowed}
    if position < params.min_tokens:
        scores = {token: score for token, score in scores.items() if token not in ends} or scores
    scores = {token: score + params.logit_bias.get(token, 0.0) for token, score in scores.items()}
    ordered = sorted(scores, key=lambda token: (-scores[token], token))
    if params.temperature == 0:
        return {ordered[0]: 1.0}
    return _filtered(scores, ordered, params)


def _filtered(scores: dict[int, float], ordered: list[int], params: SamplingParams) -> dict[int, float]:
    best = scores[ordered[0]]
    weights = {token: math.exp((scores[token] - best) / params.temperature) for token in ordered}
    kept = ordered[: params.top_k or len(ordered)]
    total, before, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if before >= params.top_p * total:
            break
        nucleus.append(token)
        before += weights[token]
    floored = [token for token in nucleus if weights[token] >= params.min_p]
    total = sum(weights[token] for token in floored)
    return {token: weights[token] / total for token in floored}


@settings(max_examples=150)
@given(_params(), st.integers(0, 10_000), _TOKENS.filter(bool), _TOKENS, st.data())
def test_each_row_is_sampled_as_the_reference_says(
    params: SamplingParams, seed: int, prompt: list[int], output: list[int], data: st.DataObject
) -> None:
    """With all options at once, the token is a possible one, and it is where the cumulative probability says."""
    logits = random_logits(seed, 1, _V)
    ends = data.draw(st.lists(st.integers(0, _V - 1), max_size=3))
    allowed = data.draw(st.none() | st.lists(st.integers(0, _V - 1), min_size=1, unique=True))
    sampler = sampler_of([setup(3, params, prompt=prompt, output=output, ends=ends)], _V)
    if allowed is not None:
        sampler.write_masks((ints([2]), packed_mask(allowed, _V)[None]))
    position = len(output)
    plan = plan_of(
        [3],
        positions=[position],
        seq_lens=[len(prompt) + len(output)],
    )
    token = int(sampler.sample(logits, plan, masked(-1 if allowed is None else 2)).token_ids)
    possible = _possible(logits[0], params, prompt=prompt, output=output, ends=ends, allowed=allowed, position=position)
    assert token in possible
    below = sum(share for other, share in possible.items() if other < token)
    number = _uniform(params.seed or 0, position)
    assert below - 1e-5 <= number <= below + possible[token] + 1e-5 or params.temperature == 0


def _uniform(seed: int, position: int) -> float:
    return uniform(torch.tensor([signed_seed(seed)]), torch.tensor([position])).item()


@settings(max_examples=60)
@given(st.lists(_params(), min_size=2, max_size=6), st.integers(0, 10_000))
def test_a_row_does_not_depend_on_its_neighbours(options: list[SamplingParams], seed: int) -> None:
    """The same request gets the same token alone, among neighbours, in any order and in any slot."""
    count = len(options)
    logits = random_logits(seed, count, _V)
    masks = np.stack([packed_mask(range(row, _V, 2), _V) for row in range(count)])
    setups = [setup(row, params, prompt=[row], output=[5, row]) for row, params in enumerate(options)]

    together = sampler_of(setups, _V)
    together.write_masks((ints(range(count)), masks))
    rows = list(range(count))[::-1]
    masked_rows = masked(*[row if row % 2 else -1 for row in rows])
    tokens = together.sample(logits[rows], plan_of(rows, positions=rows), masked_rows).token_ids.tolist()

    for row, token in zip(rows, tokens, strict=True):
        alone = sampler_of([setup(15, options[row], prompt=[row], output=[5, row])], _V)
        alone.write_masks((ints([4]), masks[row][None]))
        single = plan_of([15], positions=[row])
        sampled = alone.sample(logits[row : row + 1], single, masked(4 if row % 2 else -1))
        assert sampled.token_ids.tolist() == [token]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=11),
        SamplingParams(seed=12, temperature=1.7, top_k=9),
        SamplingParams(seed=13, top_p=0.8, min_p=0.02),
        SamplingParams(seed=14, temperature=0.6, presence_penalty=0.5, logit_bias={3: 2.0}),
    ],
)
def test_tokens_are_distributed_as_their_probabilities(params: SamplingParams) -> None:
    """4,000 positions of one seed follow the reference's distribution: chi-square within five deviations."""
    logits, draws = random_logits(5, 1, 20) / 2, 4000
    possible = _possible(logits[0], params, prompt=[], output=[], ends=[], allowed=None, position=0)
    tokens = _stream(params, logits, draws)
    seen = np.bincount(tokens, minlength=20)
    assert {int(token) for token in np.flatnonzero(seen)} <= possible.keys()
    expected = {token: share * draws for token, share in possible.items() if share * draws >= 5}
    chi_square = sum((seen[token] - count) ** 2 / count for token, count in expected.items())
    assert chi_square < len(expected) + 5 * math.sqrt(2 * len(expected))


def _stream(params: SamplingParams, logits: Tensor, draws: int) -> list[int]:
    """Tokens at positions 0 to `draws`, each from a slot just loaded, 16 slots a step."""
    tokens: list[int] = []
    for first in range(0, draws, 16):
        sampler = sampler_of([setup(slot, params, prompt=[0]) for slot in range(16)], logits.shape[1])
        plan = plan_of(range(16), positions=range(first, first + 16))
        tokens += sampler.sample(logits.expand(16, -1), plan).token_ids.tolist()
    return tokens


def test_a_seed_gives_the_same_stream_and_another_seed_another() -> None:
    """Tokens depend on seed and output position, not on how many were sampled before."""
    logits = random_logits(1, 1, _V)
    first = _stream(SamplingParams(seed=2**64 - 1), logits, 64)
    assert first == _stream(SamplingParams(seed=2**64 - 1), logits, 64)
    assert first != _stream(SamplingParams(seed=2**64 - 2), logits, 64)
    assert len(set(first)) > 3


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    """Ties go to the lowest id, with and without a mask, in float32 and bfloat16."""
    logits = torch.zeros((2, _V))
    logits[:, [9, 40, 69]] = 2
    sampler = sampler_of([setup(0, _GREEDY), setup(1, _GREEDY)], _V)
    sampler.write_masks((ints([0]), packed_mask([3, 40, 69], _V)[None]))
    for scores in (logits, logits.bfloat16()):
        assert sampler.sample(scores, plan_of([0, 1])).token_ids.tolist() == [9, 9]
        assert sampler.sample(scores, plan_of([0, 1]), masked(0, -1)).token_ids.tolist() == [40, 9]


def test_logits_are_left_as_they_are() -> None:
    """The caller's logits are not written to, whatever the options."""
    params = SamplingParams(seed=1, repetition_penalty=2, logit_bias={1: 3}, min_tokens=2, top_p=0.5, min_p=0.1)
    logits = random_logits(2, 1, _V)
    before = logits.clone()
    sampler = sampler_of([setup(0, params, prompt=[1, 2], ends=[4])], _V)
    sampler.write_masks((ints([0]), packed_mask(range(9), _V)[None]))
    sampler.sample(logits, plan_of([0]), masked(0))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("params", [_GREEDY, SamplingParams(seed=3)])
def test_a_bias_never_lets_a_masked_token_through(params: SamplingParams) -> None:
    """Plus 100 on a masked token changes nothing; on an allowed one it decides."""
    sampler = sampler_of([], _V)
    sampler.write_masks((ints([0]), packed_mask([10, 11, 12], _V)[None]))
    logits = torch.zeros((1, _V))
    for biased, tokens in ((30, {10, 11, 12}), (11, {11})):
        options = SamplingParams(temperature=params.temperature, seed=params.seed, logit_bias={biased: 100.0})
        sampler.load([setup(0, options)])
        plans = [plan_of([0], positions=[position]) for position in range(20)]
        assert {int(sampler.sample(logits, plan, masked(0)).token_ids) for plan in plans} <= tokens


def test_masks_follow_their_rows_when_the_batch_changes() -> None:
    """Rows that swap places, share a mask or lose it get their own mask each, and a rewritten row holds at once."""
    logits = torch.arange(_V, dtype=torch.float32).expand(3, -1)
    sampler = sampler_of([setup(slot, _GREEDY) for slot in range(3)], _V)
    sampler.write_masks((ints([5, 1]), np.stack([packed_mask([4, 20], _V), packed_mask([33], _V)])))
    for mask_rows, tokens in (
        ([5, 1, -1], [20, 33, 69]),
        ([-1, 5, 1], [69, 20, 33]),
        ([1, 1, 5], [33, 33, 20]),
        ([-1, -1, -1], [69, 69, 69]),
    ):
        assert sampler.sample(logits, plan_of([0, 1, 2]), masked(*mask_rows)).token_ids.tolist() == tokens
    sampler.write_masks((ints([5]), packed_mask([63, 64], _V)[None]))
    assert sampler.sample(logits, plan_of([2, 0, 1]), masked(5, 1, 5)).token_ids.tolist() == [64, 33, 64]
    sampler.check_invariants()


def test_min_tokens_holds_back_the_ends() -> None:
    """End tokens are not sampled before min_tokens, and are free from there on."""
    logits = torch.zeros((1, _V))
    logits[0, [7, 8, 20]] = torch.tensor([9.0, 8.0, 5.0])
    sampler = sampler_of([setup(0, SamplingParams(temperature=0, min_tokens=2), ends=[7, 8, 7])], _V)
    tokens = [int(sampler.sample(logits, plan_of([0], positions=[p])).token_ids) for p in range(4)]
    assert tokens == [20, 20, 7, 7]


def test_a_grammar_that_is_complete_wins_over_min_tokens() -> None:
    """Where the mask allows only end tokens, they are sampled, and the neighbour's ends stay held back."""
    logits = torch.zeros((2, _V))
    logits[:, 7] = 9
    params = SamplingParams(temperature=0, min_tokens=5)
    sampler = sampler_of([setup(0, params, ends=[7, 9]), setup(1, params, ends=[7])], _V)
    sampler.write_masks((ints([0, 1]), np.stack([packed_mask([7, 9], _V), packed_mask([7, 50], _V)])))
    assert sampler.sample(logits, plan_of([0, 1]), masked(0, 1)).token_ids.tolist() == [7, 50]


def test_padding_past_the_vocabulary_is_never_sampled() -> None:
    """Logits wider than the vocabulary are cut off, though they be the largest and the mask allow them."""
    logits = torch.zeros((2, _V))
    logits[:, 64:] = 50
    params = SamplingParams(seed=1, logprobs=3, repetition_penalty=1.5)
    sampler = sampler_of([setup(0, _GREEDY), setup(1, params, prompt=[69], ends=[66])], _V, valid_vocab=64)
    sampler.write_masks((ints([0]), packed_mask([*range(60, 70)], _V)[None]))
    for mask_rows in ([-1, -1], [0, 0]):
        sampled = sampler.sample(logits, plan_of([0, 1]), masked(*mask_rows))
        assert sampled.token_ids.max() < 64
        assert sampled.top[1] is not None
        assert sampled.top[1][0].tolist() == [0, 1, 2]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    """Log-probabilities know nothing of penalty, mask, bias and temperature, and come only where asked for."""
    logits = random_logits(8, 4, _V)
    options = SamplingParams(seed=4, temperature=3.0, repetition_penalty=2.0, logit_bias={3: 50.0})
    wanted = [msgspec.structs.replace(options, logprobs=count) for count in (None, 0, 2, 5)]
    setups = [setup(slot, params, prompt=[1]) for slot, params in enumerate(wanted)]
    sampler = sampler_of(setups, _V)
    sampler.write_masks((ints([0]), packed_mask([3, 4], _V)[None]))
    sampled = sampler.sample(logits, plan_of(range(4)), masked(0, 0, 0, 0))
    token_ids, logprobs, top = sampled.token_ids, sampled.logprobs, sampled.top
    raw = logits.log_softmax(dim=1)
    assert logprobs[0].isnan()
    torch.testing.assert_close(logprobs[1:], raw[range(1, 4), token_ids[1:].long()])
    assert top[:2] == (None, None)
    for row, count in ((2, 2), (3, 5)):
        likeliest = raw[row].topk(count)
        got = top[row]
        assert got is not None
        assert got[0].tolist() == likeliest.indices.tolist()
        torch.testing.assert_close(got[1], likeliest.values)


def test_last_tokens_are_kept_by_slot() -> None:
    """Each slot's last token is on the device for the next step; a slot loaded with output takes up its last one."""
    logits = torch.eye(_V)[[12, 34]]
    sampler = sampler_of([setup(4, _GREEDY), setup(2, _GREEDY), setup(6, _GREEDY, output=[8, 9])], _V)
    sampler.sample(logits, plan_of([4, 2]))
    assert sampler.last_tokens[[4, 2, 6]].tolist() == [12, 34, 9]


def test_a_step_without_sampled_rows() -> None:
    """A step that only computes chunks of prompts samples nothing."""
    sampled = sampler_of([], _V).sample(torch.empty((0, _V)), plan_of([]))
    assert (sampled.token_ids.tolist(), sampled.logprobs.tolist(), sampled.top) == ([], [], ())


def test_a_slot_forgets_its_former_request() -> None:
    """Loading a slot replaces bias, ends, penalties, filters and logprobs of the request before."""
    former = SamplingParams(
        seed=1, logit_bias={5: 100.0}, presence_penalty=9, top_k=1, min_tokens=9, logprobs=4, repetition_penalty=3
    )
    logits = random_logits(6, 1, _V)
    best = int(logits.argmax())
    sampler = sampler_of([setup(0, former, prompt=[best], output=[best], ends=[best])], _V)
    sampler.load([setup(0, _GREEDY)])
    sampled = sampler.sample(logits, plan_of([0]))
    assert (sampled.token_ids.tolist(), sampled.top, bool(sampled.logprobs.isnan())) == ([best], (None,), True)
    sampler.check_invariants()


def test_wrong_shapes_and_setups_are_refused() -> None:
    """Errors name both shapes, the slot or the token, and what is allowed."""
    sampler = sampler_of([], _V)
    with pytest.raises(EngineError, match=r"logits have shape \(1, 71\).*2 rows of 70"):
        sampler.sample(torch.zeros((1, _V + 1)), plan_of([0, 1]))
    with pytest.raises(EngineError, match=r"shape \(1, 2\), but 1 rows of 70 logits need \(1, 3\)"):
        sampler.write_masks((ints([0]), np.zeros((1, 2), dtype=np.uint32)))
    with pytest.raises(EngineError, match="slot 16 is not one of the sampler's 16"):
        sampler.load([setup(16, _GREEDY)])
    with pytest.raises(EngineError, match="without a seed"):
        sampler.load([setup(0, SamplingParams())])
    with pytest.raises(RequestError, match="logit_bias names token 70, but the model's tokens are 0 to 69"):
        sampler.load([setup(0, SamplingParams(seed=1, logit_bias={70: 1.0}))])
    with pytest.raises(EngineError, match="valid_vocab=71"):
        Sampler(_V, 1, 1, "cpu", valid_vocab=_V + 1)
    sampler.write_masks(None)
