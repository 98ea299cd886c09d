"""Text that a grammar forces, as the tokens the model's own tokenizer would give for the whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from palmette.constrained import Matcher, TokenRejectedError

from .request import Request
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from palmette.constrained import TokenGrammar
    from palmette.constrained.vocabulary import Vocabulary

TAIL_TOKENS = 8
"""At most so many of the last output tokens are encoded again with the forced text, to see where it would be cut."""

TAIL_BYTES = 16
"""No more of them than it takes for so many bytes, and at least two: the same ends then come again more often."""

KEPT_BYTES = 16 << 20
"""About so much is kept of what was found out, of all grammars together; then it is found out anew."""

_ENTRY_BYTES = 400  # what an entry takes beside what is counted of it
_ANY_BYTE = bytes(range(0xFF))  # of UTF-8
_WHITE_SPACE = b" \t\n\r\v\f"
_BETWEEN = 0xFF  # a byte that is in no UTF-8


class _Forced(NamedTuple):
    """What a state of a grammar forces.

    Attributes:
        text: the bytes that all continuations begin with, without a character cut off at their end.
        following: bytes that may come next.
        open_at: places in `text` from which a token could reach past its end, so that it may be cut there instead.
        joined: ends of an output from which a token could reach past the end of `text`: it may not be cut behind them.
    """

    text: bytes
    following: bytes
    open_at: tuple[int, ...]
    joined: tuple[bytes, ...]


_NOTHING = _Forced(b"", b"", (), ())


class _Known(NamedTuple):
    """What was found out about a grammar: what its states force, and the tokens of that after the end of an output."""

    forced: dict[int, _Forced]
    tokens: dict[tuple[int, bytes], tuple[int, ...]]


class ForcedText:
    """Finds the tokens that a request's grammar forces next.

    The end of the output and the forced bytes are encoded as one text. The result counts only where one of its tokens
    begins just behind the output, and only as far as no legal continuation could change it. How the model spelled its
    output is not asked: after an unusual spelling, forced text is spelled as it would be after the usual one. The
    prompt is never encoded again, so forced text cannot fuse with its last token.

    What a continuation can change: the last token that begins in the forced text may reach past its end. It then begins
    at one of few places, and what is before that place is spelled as if nothing came after it. (Of byte pairs: no merge
    crosses it. Of a unigram model: the best way to that place.) So the tokens that are the same for the text cut off at
    each of those places, and for the whole of it, are those of every continuation.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._first_bytes = np.array([token[0] if token else -1 for token in tokenizer.token_bytes], dtype=np.int16)
        self._known: WeakKeyDictionary[TokenGrammar, _Known] = WeakKeyDictionary()
        self._kept_bytes = 0

    def __call__(self, request: Request) -> Sequence[int]:
        """The token ids forced after the request's output, in order; often none."""
        matcher = request.matcher
        if matcher is None:
            return ()
        known = self._known_of(matcher.grammar)
        forced = known.forced.get(matcher.state)
        if forced is None:
            forced = known.forced[matcher.state] = self._forced(matcher)
            self._kept_bytes += _ENTRY_BYTES + len(forced.text)
        if not forced.text:
            return ()
        tail = self._tail(request)
        tokens = known.tokens.get((matcher.state, tail))
        if tokens is None:
            tokens = known.tokens[matcher.state, tail] = self._tokens(matcher, tail, forced)
            self._kept_bytes += _ENTRY_BYTES + 8 * len(tokens)
        return tokens

    def _known_of(self, grammar: TokenGrammar) -> _Known:
        """What is known of a grammar; nothing is kept where hardly a state comes twice."""
        if self._kept_bytes > KEPT_BYTES:
            self._known.clear()
            self._kept_bytes = 0
        if not grammar.shares_states:
            return _Known({}, {})
        known = self._known.get(grammar)
        if known is None:
            known = self._known[grammar] = _Known({}, {})
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

    # -- what a state forces ------------------------------------------------------------------------------------------

    def _forced(self, matcher: Matcher) -> _Forced:
        forced = matcher.forced_bytes()
        text = _whole_characters(forced)
        if not text:
            return _NOTHING
        following = forced[len(text) : len(text) + 1] or self._following(matcher, text)
        open_at = tuple(_open_places(matcher.grammar.vocabulary, text, following))
        return _Forced(text, following, open_at, self._joined(text, following))

    def _following(self, matcher: Matcher, text: bytes) -> bytes:
        """Bytes that may come after `text`; all of them where its tokens do not lead there."""
        ahead = matcher.copy()
        try:
            for token in self._spelled(text) or (-1,):
                ahead.accept(token)
        except TokenRejectedError:
            return _ANY_BYTE
        bits = np.unpackbits(ahead.mask().view(np.uint8), bitorder="little")
        allowed = bits[: len(self._first_bytes)].astype(
            bool
        )  # a model may have more tokens than its tokenizer, or fewer
        first = np.unique(self._first_bytes[: len(allowed)][allowed])
        return bytes(first[first >= 0].tolist())

    def _joined(self, text: bytes, following: bytes) -> tuple[bytes, ...]:
        """What tokens begin with that go on with `text` and one of the bytes that may follow it."""
        tokens = self._long_tokens
        found = set()
        place = tokens.find(text) if following else -1
        while place >= 0:
            if tokens[place - 1] != _BETWEEN and tokens[place + len(text)] in following:
                found.add(tokens[tokens.rfind(_BETWEEN, 0, place) + 1 : place])
            place = tokens.find(text, place + 1)
        return tuple(found)

    @cached_property
    def _long_tokens(self) -> bytes:
        """All tokens of three bytes and more, each between two `_BETWEEN`."""
        long = (token for token in self._tokenizer.token_bytes if token and len(token) > 2)
        return b"\xff".join([b"", *long, b""])

    # -- its tokens after the end of an output ------------------------------------------------------------------------

    def _tokens(self, matcher: Matcher, tail: bytes, forced: _Forced) -> tuple[int, ...]:
        """Tokens of forced text after `tail` that no continuation changes, as far as the grammar allows them."""
        if tail.endswith(forced.joined):
            return ()
        ways = [self._cut(tail, forced.text[:end]) for end in (len(forced.text), *forced.open_at)]
        state, taken = matcher.state, []
        for token, *others in zip(*ways, strict=False):
            following = matcher.grammar.advance(state, token)
            if following is None or any(other != token for other in others):
                break
            taken.append(token)
            state = following
        return tuple(taken)

    def _cut(self, settled: bytes, text: bytes) -> tuple[int, ...]:
        """Tokens of `text` after `settled`; none where the tokenizer would not cut between the two."""
        ids = self._spelled(settled + text)
        token_bytes = self._tokenizer.token_bytes
        ends = [0, *itertools.accumulate(len(token_bytes[token] or b"") for token in ids)]
        return ids[ends.index(len(settled)) :] if len(settled) in ends else ()

    def _spelled(self, data: bytes) -> tuple[int, ...]:
        """Tokens of UTF-8; none where they spell other bytes, as a normalizer may have it."""
        try:
            ids = self._tokenizer.spell(data.decode())
        except UnicodeDecodeError:
            return ()
        token_bytes = self._tokenizer.token_bytes
        return tuple(ids) if b"".join(token_bytes[token] or b"" for token in ids) == data else ()


