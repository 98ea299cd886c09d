"""Penalties against transformers' and OpenAI's definitions, over the life of a request."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import ints, plan_of, random_logits, setup
from torch import Tensor

from palmette.runtime.batch import FROM_SLOT, Int32Array
from palmette.runtime.penalties import PenaltyCounts
from palmette.runtime.pinned_staging import PinnedStaging
from palmette.runtime.sampling_params import SamplingParams

_V = 40
_TOKENS = st.lists(st.integers(0, _V - 1), max_size=8)
_ALL = SamplingParams(seed=0, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)


def _penalised(counts: PenaltyCounts, logits: Tensor, slot: int) -> Tensor:
    scores = logits.clone()
    counts.apply(scores, ints([slot]))
    return scores


def _loaded(slot: int, params: SamplingParams, prompt: list[int], output: list[int]) -> PenaltyCounts:
    counts = PenaltyCounts(_V, torch.device("cpu"))
    counts.load([setup(slot, params, prompt=prompt, output=output)])
    return counts


@given(st.floats(0.1, 5), st.integers(0, 999), _TOKENS, _TOKENS)
def test_repetition_penalty_equals_transformers(
    penalty: float, seed: int, prompt: list[int], output: list[int]
) -> None:
    """Tokens of prompt and output are penalised as transformers' RepetitionPenaltyLogitsProcessor does."""
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = random_logits(seed, 1, _V)
    counts = _loaded(1, SamplingParams(seed=0, repetition_penalty=penalty), prompt, output)
    context = torch.tensor([[*prompt, *output]], dtype=torch.int64)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(context, logits.clone())
    torch.testing.assert_close(_penalised(counts, logits, 1), expected)


