"""Scores of a select's choices, from a service that tells the log-probabilities of a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from palmette.runtime.program import ChoiceScore, Select

Scored = tuple[list[str], list[float | None]]
"""Tokens of a text, and the log-probability of each; None of the first, which nothing precedes."""


def score_prompts(text: str, node: Select) -> list[str]:
    """The texts to score: the prompt, the prompt with each choice and, for the method that needs them, the choices."""
    alone = list(node.choices) if node.method == "unconditional_likelihood_normalized" else []
    return [*([text] if text else []), *(text + choice for choice in node.choices), *alone]


def choice_scores(scored: Sequence[Scored], text: str, node: Select) -> tuple[ChoiceScore, ...] | None:
    """Scores from the tokens of `score_prompts`; None where the service did not tell them.

    A choice's tokens are those after the tokens that the prompt and all choices share, so that a choice is scored on
    the tokens that it has together with the prompt.
    """
    if len(scored) != len(score_prompts(text, node)) or not all(
        _is_scored(tokens, values) for tokens, values in scored
    ):
        return None
    before = 1 if text else 0
    count = len(node.choices)
    joint, alone = scored[before : before + count], scored[before + count :]
    shared = _shared_prefix([tokens for tokens, _ in scored[: before + count]])
    ids = {token: place for place, token in enumerate({token: None for tokens, _ in joint for token in tokens})}
    scores = []
    for place, (tokens, values) in enumerate(joint):
        # a first token without a log-probability is there whatever follows
        logprobs = tuple(0.0 if value is None else value for value in values[shared:])
        unconditional = _unconditional(alone[place][1], logprobs) if alone else ()
        scores.append(ChoiceScore(tuple(ids[token] for token in tokens[shared:]), logprobs, unconditional))
    return tuple(scores)


def _is_scored(tokens: Sequence[str], values: Sequence[float | None]) -> bool:
    return bool(tokens) and len(tokens) == len(values) and all(value is not None for value in values[1:])


def _shared_prefix(texts: Sequence[Sequence[str]]) -> int:
    length = 0
    for tokens in zip(*texts, strict=False):
        if len(set(tokens)) > 1:
            break
        length += 1
    return length


def _unconditional(alone: Sequence[float | None], logprobs: Sequence[float]) -> tuple[float, ...]:
    """The choice's log-probabilities without the prompt, one for each that it has with it.

    A service does not score a first token that nothing precedes: it counts as likely as with the prompt. Where the
    choice is cut into other tokens after the prompt, each is given the mean of those it has alone.
    """
    if len(alone) == len(logprobs):
        return tuple(given if value is None else value for value, given in zip(alone, logprobs, strict=True))
    known = [value for value in alone if value is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    return (mean,) * len(logprobs)
