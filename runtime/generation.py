"""What becomes of a sampled token: it is accepted, becomes text, and may end the output or force more of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .constrained_stop import stop_is_legal
from .constraint import accept_within_budget, check_length, constrain
from .program import FinishReason, TokenLogprob
from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import TokenGrammar

ForcedText = Callable[[Request], Sequence[int]]
"""The token ids that a request's grammar forces next; often none."""


class Generation:
    """Takes tokens into a request's output until it ends.

    It ends, in this order of precedence: at a stop token or end of sequence (not part of the text), before a stop
    string or the match of a stop pattern, where the grammar lets nothing follow, at max_tokens. `min_tokens` holds back
    end tokens alone; a grammar that is complete wins over it. In a constrained output, stops of all kinds count only
    where the grammar accepts.

    Methods return the text that may be shown now, and raise what the grammar raises.

    Args:
        forced_text: None takes no tokens without sampling them. Neither does a request whose prompt is still to be
            scored, since it must run for that. With logprobs, forced tokens are scored by the step that computes them,
            so the last token of an output is always sampled.
    """

    def __init__(self, forced_text: ForcedText | None) -> None:
        self._forced_text = forced_text

    def begin(self, request: Request, compiled: TokenGrammar) -> str:
        """Hold a request to its compiled grammar; the output may begin with forced text, or be all of it."""
        matcher = constrain(request, compiled)
        if matcher.finished and not request.unscored:
            request.finish("grammar")
            return ""
        return self._force(request)

    def take(self, request: Request, token_id: int, logprob: TokenLogprob | None) -> str:
        """Take a sampled token. It may be refused: the request then samples once more."""
        if request.matcher is not None and request.matcher.finished:  # from the start: it ran for its prompt's scores
            return self._finish(request, "grammar")
        text = self._take(request, token_id)
        if text is None:
            request.draw_again()
            return ""
        if logprob is not None:
            request.logprobs.append(logprob)
        return text + self._force(request) if request.matcher is not None and request.is_active else text

    def _force(self, request: Request) -> str:
        if self._forced_text is None or request.matcher is None:
            return ""
        if request.asks_scores and request.unscored:
            return ""
        forced = self._forced_text(request)
        if not forced:
            return ""
        shown, first = "", request.num_output
        for token_id in forced if request.params.logprobs is None else _before_end(request, forced):
            text = self._take(request, token_id, is_forced=True)
            if text is None:
                break
            request.forced += 1
            shown += text
            if not request.is_active:
                break
        if request.num_output > first:
            request.forced_ranges.append((first, request.num_output))
        return shown

    def _take(self, request: Request, token_id: int, *, is_forced: bool = False) -> str | None:
        """Append a token and end the output where it ends; None where an ending would no longer fit."""
        matcher = request.matcher
        if self._is_end(request, token_id):
            request.append(token_id)
            return self._finish(request, "stop", token_id)
        may_stop = True
        if matcher is not None:
            may_stop = stop_is_legal(request, token_id)
            if not accept_within_budget(request, token_id, is_forced=is_forced):
                return None
        request.append(token_id)
        text = request.text.push(token_id, may_stop=may_stop)
        if request.text.matched is not None:
            return text + self._finish(request, "stop")
        if matcher is not None and matcher.finished:
            return text + self._finish(request, "grammar")
        if request.tokens_left > 0:
            return text
        check_length(request)
        return text + self._finish(request, "length")

    def _is_end(self, request: Request, token_id: int) -> bool:
        matcher = request.matcher
        if matcher is not None:
            return (token_id in request.stop_ids or token_id in request.end_ids) and matcher.is_accepting
        return token_id in request.stop_ids and request.num_output >= request.params.min_tokens

    def _finish(self, request: Request, reason: FinishReason, end_token: int | None = None) -> str:
        """End the request and return the last of its text. A stop pattern may be waiting for just this end."""
        text = request.text.finish(may_stop=request.matcher is None)
        if request.text.matched is not None:
            request.finish("stop", request.text.matched)
        else:
            request.finish(reason, end_token)
        return text


def _before_end(request: Request, token_ids: Sequence[int]) -> list[int]:
    """Those of forced tokens after which the output surely goes on."""
    params, matcher = request.params, request.matcher
    if matcher is None or params.stop or params.stop_regex:  # which may end it anywhere
        return []
    ahead, taken = matcher.copy(), []
    for token_id in token_ids[: max(0, request.tokens_left - 1)]:
        ahead.accept(token_id)
        if ahead.finished or token_id in request.stop_ids:
            break
        taken.append(token_id)
    return taken
