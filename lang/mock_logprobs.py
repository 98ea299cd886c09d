"""Made-up log-probabilities of a mock's tokens: the same for the same words, and of the shape that a model's have."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from palmette.runtime.program import ChoiceScore, Select, TokenLogprob, TopLogprob
from palmette.runtime.sampling_params import SamplingParams

from .mock_usage import tokens_of


def mock_token_id(token: str) -> int:
    """A number for a word, the same everywhere."""
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % (1 << 15)


def mock_logprobs(text: str, params: SamplingParams) -> tuple[TokenLogprob, ...] | None:
    """One a word of an answer, where `params` ask for them."""
    if params.logprobs is None:
        return None
    return tuple(_logprob(token, params.logprobs, params) for token in tokens_of(text))


def mock_prompt_logprobs(tokens: Sequence[str], params: SamplingParams) -> tuple[TokenLogprob | None, ...] | None:
    """One a word of a prompt from where `params` ask for them; None for the first word, which nothing precedes."""
    if params.prompt_logprobs is None:
        return None
    first = params.prompt_logprobs_from
    count = params.prompt_logprobs
    return tuple(_logprob(tokens[i], count, params) if i else None for i in range(first, len(tokens)))


def mock_scores(node: Select, choice: int) -> tuple[ChoiceScore, ...]:
    """Those of a select whose answer is `choice`, as if each choice were one token. By every method that one wins."""
    alone = (-3.0,) if node.method == "unconditional_likelihood_normalized" else ()
    likelihoods = [-0.25 if place == choice else -2.0 - place / 64 for place in range(len(node.choices))]
    return tuple(
        ChoiceScore((mock_token_id(text),), (likelihood,), alone)
        for text, likelihood in zip(node.choices, likelihoods, strict=True)
    )


def _logprob(token: str, count: int, params: SamplingParams) -> TokenLogprob:
    """The word itself is the likeliest; the others at its place are made of its number."""
    token_id = mock_token_id(token)
    likelihood = -(1 + token_id % 16) / 64
    others = [f"{token}{rank}" for rank in range(1, count)]
    top = [(token, likelihood), *((other, likelihood - rank) for rank, other in enumerate(others, 1))][:count]
    entries = tuple(TopLogprob(mock_token_id(word), value, _shown(word, params)) for word, value in top)
    return TokenLogprob(token_id, likelihood, entries, _shown(token, params))


def _shown(token: str, params: SamplingParams) -> str | None:
    return token if params.return_text_in_logprobs else None