@given(st.floats(-2, 2), st.floats(-2, 2), _TOKENS, _TOKENS)
def test_frequency_and_presence_equal_openai(
    frequency: float, presence: float, prompt: list[int], output: list[int]
) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c counts the output and not the prompt."""
    logits = random_logits(1, 1, _V)
    params = SamplingParams(seed=0, frequency_penalty=frequency, presence_penalty=presence)
    expected = logits.clone()
    for token in range(_V):
        count = output.count(token)
        expected[0, token] -= count * frequency + (count > 0) * presence
    torch.testing.assert_close(_penalised(_loaded(1, params, prompt, output), logits, 1), expected)


@given(_TOKENS, _TOKENS)
def test_counting_sampled_tokens_equals_loading_them(prompt: list[int], output: list[int]) -> None:
    """A retracted request that is loaded with its output has the counts that it had."""
    counts = _loaded(0, _ALL, prompt, [])
    for place, token in enumerate(output):
        counts.count_sampled(ints([0]), ints([len(prompt) + place]), torch.tensor([token]))
    logits = random_logits(2, 1, _V)
    assert torch.equal(_penalised(counts, logits, 0), _penalised(_loaded(0, _ALL, prompt, output), logits, 0))


@pytest.mark.parametrize("known", [FROM_SLOT, 7])
def test_forced_tokens_are_counted_once(known: int) -> None:
    """Prompt chunks and the token sampled last are not counted again; tokens that were forced after it are, once."""
    counts = _loaded(0, _ALL, [1, 2, 3], [])
    counts.count_forced(plan_of([0], tokens=[[1, 2]], seq_lens=[2]))
    counts.count_forced(plan_of([0], tokens=[[3]], seq_lens=[3]))
    counts.count_sampled(ints([0]), ints([3]), torch.tensor([7]))
    forced = plan_of([0], tokens=[[known, 8, 8, 9]], seq_lens=[7])
    counts.count_forced(forced)
    counts.count_forced(forced)
    counts.count_sampled(ints([0]), ints([7]), torch.tensor([5]))
    logits = random_logits(3, 1, _V)
    expected = _loaded(0, _ALL, [1, 2, 3], [7, 8, 8, 9, 5])
    assert torch.equal(_penalised(counts, logits, 0), _penalised(expected, logits, 0))


def test_recomputing_after_a_retraction_counts_nothing_twice() -> None:
    """A request that is loaded with its output computes that output again as plain tokens."""
    counts = _loaded(0, _ALL, [1, 2], [4, 4])
    counts.count_forced(plan_of([0], tokens=[[1, 2, 4, 4]], seq_lens=[4]))
    logits = random_logits(4, 1, _V)
    assert torch.equal(_penalised(counts, logits, 0), _penalised(_loaded(0, _ALL, [1, 2], [4, 4]), logits, 0))


def test_slots_own_their_rows() -> None:
    """Many slots, loaded, freed and loaded again, each have their own counts, and no row is lost."""
    counts = PenaltyCounts(_V, torch.device("cpu"))
    logits = random_logits(5, 1, _V)
    for slot in (*range(11), *range(0, 11, 2), 30):
        counts.load([setup(slot, _ALL, prompt=[slot], output=[slot + 1])])
        counts.check_invariants()
    for slot in (1, 3, 5):
        counts.load([setup(slot, SamplingParams(seed=0))])
        counts.check_invariants()
        assert torch.equal(_penalised(counts, logits, slot), logits)
    for slot in (0, 7, 30):
        expected = _loaded(slot, _ALL, [slot], [slot + 1])
        assert torch.equal(_penalised(counts, logits, slot), _penalised(expected, logits, slot))


def test_slots_are_loaded_and_counted_in_one_copy_each() -> None:
    """However many: a copy comes after the step in flight, and only so many can be on their way."""

    class _Counting(PinnedStaging):
        uploads = 0

        def upload(self, arrays: Sequence[Int32Array], out: Tensor | None = None) -> list[Tensor]:
            self.uploads += 1
            return super().upload(arrays, out)

    staging = _Counting(torch.device("cpu"))
    counts = PenaltyCounts(_V, torch.device("cpu"), staging)
    counts.load([setup(slot, _ALL, prompt=[slot], output=[slot + 1, 3]) for slot in range(20)])
    assert staging.uploads == 1
    counts.count_forced(plan_of(range(20), tokens=[[7, 8, 7]] * 20, seq_lens=[6] * 20))
    assert staging.uploads == 2
    logits = random_logits(7, 1, _V)
    for slot in (0, 19):
        expected = _loaded(slot, _ALL, [slot], [slot + 1, 3, 7, 8, 7])
        assert torch.equal(_penalised(counts, logits, slot), _penalised(expected, logits, slot))


@pytest.mark.parametrize("rows", [0, 6])
def test_long_texts_are_loaded_a_bounded_number_of_tokens_at_a_time(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into rows that were there from the start or have grown, with the same counts as alone."""
    monkeypatch.setattr("palmette.runtime.penalties._LOADED_AT_ONCE", 5)
    texts = [[1, 2], [3, 3, 4, 5, 6, 7, 8], [9], [], [10, 11], [12, 13, 14]]
    counts = PenaltyCounts(_V, torch.device("cpu"), rows=rows)
    counts.load([setup(slot, _ALL, prompt=text, output=text[:1]) for slot, text in enumerate(texts)])
    counts.check_invariants()
    logits = random_logits(8, 1, _V)
    for slot, text in enumerate(texts):
        expected = _loaded(slot, _ALL, text, text[:1])
        assert torch.equal(_penalised(counts, logits, slot), _penalised(expected, logits, slot))


def test_only_rows_with_penalties_change() -> None:
    """In a mixed batch the other rows keep their logits bit for bit, and a failed row counts nothing that breaks."""
    counts = _loaded(2, _ALL, [1], [2])
    logits = random_logits(6, 3, _V)
    scores = logits.clone()
    counts.apply(scores, ints([0, 2, 1]))
    assert torch.equal(scores[[0, 2]], logits[[0, 2]])
    assert not torch.equal(scores[1], logits[1])
    counts.count_sampled(ints([0, 2, 1]), ints([1, 2, 1]), torch.tensor([3, -1, 3]))
    counts.check_invariants()
