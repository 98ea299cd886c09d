"""Stop strings and patterns in constrained text: they end it only where the grammar accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import Matcher


def stop_is_legal(request: Request, token_id: int) -> bool:
    """Whether a stop that `token_id` completes may end the text of a request.

    The text ends before the stop, so that is where the grammar must accept. The place may lie within a token, whose
    first bytes are then walked one by one; a vocabulary without tokens for them keeps the stop from ending the text
    there.

    Args:
        token_id: the next token of the output; neither the matcher nor the text has taken it yet.
    """
    matcher = request.matcher
    dropped = request.text.dropped_bytes(token_id) if matcher is not None else None
    if matcher is None or dropped is None:
        return True
    return _accepts_without(matcher.copy(), _last_tokens(request, matcher, token_id, dropped), dropped)


def _last_tokens(request: Request, matcher: Matcher, token_id: int, reach: int) -> list[bytes]:
    """Bytes of `token_id` and of the output tokens before it, newest first, until they are `reach` bytes."""
    vocabulary = matcher.grammar.vocabulary
    spelled = [vocabulary.bytes_of(token_id) or b""]
    size = len(spelled[0])
    for earlier in request.output_ids[::-1]:
        if size >= reach:
            break
        spelled.append(vocabulary.bytes_of(int(earlier)) or b"")
        size += len(spelled[-1])
    return spelled


def _accepts_without(matcher: Matcher, spelled: list[bytes], dropped: int) -> bool:
    """Whether the grammar accepts the text without its last `dropped` bytes, of which there is at least one.

    Args:
        matcher: has accepted all but the newest token; it is moved.
        spelled: the last tokens of the text, newest first.
    """
    tokens = 0
    while dropped > 0:
        dropped -= len(spelled[tokens])
        tokens += 1
    matcher.rollback(tokens - 1)
    grammar, state = matcher.grammar, matcher.state
    for byte in spelled[tokens - 1][:-dropped] if dropped else b"":
        node = grammar.vocabulary.child(-1, byte)
        token_id = grammar.vocabulary.token_at(node) if node >= 0 else None
        following = grammar.advance(state, token_id) if token_id is not None else None
        if following is None:
            return False
        state = following
    return grammar.is_accepting(state)
