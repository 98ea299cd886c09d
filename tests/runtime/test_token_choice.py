"""Exact weights, filters with exact counts, and the draw."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palmette.runtime.token_choice import (
    DrawOptions,
    argmax_rows,
    draw,
    drop_unlikely,
    kept_by_rank,
    likeliest,
    token_weights,
)

_SCORES = st.lists(st.sampled_from([-torch.inf, -3.0, 0.0, 0.5, 0.5, 2.0]), min_size=1, max_size=40)


def _options(*, top_k: int = 1000, top_p: float = 1.0) -> DrawOptions:
    return DrawOptions(torch.ones(1), torch.zeros(1), torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64))


def _kept(scores: list[float], options: DrawOptions) -> list[int]:
    row = torch.tensor([scores])
    return kept_by_rank(row, row.amax(dim=1, keepdim=True), options)[0].nonzero()[:, 0].tolist()


@given(_SCORES.filter(lambda scores: max(scores) > -torch.inf), st.integers(1, 50))
def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_equals(scores: list[float], k: int) -> None:
    """Ties at the boundary do not let more than k tokens through."""
    possible = [token for token, score in enumerate(scores) if score > -torch.inf]
    ordered = sorted(possible, key=lambda token: (-scores[token], token))
    assert _kept(scores, _options(top_k=k)) == sorted(ordered[:k])


@given(_SCORES.filter(lambda scores: max(scores) > -torch.inf), st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_sufficient_set(scores: list[float], p: float) -> None:
    """The kept tokens reach p, and without the last of them they would not."""
    share = torch.tensor(scores).double().softmax(dim=0)
    kept = _kept(scores, _options(top_p=p))
    assert float(share[kept].sum()) >= p - 1e-9
    assert float(share[kept].sum() - share[kept].min()) < p + 1e-9


@given(_SCORES, st.data())
def test_likeliest_are_in_order(scores: list[float], data: st.DataObject) -> None:
    """The largest scores come first, and of equals the lowest id."""
    count = data.draw(st.integers(1, len(scores)))
    ids, values = likeliest(torch.tensor([scores]), count)
    expected = sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:count]
    assert ids[0].tolist() == expected
    assert values[0].tolist() == [scores[token] for token in expected]


def test_top_p_counts_what_top_k_left() -> None:
    """Top-p is a share of the k likeliest tokens' probability."""
    equal = [0.0] * 10
    assert _kept(equal, _options(top_k=4, top_p=0.5)) == [0, 1]
    assert _kept(equal, _options(top_p=0.5)) == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20).filter(any), st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_sum(weights: list[int], number: float) -> None:
    """The token drawn has weight, and the random share lies within its part of the total."""
    token = int(draw(torch.tensor([weights]), torch.tensor([number], dtype=torch.float64)))
    below = sum(weights[:token])
    assert below <= int(number * sum(weights)) < below + weights[token]


def test_the_last_number_below_one_draws_the_last_token() -> None:
    """Rounding at the upper end does not run past the vocabulary."""
    weights = torch.full((1, 5), 1 << 40)
    assert draw(weights, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [4]


def test_extreme_temperatures_stay_finite() -> None:
    """The likeliest token has full weight at any temperature, and excluded tokens have none."""
    scores = torch.tensor([[1.0, 30.0, -torch.inf]])
    for temperature in (1e-38, 1e-3, 1e6):
        weights = token_weights(scores, torch.tensor([[30.0]]), torch.tensor([temperature]))
        assert weights[0, 1:].tolist() == [1 << 40, 0]
    assert weights[0, 0] > 0


def test_min_p_is_a_fraction_of_the_likeliest() -> None:
    """Tokens at the fraction stay, tokens below it go."""
    weights = torch.tensor([[1 << 40, 1 << 39, (1 << 39) - 1]])
    assert drop_unlikely(weights, torch.tensor([0.5])).tolist() == [[1 << 40, 1 << 39, 0]]


def _first_largest(row: Tensor) -> int:
    return min(range(len(row)), key=lambda token: (-float(row[token]), token))


@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, -0.0, 4.0]), min_size=5, max_size=5), min_size=1, max_size=4))
def test_argmax_takes_the_first_of_equals(rows: list[list[float]]) -> None:
    """float32 and bfloat16 agree on the lowest id of the largest logits."""
    scores = torch.tensor(rows)
    expected = [_first_largest(row) for row in scores]
    assert argmax_rows(scores).tolist() == argmax_rows(scores.bfloat16()).tolist() == expected
