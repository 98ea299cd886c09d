"""Log-probabilities in the two shapes of OpenAI's protocol."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from palmette.runtime.program import TokenLogprob
from palmette.runtime.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for the logarithm of nothing, which JSON cannot spell."""


class LegacyLogprobs:
    """The shape of /v1/completions: parallel lists, one entry a token, and where in the answer its text begins.

    Made for one answer, whose tokens it takes in order. A token that is part of a character has replacement characters
    for a text; the character counts where it is complete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def shaped(self, entries: Sequence[TokenLogprob | None], first_id: int | None = None) -> dict[str, Any]:
        """The next tokens. None stands for a token that nothing precedes, whose id is `first_id`."""
        tokens: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in entries:
            token_id = entry.token_id if entry is not None else first_id
            tokens.append(self._tokenizer.token_text(token_id) if token_id is not None else "")
            offsets.append(self._advance(token_id))
            logprobs.append(None if entry is None else _finite(entry.logprob))
            tops.append(None if entry is None else self._top(entry))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _advance(self, token_id: int | None) -> int:
        """Where the token begins; a special token has no text of its own in an answer."""
        known = (token_bytes(self._tokenizer, token_id) if token_id is not None else None) or b""
        if known and not 0x80 <= known[0] < 0xC0:  # what came of a character before is all there will be
            self._offset += len(self._decoder.decode(b"", final=True))
        begins = self._offset
        self._offset += len(self._decoder.decode(known))
        return begins

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """By text, so tokens of one text share an entry, the likeliest one's. The token itself is always there."""
        found: dict[str, float] = {}
        for token_id, logprob in [(top.token_id, top.logprob) for top in entry.top] + [(entry.token_id, entry.logprob)]:
            found.setdefault(self._tokenizer.token_text(token_id), _finite(logprob))
        return found


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The shape of /v1/chat/completions: one object a token, with the likeliest tokens in its place."""
    return [
        {
            **_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_token(tokenizer, top.token_id, top.logprob) for top in entry.top],
        }
        for entry in entries
    ]


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes | None:
    """The exact bytes of a token; None for a special token and an id without a token."""
    return tokenizer.token_bytes[token_id] if 0 <= token_id < len(tokenizer.token_bytes) else None


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    text = tokenizer.token_text(token_id)
    known = token_bytes(tokenizer, token_id)
    return {"token": text, "bytes": list(known if known is not None else text.encode()), "logprob": _finite(logprob)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST
