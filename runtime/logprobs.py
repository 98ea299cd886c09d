"""Log-probabilities as a client reads them: from the arrays of a step, with the tokens' text where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from .batch import Float32Array, Int32Array, StepResult
from .messages import RequestEnd
from .program import TokenLogprob, TopLogprob
from .request import Request
from .sampling_params import SamplingParams

LOWEST = np.float32(-9999)
"""Stands for the log-probability of what the model rules out: events travel as JSON, which has no infinity."""

TokenText = Callable[[int], str]
"""The text of a token id alone."""


def sampled_logprob(request: Request, result: StepResult, index: int) -> TokenLogprob | None:
    """The log-probability of the token sampled at `index` of a step, where the request asked for it."""
    if request.params.logprobs is None:
        return None
    top = result.top_logprobs[index]
    likeliest = _top(*top) if top is not None else ()
    return TokenLogprob(int(result.token_ids[index]), max(float(result.logprobs[index]), float(LOWEST)), likeliest)


def take_scores(request: Request, result: StepResult, scored: slice) -> None:
    """Keep the scores that a step computed of a request, at these places of its result."""
    token_ids, logprobs = result.score_top
    scores = np.maximum(result.score_logprobs[scored], LOWEST).tolist()
    if request.are_output(unscored := request.unscored):
        count = request.params.logprobs or 0
        forced = request.token_ids[unscored.start :].tolist()
        tops = map(_top, token_ids[scored, :count], logprobs[scored, :count])
        request.logprobs += map(TokenLogprob, forced, scores, tops)
        return
    count = request.params.prompt_logprobs or 0
    request.score_logprobs += scores
    request.score_top.append((token_ids[scored, :count].copy(), logprobs[scored, :count].copy()))


def likeliest_beside(request: Request) -> tuple[tuple[TopLogprob, ...], ...]:
    """The likeliest tokens beside each scored token of a request's prompt."""
    return tuple(top for ids, logprobs in request.score_top for top in map(_top, ids, logprobs))


def prompt_logprobs(
    params: SamplingParams, prompt_ids: Int32Array, end: RequestEnd, token_text: TokenText
) -> tuple[TokenLogprob | None, ...] | None:
    """One a token of a finished request's prompt, from where they were asked for; None where they were not."""
    if params.prompt_logprobs is None:
        return None
    scored = prompt_ids[len(prompt_ids) - len(end.score_logprobs) :].tolist()
    entries = map(TokenLogprob, scored, end.score_logprobs, end.score_top)
    unpreceded = (None,) if params.prompt_logprobs_from == 0 else ()
    return (*unpreceded, *spelled(entries, params, token_text))


def spelled(entries: Iterable[TokenLogprob], params: SamplingParams, token_text: TokenText) -> tuple[TokenLogprob, ...]:
    """The entries with their tokens' text, where `params` ask for that."""
    if not params.return_text_in_logprobs:
        return tuple(entries)
    return tuple(_with_text(entry, token_text) for entry in entries)


def _top(token_ids: Int32Array, logprobs: Float32Array) -> tuple[TopLogprob, ...]:
    return tuple(map(TopLogprob, token_ids.tolist(), np.maximum(logprobs, LOWEST).tolist()))


def _with_text(entry: TokenLogprob, token_text: TokenText) -> TokenLogprob:
    top = tuple(msgspec.structs.replace(each, text=token_text(each.token_id)) for each in entry.top)
    return msgspec.structs.replace(entry, text=token_text(entry.token_id), top=top)
