"""Text that a grammar forces, as the tokens the model's own tokenizer would give for the whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from palmette.constrained import Matcher

from .request import Request
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from palmette.constrained import TokenGrammar

TAIL_TOKENS = 8
"""At most so many of the last output tokens are encoded again with the forced text, to see where it would be cut."""

TAIL_BYTES = 16
"""No more of them than it takes for so many bytes, and at least two: the same ends then come again more often."""

KNOWN_STATES = 1 << 14
"""Of one grammar, answers of so many states are kept."""


class _Known(NamedTuple):
    """What was found out about a grammar's states: the bytes that they force, tokens of these, those of them taken."""

    forced: dict[int, bytes]
    spelled: dict[tuple[int, bytes], tuple[int, ...]]
    taken: dict[tuple[int, tuple[int, ...]], list[int]]


class ForcedText:
    """Finds the tokens that a request's grammar forces next.

    The end of the output and the forced bytes are encoded as one text. The result counts only where one of its tokens
    begins just behind the output, and only up to the first token that a legal continuation could straddle: a longer
    token that the grammar also allows there is left for the model to choose. How the model spelled its output is not
    asked: after an unusual spelling, forced text is spelled as it would be after the usual one. The prompt is never
    encoded again, so forced text cannot fuse with its last token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lengths = np.array([len(token or b"") for token in tokenizer.token_bytes], dtype=np.int32)
        self._known: WeakKeyDictionary[TokenGrammar, _Known] = WeakKeyDictionary()

    def __call__(self, request: Request) -> list[int]:
        """The token ids forced after the request's output, in order; often none."""
        matcher = request.matcher
        if matcher is None or matcher.finished:
            return []
        known = self._known_of(matcher.grammar)
        forced = known.forced.get(matcher.state)
        if forced is None:
            forced = known.forced[matcher.state] = matcher.forced_bytes()
        if not forced:
            return []
        tail = self._tail(request)
        encoded = known.spelled.get((matcher.state, tail))
        if encoded is None:
            encoded = known.spelled[matcher.state, tail] = self._encode(tail, forced)
        if not encoded:
            return []
        key = matcher.state, encoded
        taken = known.taken.get(key)
        if taken is None:
            taken = known.taken[key] = self._not_straddled(matcher.copy(), encoded, len(forced))
        return taken.copy()

    def _known_of(self, grammar: TokenGrammar) -> _Known:
        """What is known of a grammar; nothing is kept where hardly a state comes twice."""
        known = self._known.get(grammar)
        if known is None or max(len(known.forced), len(known.spelled)) > KNOWN_STATES:
            known = _Known({}, {}, {})
            if grammar.shares_states:
                self._known[grammar] = known
        return known

    def _tail(self, request: Request) -> bytes:
        """The end of a request's output."""
        token_bytes = self._tokenizer.token_bytes
        last = request.output_after(max(0, request.num_output - TAIL_TOKENS))
        tail = b""
        for count, token in enumerate(reversed(last)):
            if count >= 2 and len(tail) >= TAIL_BYTES:
                break
            tail = (token_bytes[token] or b"") + tail
        return _from_character(tail)

    def _encode(self, settled: bytes, forced: bytes) -> tuple[int, ...]:
        """Tokens of `forced` after `settled`; none where the tokenizer would not cut the text between the two."""
        text = _whole_characters(settled + forced)
        if text is None:
            return ()
        ids = self._tokenizer.spell(text)
        token_bytes = self._tokenizer.token_bytes
        spelled = [token_bytes[token] or b"" for token in ids]
        if b"".join(spelled) != text.encode():  # a normalizer may have changed the text
            return ()
        ends = [0, *itertools.accumulate(map(len, spelled))]
        return tuple(ids[ends.index(len(settled)) :]) if len(settled) in ends else ()

    def _not_straddled(self, matcher: Matcher, tokens: tuple[int, ...], bytes_left: int) -> list[int]:
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


def _from_character(data: bytes) -> bytes:
    """`data` from its first whole character on: it may begin inside one."""
    first = 0
    while first < min(3, len(data)) and data[first] & 0xC0 == 0x80:
        first += 1
    return data[first:]


def _whole_characters(data: bytes) -> str | None:
    """`data` as text without a cut-off character at its end; None where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at_end = error.reason == "unexpected end of data"
        return data[: error.start].decode() if at_end else None
