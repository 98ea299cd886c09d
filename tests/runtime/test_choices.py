"""The decision of a select, against hand-made scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.choices import decide
from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.program import ChoiceScore, SelectMethod

_METHODS = cast("tuple[SelectMethod, ...]", get_args(SelectMethod))
_LOGPROBS = st.lists(st.floats(-20, 0), max_size=5)


def _score(*logprobs: float, alone: Sequence[float] | None = None) -> ChoiceScore:
    """A score whose unconditional log-probabilities are -1 each unless given."""
    unconditional = (-1.0,) * len(logprobs) if alone is None else tuple(alone)
    return ChoiceScore(tuple(range(len(logprobs))), logprobs, unconditional)


def test_mean_is_not_biased_to_short_choices() -> None:
    """A long choice of likely tokens beats a short unlikely one, although its sum is lower."""
    assert decide("token_length_normalized", [_score(-1.0), _score(-0.5, -0.5, -0.5)]) == 1


def test_greedy_looks_at_the_first_difference_only() -> None:
    """The choice with the likelier first token wins, however unlikely its rest is."""
    scores = [_score(-0.2, -0.1), _score(-0.1, -9.0)]
    assert decide("greedy_token_selection", scores) == 1
    assert decide("token_length_normalized", scores) == 0


def test_greedy_goes_on_while_tokens_are_shared() -> None:
    """Equal tokens keep both choices alive until one is likelier."""
    assert decide("greedy_token_selection", [_score(-0.5, -2.0), _score(-0.5, -1.0), _score(-0.9, 0.0)]) == 1


@pytest.mark.parametrize(("next_token", "winner"), [(-1.5, 0), (-0.5, 1), (-1.0, 0)])
def test_greedy_compares_an_ended_choice_by_its_mean(next_token: float, winner: int) -> None:
    """ "no" against "no way": the longer wins only where its next token is likelier than the shorter's mean token."""
    assert decide("greedy_token_selection", [_score(-1.0), _score(-1.0, next_token)]) == winner


def test_unconditional_takes_out_what_is_likely_anyway() -> None:
    """A common word is not chosen merely for being common."""
    scores = [_score(-1.0, alone=[-0.5]), _score(-2.0, -2.0, alone=[-5.0, -4.0])]
    assert decide("unconditional_likelihood_normalized", scores) == 1
    assert decide("token_length_normalized", scores) == 0


@given(st.sampled_from(_METHODS), _LOGPROBS, st.integers(1, 4))
def test_ties_go_to_the_first(method: SelectMethod, logprobs: list[float], count: int) -> None:
    """Of choices with equal scores the first is taken, whatever the method."""
    assert decide(method, [_score(*logprobs)] * count) == 0


@given(st.sampled_from(_METHODS), st.lists(_LOGPROBS, min_size=1, max_size=5))
def test_any_scores_have_a_decision(method: SelectMethod, choices: list[list[float]]) -> None:
    """Choices of any lengths, empty ones too, are decided, and the winner alone stays the winner of itself."""
    scores = [_score(*logprobs) for logprobs in choices]
    winner = decide(method, scores)
    assert 0 <= winner < len(choices)
    assert decide(method, scores) == winner
    assert decide(method, [scores[winner], *scores]) == 0


@given(st.lists(_LOGPROBS.filter(bool), min_size=1, max_size=6))
def test_mean_equals_its_definition(choices: list[list[float]]) -> None:
    """The winner has the highest mean, and nothing before it reaches it."""
    means = [math.fsum(logprobs) / len(logprobs) for logprobs in choices]
    assert decide("token_length_normalized", [_score(*logprobs) for logprobs in choices]) == means.index(max(means))


@pytest.mark.parametrize("method", _METHODS)
def test_a_choice_without_tokens_counts_as_certain(method: SelectMethod) -> None:
    """A choice that lies wholly in the shared tokens beats a choice that needs an uncertain token more."""
    empty, uncertain = ChoiceScore((), ()), _score(-1.5)
    assert decide(method, [uncertain, empty]) == 1
    assert decide(method, [empty, empty]) == 0


@pytest.mark.parametrize("method", _METHODS)
def test_impossible_tokens_lose(method: SelectMethod) -> None:
    """A log-probability of minus infinity loses to any other, also where the choice alone is impossible too."""
    impossible = _score(-math.inf, -0.1, alone=[-math.inf, -math.inf])
    assert decide(method, [impossible, _score(-30.0)]) == 1
    assert decide(method, [impossible, impossible]) == 0


@pytest.mark.parametrize("method", _METHODS)
def test_no_choices_is_an_error(method: SelectMethod) -> None:
    """A select of nothing is the caller's mistake, and says so."""
    with pytest.raises(RequestError, match="at least one choice"):
        decide(method, [])


def test_unknown_method_names_the_known_ones() -> None:
    """A method that does not exist is refused with the list of those that do."""
    with pytest.raises(RequestError, match=r"token_length_normalized.*not 'best'"):
        decide(cast("SelectMethod", "best"), [_score(-1.0)])


@pytest.mark.parametrize("method", _METHODS)
def test_nan_is_an_error(method: SelectMethod) -> None:
    """A log-probability that is NaN is never compared: the error names the choice."""
    for bad in (_score(-1.0, math.nan), _score(-1.0, -2.0, alone=[-1.0, math.nan])):
        with pytest.raises(EngineError, match="choice 1 has a log-probability that is NaN"):
            decide(method, [_score(-1.0), bad])


def test_lengths_must_agree() -> None:
    """Log-probabilities that are not one a token are an error of the engine, never a silent wrong choice."""
    with pytest.raises(EngineError, match="choice 1 has 2 tokens but 1"):
        decide("token_length_normalized", [_score(-1.0), ChoiceScore((1, 2), (-1.0,))])
    with pytest.raises(EngineError, match="choice 0 has 1 log-probabilities but 0 unconditional"):
        decide("unconditional_likelihood_normalized", [ChoiceScore((1,), (-1.0,))])