def _open_places(vocabulary: Vocabulary, text: bytes, following: bytes) -> Iterator[int]:
    """Places in `text` from which a token could reach past its end, each the beginning of a character."""
    for begin in range(max(0, len(text) - vocabulary.longest), len(text)):
        if _reaches_past(vocabulary, text[begin:], following):
            yield len(_whole_characters(text[:begin]))
    if following and len(text) > 1 and text[-1] in _WHITE_SPACE and text[-2] in _WHITE_SPACE:
        yield len(text) - 1  # most tokenizers leave the last white space to a word that follows


def _reaches_past(vocabulary: Vocabulary, data: bytes, following: bytes) -> bool:
    """Whether some token begins with `data` and one of the bytes that may follow it."""
    if len(data) >= vocabulary.longest:
        return False
    node = -1
    for byte in data:
        node = vocabulary.child(node, byte)
        if node < 0:
            return False
    return any(vocabulary.child(node, byte) >= 0 for byte in following)


def _from_character(data: bytes) -> bytes:
    """`data` from its first whole character on: it may begin inside one."""
    first = 0
    while first < min(3, len(data)) and data[first] & 0xC0 == 0x80:
        first += 1
    return data[first:]


def _whole_characters(data: bytes) -> bytes:
    """`data` without a character that is cut off at its end; it may begin inside one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the beginning of the last character: 1 to 4 bytes by its first bits
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= length else data[:-back]
    return data
