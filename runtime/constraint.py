"""Holding a request to its grammar: mask rows by the step, and endings that always fit the token budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from .batch import UNCONSTRAINED, Int32Array, UInt32Array
from .errors import EngineError, RequestError
from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import MaskTable, Matcher, TokenGrammar

NEAR_ENDING = 8
"""With so many tokens to spare or fewer, the next token is drawn only from those after which an ending still fits."""

PREPARED_MASKS = 16
"""Masks looked for ahead of one step. Those that are known already cost next to nothing."""


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
        if not request.steered and matcher.grammar.shares_states:
            return self._table.acquire(matcher.grammar, matcher.state)
        if not request.steered:
            return self._table.acquire_private(matcher.mask())
        bits = matcher.mask_within(request.tokens_left)
        if not bits.any():
            raise EngineError(f"no ending of the grammar fits the {request.tokens_left} tokens left")
        return self._table.acquire_private(bits)

    def prepare(self, requests: Iterable[Request]) -> None:
        """Find the masks of requests that will soon ask for a row, at most `PREPARED_MASKS` of them.

        To be called while the model computes a step: what is known then does not hold up the next one. A grammar that
        fails here fails again, and with its request, when the row is asked for.
        """
        if self._table is None:
            return
        awaited = (request.matcher for request in requests if request.matcher is not None and not request.steered)
        for matcher in itertools.islice(awaited, PREPARED_MASKS):
            if matcher.grammar.shares_states:  # else it would not be kept
                with suppress(Exception):
                    matcher.grammar.mask(matcher.state)

    def release(self, row: int) -> None:
        if row != UNCONSTRAINED and self._table is not None:
            self._table.release(row)

    def take_updates(self) -> tuple[Int32Array, UInt32Array] | None:
        """What the runner must write before it samples."""
        return self._table.take_updates() if self._table is not None else None


def constrain(request: Request, compiled: TokenGrammar) -> Matcher:
    """Hold a request, which has no output yet, to its compiled grammar.

    Raises:
        RequestError: not even the shortest text that matches fits the request's tokens, and it is to be complete.
    """
    matcher = request.matcher = compiled.matcher()
    if not _is_steerable(request):
        return matcher
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


def accept_within_budget(request: Request, token_id: int, *, is_forced: bool = False) -> bool:
    """Move the matcher on by one token, if after it an ending still fits the request's tokens or need not.

    A token that closes the last way to an ending is rare, so it is cheaper to draw one again than to know all of them
    before every draw. A greedy request gets the same token either way. Forced text (`is_forced`) is spelled as the
    tokenizer spells it, which may take more tokens than are left.

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
    if matcher.finished or not _is_steerable(request):
        return True
    if matcher.ending_bytes() + NEAR_ENDING < left:  # never more tokens than bytes, and those take a walk to count
        request.steered = False
        return True
    ending = len(matcher.shortest_ending())
    if ending <= left:
        request.steered = ending + NEAR_ENDING >= left
        return True
    matcher.rollback(1)
    if request.steered and not is_forced:
        raise EngineError(f"token {token_id} was allowed, but the ending after it takes {ending} of {left} tokens")
    request.steered = True
    return False


def check_length(request: Request) -> None:
    """Whether a request whose tokens are used up may end as its text stands.

    Raises:
        RequestError: its text was to be complete and is not: the grammar's backend knows no way to an ending.
    """
    matcher = request.matcher
    if matcher is None or not request.params.always_complete or matcher.is_accepting:
        return
    if not matcher.grammar.always_completes:
        raise RequestError(
            f"after {request.num_output} tokens the answer does not match its grammar yet, and this grammar backend "
            "cannot steer to an end: allow more max_tokens, or use grammar_backend='native'"
        )


def _is_steerable(request: Request) -> bool:
    matcher = request.matcher
    return matcher is not None and request.params.always_complete and matcher.grammar.always_completes
