"""Text that a grammar forces, as the tokens the model's own tokenizer would give for the whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from palmette.constrained import Matcher

from .request import Request
from .tokenizer import Tokenizer

TAIL_TOKENS = 8
"""How many of the last output tokens are encoded again together with the forced text, to see whether they stay."""


class ForcedText:
    """Finds the tokens that a request's grammar forces next.

    The end of the output and the forced bytes are encoded as one text. The result counts only where it begins with the
    very tokens that are there, and only up to the first token that a legal continuation could straddle: a longer token
    that the grammar also allows there is left for the model to choose. The prompt is never encoded again, so forced
    text cannot fuse with its last token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lengths = np.array([len(token or b"") for token in tokenizer.token_bytes], dtype=np.int32)

    def __call__(self, request: Request) -> list[int]:
        """The token ids forced after the request's output, in order; often none."""
        matcher = request.matcher
        if matcher is None or matcher.finished:
            return []
        forced = matcher.forced_bytes()
        if not forced:
            return []
        tail = [int(token) for token in request.output_ids[-TAIL_TOKENS:]]
        encoded = self._encode(tail, forced)
        return self._not_straddled(matcher.copy(), encoded, len(forced))

    def _encode(self, tail: list[int], forced: bytes) -> list[int]:
        """Tokens of `forced` after `tail`; none where the tokenizer would have cut the tail in another way."""
        token_bytes = self._tokenizer.token_bytes
        settled = b"".join(token_bytes[token] or b"" for token in tail)
        text = _whole_characters(settled + forced)
        if text is None:
            return []
        ids = self._tokenizer.encode_text(text)
        spelled = b"".join(token_bytes[token] or b"" for token in ids)
        if ids[: len(tail)] != tail or spelled != text.encode():  # a normalizer may have changed the text
            return []
        return ids[len(tail) :]

    def _not_straddled(self, matcher: Matcher, tokens: list[int], bytes_left: int) -> list[int]:
        taken: list[int] = []
        for token in tokens:
            allowed = self._allowed(matcher)
            longest = int(self._lengths[: len(allowed)][allowed].max(initial=0))
            if longest > bytes_left or token >= len(allowed) or not allowed[token]:
                break
            matcher.accept(token)
            taken.append(token)
            bytes_left -= int(self._lengths[token])
        return taken

    def _allowed(self, matcher: Matcher) -> npt.NDArray[np.bool_]:
        """[N], which tokens the grammar allows next. The model may have more or fewer tokens than its tokenizer."""
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        return bits[: len(self._lengths)].astype(bool)


def _whole_characters(data: bytes) -> str | None:
    """`data` as text without a cut-off character at its end; None where it is not UTF-8 (it may begin inside one)."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at_end = error.reason == "unexpected end of data"
        return data[: error.start].decode() if at_end else None
