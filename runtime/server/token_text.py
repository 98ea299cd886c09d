"""Token ids as text."""

from __future__ import annotations

from collections.abc import Iterable

from palmette.runtime.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, token_ids: Iterable[int]) -> str:
    """The text of tokens, with the names of special ones; bytes that are no character become replacement characters."""
    known = tokenizer.token_bytes
    parts: list[bytes] = []
    for token_id in token_ids:
        spelled = known[token_id] if 0 <= token_id < len(known) else None
        parts.append(tokenizer.token_text(token_id).encode() if spelled is None else spelled)
    return b"".join(parts).decode(errors="replace")
