"""A request's news as a message: what has come since the last, and at the end all that it came to."""

from __future__ import annotations

from .detokenizer import OutputText
from .logprobs import likeliest_beside
from .messages import RequestEnd, RequestFailure, RequestOutput
from .program import TokenLogprob
from .request import Request


def report(request: Request, text: str, *, finished: bool) -> RequestOutput:
    """The next news of a request, in which `text` is new. Each is made once: the request remembers what was told."""
    first, request.reported = request.reported, request.text.num_tokens
    token_ids = tuple(request.output_after(first, request.reported))
    logprobs: tuple[TokenLogprob, ...] = ()
    if request.stream and request.params.logprobs is not None:
        logprobs = tuple(request.logprobs[request.reported_logprobs :])
        request.reported_logprobs = len(request.logprobs)
    is_read = isinstance(request.text, OutputText)
    return RequestOutput(
        request.id, token_ids, text if is_read else None, logprobs, _end(request) if finished else None
    )


def refusal(request_id: str, error: Exception) -> RequestOutput:
    """The only news of a request that was never taken in."""
    return RequestOutput(request_id, end=RequestEnd(text="", failure=RequestFailure.of(error)))


def _end(request: Request) -> RequestEnd:
    kept, tail = _kept(request)
    return RequestEnd(
        finish_reason=request.finish_reason,
        matched=request.matched,
        text=request.text.text if isinstance(request.text, OutputText) else None,
        kept_ids=kept,
        tail=tail,
        output_tokens=request.num_output,
        forced_tokens=request.forced,
        cached_tokens=request.cached_tokens,
        logprobs=tuple(request.logprobs),
        score_logprobs=tuple(request.score_logprobs),
        score_top=likeliest_beside(request),
        failure=None if request.error is None else RequestFailure.of(request.error),
        queue_s=None if request.started_s is None else request.started_s - request.arrived_s,
        elapsed_s=(request.ended_s or request.arrived_s) - request.arrived_s,
        first_token_s=None if request.first_token_s is None else request.first_token_s - request.arrived_s,
        first_step=request.first_step,
        last_step=request.last_step,
        batch_size=request.mean_batch_size,
        forced_ranges=tuple(request.forced_ranges),
    )


def _kept(request: Request) -> tuple[tuple[int, ...], str]:
    if isinstance(request.text, OutputText):
        return request.text.kept_ids
    return tuple(request.output_ids[: request.text.num_tokens].tolist()), ""
