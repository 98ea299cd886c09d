"""Holding a request to its grammar: mask rows by the step, and endings that always fit the token budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batch import UNCONSTRAINED, Int32Array, UInt32Array
from .errors import EngineError, RequestError
from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import CompiledGrammar, MaskTable, Matcher

NEAR_ENDING = 8
"""With so many tokens to spare or fewer, the next token is drawn only from those after which an ending still fits."""


class MaskRows:
    """The rows of the mask table that the step in flight refers to."""

    def __init__(self, table: MaskTable | None) -> None:
        self._table = table

    def acquire(self, request: Request) -> int:
        """The row for a request's next token, referenced until it is released.

        Raises:
            PalmetteError: every row is in use, or the grammar met one of its limits.
        """
        matcher = request.matcher
        if matcher is None or self._table is None:
            return UNCONSTRAINED
        if not request.steered:
            return self._table.acquire(matcher.grammar, matcher.state)
        bits = matcher.mask_within(request.tokens_left)
        if not bits.any():
            raise EngineError(f"no ending of the grammar fits the {request.tokens_left} tokens left")
        return self._table.acquire_private(bits)

    def release(self, row: int) -> None:
        if row != UNCONSTRAINED and self._table is not None:
            self._table.release(row)

    def take_updates(self) -> tuple[Int32Array, UInt32Array] | None:
        """What the runner must write before it samples."""
        return self._table.take_updates() if self._table is not None else None


def constrain(request: Request, compiled: CompiledGrammar) -> Matcher:
    """Hold a request, which has no output yet, to its compiled grammar.

    Raises:
        RequestError: not even the shortest text that matches fits the request's tokens.
    """
    matcher = request.matcher = compiled.matcher()
    ending = -(-matcher.ending_bytes() // max(1, compiled.vocabulary.longest))  # at least
    is_far = ending > request.max_output  # to count its tokens would take a walk to its end
    if not is_far:
        ending = len(matcher.shortest_ending())
    if ending > request.max_output:
        allowed = f"max_tokens={request.params.max_tokens}"
        if request.max_output < request.params.max_tokens:
            allowed += f", of which {request.max_output} fit the context"
        takes = f"{ending} tokens or more" if is_far else f"{ending} tokens"
        raise RequestError(
            f"the shortest text that matches this grammar takes {takes}, but {allowed}; allow at least {ending}"
        )
    request.steered = ending + NEAR_ENDING >= request.max_output
    return matcher


def accept_within_budget(request: Request, token_id: int) -> bool:
    """Move the matcher on by one token, if after it an ending still fits the request's tokens.

    A token that closes the last way to an ending is rare, so it is cheaper to draw one again than to know all of them
    before every draw. A greedy request gets the same token either way.

    Returns:
        False where no ending would fit; the matcher has not moved then, and the request is steered from now on.

    Raises:
        TokenRejectedError: the grammar does not allow the token.
        EngineError: the token was drawn under a mask of tokens after which an ending fits.
    """
    matcher = request.matcher
    assert matcher is not None
    matcher.accept(token_id)
    left = request.tokens_left - 1
    if matcher.finished:
        return True
    if matcher.ending_bytes() + NEAR_ENDING < left:  # never more tokens than bytes, and those take a walk to count
        request.steered = False
        return True
    ending = len(matcher.shortest_ending())
    if ending <= left:
        request.steered = ending + NEAR_ENDING >= left
        return True
    matcher.rollback(1)
    if request.steered:
        raise EngineError(f"token {token_id} was allowed, but the ending after it takes {ending} of {left} tokens")
    request.steered = True
    return False
