"""Log-probabilities as a client reads them: from the arrays of a step, with the tokens' text where it was asked for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .batch import Float32Array, Int32Array, StepResult
from .program import TokenLogprob, TopLogprob
from .request import Request

TokenText = Callable[[int], str]
"""The text of a token id alone."""


def sampled_logprob(request: Request, result: StepResult, index: int) -> TokenLogprob | None:
    """The log-probability of the token sampled at `index` of a step, where the request asked for it."""
    if request.params.logprobs is None:
        return None
    top = result.top_logprobs[index]
    likeliest = _top(*top) if top is not None else ()
    return TokenLogprob(int(result.token_ids[index]), float(result.logprobs[index]), likeliest)


def take_scores(request: Request, result: StepResult, scored: slice) -> None:
    """Keep the scores that a step computed of a request, at these places of its result."""
    token_ids, logprobs = result.score_top
    if (place := request.unscored.start) >= len(request.prompt_ids):
        count = request.params.logprobs or 0
        forced = request.token_ids[place:].tolist()
        tops = map(_top, token_ids[scored, :count], logprobs[scored, :count])
        request.logprobs += map(TokenLogprob, forced, result.score_logprobs[scored].tolist(), tops)
        return
    count = request.params.prompt_logprobs or 0
    request.score_logprobs += result.score_logprobs[scored].tolist()
    request.score_top.append((token_ids[scored, :count].copy(), logprobs[scored, :count].copy()))


def output_logprobs(request: Request, token_text: TokenText) -> tuple[TokenLogprob, ...] | None:
    """One a token of a finished request's output; None where they were not asked for."""
    if request.params.logprobs is None:
        return None
    return tuple(_spelled(entry, request, token_text) for entry in request.logprobs)


def prompt_logprobs(request: Request, token_text: TokenText) -> tuple[TokenLogprob | None, ...] | None:
    """One a token of a finished request's prompt, from where they were asked for; None where they were not."""
    params = request.params
    if params.prompt_logprobs is None:
        return None
    tops = [top for ids, logprobs in request.score_top for top in map(_top, ids, logprobs)]
    scored = request.prompt_ids[request.score_from :].tolist()
    entries = map(TokenLogprob, scored, request.score_logprobs, tops)
    unpreceded = (None,) if params.prompt_logprobs_from == 0 else ()
    return (*unpreceded, *(_spelled(entry, request, token_text) for entry in entries))


def _top(token_ids: Int32Array, logprobs: Float32Array) -> tuple[TopLogprob, ...]:
    return tuple(map(TopLogprob, token_ids.tolist(), logprobs.tolist()))


def _spelled(entry: TokenLogprob, request: Request, token_text: TokenText) -> TokenLogprob:
    """The entry with its tokens' text, where the request asked for that."""
    if not request.params.return_text_in_logprobs:
        return entry
    top = tuple(msgspec.structs.replace(each, text=token_text(each.token_id)) for each in entry.top)
    return msgspec.structs.replace(entry, text=token_text(entry.token_id), top=top)
