"""Which choice a select takes, from the scores of its choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .errors import EngineError, RequestError
from .program import ChoiceScore, SelectMethod


def decide(method: SelectMethod, scores: Sequence[ChoiceScore]) -> int:
    """The index of the best choice under a method; of equally good ones, the first.

    - `token_length_normalized`: the highest mean log-probability of its tokens.
    - `greedy_token_selection`: go from token to token, and at each place keep the choices whose token has the highest
      log-probability. A choice that has ended competes with the mean log-probability of its own tokens, so that being
      the beginning of a longer choice is neither won nor lost by length.
    - `unconditional_likelihood_normalized`: the highest mean of log-probability minus unconditional log-probability:
      what the prompt adds to the choice's own likelihood.

    A choice without scored tokens (all of its text lies in the tokens that every choice shares) adds nothing that could
    be unlikely: its mean is 0, the log-probability of certainty.

    Raises:
        RequestError: there are no choices, or no such method.
        EngineError: a choice's log-probabilities are not one a token, or one of them is NaN.
    """
    if not scores:
        raise RequestError("select needs at least one choice; it was given none")
    if method not in _DECISIONS:
        raise RequestError(f"select method must be one of {', '.join(_DECISIONS)}, not {method!r}")
    for index, score in enumerate(scores):
        _check(index, score)
    return _DECISIONS[method](scores)


def _check(index: int, score: ChoiceScore) -> None:
    if len(score.logprobs) != len(score.token_ids):
        raise EngineError(
            f"choice {index} has {len(score.token_ids)} tokens but {len(score.logprobs)} log-probabilities"
        )
    if any(map(math.isnan, (*score.logprobs, *score.unconditional))):
        raise EngineError(f"choice {index} has a log-probability that is NaN, which no other can be compared with")


def _by_mean(scores: Sequence[ChoiceScore]) -> int:
    return _first_best([_mean(score.logprobs) for score in scores])


def _by_unconditional(scores: Sequence[ChoiceScore]) -> int:
    return _first_best([_mean(_gains(index, score)) for index, score in enumerate(scores)])


def _gains(index: int, score: ChoiceScore) -> list[float]:
    """What the prompt adds to each token; an impossible token gains nothing from being impossible without it too."""
    if len(score.unconditional) != len(score.logprobs):
        raise EngineError(
            f"choice {index} has {len(score.logprobs)} log-probabilities "
            f"but {len(score.unconditional)} unconditional ones"
        )
    pairs = zip(score.logprobs, score.unconditional, strict=True)
    return [-math.inf if given == -math.inf else given - alone for given, alone in pairs]


def _by_token(scores: Sequence[ChoiceScore]) -> int:
    alive = list(range(len(scores)))
    for place in range(max(len(score.logprobs) for score in scores)):
        values = [_at(scores[index], place) for index in alive]
        best = max(values)
        alive = [index for index, value in zip(alive, values, strict=True) if value == best]
        if len(alive) == 1:
            break
    return alive[0]


def _at(score: ChoiceScore, place: int) -> float:
    return score.logprobs[place] if place < len(score.logprobs) else _mean(score.logprobs)


def _mean(logprobs: Sequence[float]) -> float:
    if -math.inf in logprobs:
        return -math.inf
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0


def _first_best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


_DECISIONS: dict[str, Callable[[Sequence[ChoiceScore]], int]] = {
    "token_length_normalized": _by_mean,
    "greedy_token_selection": _by_token,
    "unconditional_likelihood_normalized": _by_unconditional,
}
