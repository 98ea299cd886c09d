"""The completions of a generation, from the answers that an OpenAI service gave."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from palmette.constrained.grammar import Grammar
from palmette.runtime.errors import RequestError
from palmette.runtime.program import Completion, FinishReason, Generate, TokenLogprob
from palmette.runtime.sampling_params import SamplingParams

from .mock_stop import before_stop
from .openai_replies import UNKNOWN_TOKEN, Answer, Counts


class _Logprobs(TypedDict):
    """Of a completion."""

    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None


def completion_of(node: Generate, answer: Answer, text: str, counts: Counts, *, cuts: bool) -> Completion:
    """The completion of an answer that is taken.

    Args:
        text: of the answer, as its grammar allows it.
        cuts: the service knows no stop patterns, so the text is cut here.

    Raises:
        RequestError: `prompt_logprobs_from` is past the prompt.
    """
    matched = answer.matched
    if cuts and node.params.stop_regex:
        cut = before_stop(text, msgspec.structs.replace(node.params, stop=()), lambda _: node.grammar is None)
        text, matched = cut[0], cut[1] or matched
    token_ids = tuple(entry.token_id for entry in answer.logprobs)
    return Completion(
        text=text,
        token_ids=() if UNKNOWN_TOKEN in token_ids else token_ids,
        finish_reason=_finish_reason(answer, matched, node.grammar),
        matched=matched,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        completion_tokens=counts.completion_tokens,
        forced_tokens=counts.forced_tokens,
        **_logprobs(answer, node.params),
    )


def shared_counts(counts: Counts, answers: list[Answer]) -> list[Counts]:
    """The counts of each answer. Services count all of a request together: of several, each is given an equal part."""
    count = len(answers)
    return [
        Counts(
            counts.prompt_tokens,
            counts.cached_tokens,
            (counts.completion_tokens + count - 1 - place) // count,
            (counts.forced_tokens + count - 1 - place) // count,
        )
        for place in range(count)
    ]


def _logprobs(answer: Answer, params: SamplingParams) -> _Logprobs:
    """As many of the likeliest tokens as were asked for: services may add the token itself, and the prompt's count."""
    prompt: tuple[TokenLogprob | None, ...] = ()
    if params.prompt_logprobs is not None:
        first = params.prompt_logprobs_from
        if first >= len(answer.prompt_logprobs):
            raise RequestError(
                f"prompt_logprobs_from={first} is past the prompt of {len(answer.prompt_logprobs)} tokens"
            )
        scored = answer.prompt_logprobs[first:]
        prompt = tuple(
            None if first + place == 0 else _cut(entry, params.prompt_logprobs) for place, entry in enumerate(scored)
        )
    return {
        "logprobs": None
        if params.logprobs is None
        else tuple(_cut(entry, params.logprobs) for entry in answer.logprobs),
        "prompt_logprobs": None if params.prompt_logprobs is None else prompt,
    }


def _cut(entry: TokenLogprob, count: int) -> TokenLogprob:
    return entry if len(entry.top) <= count else msgspec.structs.replace(entry, top=entry.top[:count])


def _finish_reason(answer: Answer, matched: str | int | None, grammar: Grammar | None) -> FinishReason:
    if answer.finish == "length":
        return "length"
    return "grammar" if grammar is not None and matched is None else "stop"
