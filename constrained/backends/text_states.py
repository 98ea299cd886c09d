"""States for engines that have none to show, only matchers that move with one text."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from palmette.constrained.errors import UnsatisfiableGrammarError, UnsupportedGrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.matcher import Matcher
from palmette.constrained.vocabulary import Vocabulary

MATCHERS_KEPT = 512
"""A few for each of 256 running requests. One that was dropped is made again from the tokens of its text."""

MASKS_KEPT = 256
STEPS_KEPT = 4096

Key = TypeVar("Key")
Value = TypeVar("Value")


class EngineMatcher(Protocol):
    """A matcher of another engine at one place of a text."""

    def fork(self) -> Self:
        """An independent matcher at the same place."""

    def accept(self, token_id: int) -> bool:
        """Move on by an ordinary token. A matcher that answers False is thrown away.

        Raises:
            GrammarError: the engine met one of its limits.
        """

    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def allowed(self) -> NDArray[np.uint32]:
        """Bits of the tokens that may follow, of at least as many words as a mask has. Bits of others are ignored."""

    def forced_bytes(self) -> bytes:
        """What every continuation begins with, as far as the engine knows."""


class TextState(int):
    """A number that no other state of its grammar has, and the tokens that led to it."""

    before: TextState | None
    token_id: int

    def __new__(cls, number: int, before: TextState | None = None, token_id: int = -1) -> TextState:
        state = super().__new__(cls, number)
        state.before = before
        state.token_id = token_id
        return state


class TextStateGrammar:
    """A grammar of another engine with the methods of `TokenGrammar`: one state for each sequence of tokens.

    A state holds its own tokens, so it lives as long as a matcher that was in it, and no longer. Endings are not known.
    """

    always_completes = False
    shares_states = False

    def __init__(self, backend: str, grammar: Grammar, vocabulary: Vocabulary, first: EngineMatcher) -> None:
        """
        Args:
            backend: named in errors.
            first: a matcher at the start of the text; it stays there.
        """
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.start: int = TextState(0)
        self._backend = backend
        self._first = first
        self._made = 1
        self._ordinary = ordinary_tokens(vocabulary)
        self._ends = end_tokens(vocabulary)
        self._matchers: OrderedDict[int, EngineMatcher] = OrderedDict()
        self._masks: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._steps: OrderedDict[tuple[int, int], TextState] = OrderedDict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._backend}, {self.grammar!r})"

    def matcher(self) -> Matcher:
        """A new matcher at the start."""
        return Matcher(self)

    def advance(self, state: int, token_id: int) -> int | None:
        """See `TokenGrammar`."""
        if self.vocabulary.bytes_of(token_id) is None:
            return None
        known = recall(self._steps, (state, token_id))
        if known is not None:
            return known
        matcher = self._matcher(state).fork()
        if not matcher.accept(token_id):
            return None
        following = TextState(self._made, _checked(state), token_id)
        self._made += 1
        keep(self._matchers, int(following), matcher, MATCHERS_KEPT)
        keep(self._steps, (int(state), token_id), following, STEPS_KEPT)
        return following

    def is_accepting(self, state: int) -> bool:
        """See `TokenGrammar`."""
        return self._matcher(state).is_accepting()

    def is_final(self, state: int) -> bool:
        """See `TokenGrammar`."""
        return self.is_accepting(state) and not self._allowed(state).any()

    def mask(self, state: int) -> NDArray[np.uint32]:
        """See `TokenGrammar`.

        Raises:
            UnsatisfiableGrammarError: the engine led the text where nothing may follow, not even its end.
        """
        allowed = self._allowed(state)
        if self.is_accepting(state):
            allowed = allowed | self._ends
            allowed.setflags(write=False)
        elif not allowed.any():
            raise UnsatisfiableGrammarError(f"{self._backend} allows no token here, and not the end of the text either")
        return allowed

    def mask_within(self, state: int, tokens_left: int) -> NDArray[np.uint32]:
        """Not known.

        Raises:
            UnsupportedGrammarError: always.
        """
        raise self._no_endings()

    def forced_bytes(self, state: int) -> bytes:
        """See `TokenGrammar`."""
        matcher = self._matcher(state)
        return b"" if matcher.is_accepting() else matcher.forced_bytes()

    def ending_bytes(self, state: int) -> int:
        """Not known. Raises `UnsupportedGrammarError`."""
        raise self._no_endings()

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        """Not known. Raises `UnsupportedGrammarError`."""
        raise self._no_endings()

    def _no_endings(self) -> UnsupportedGrammarError:
        return UnsupportedGrammarError(f"{self._backend} does not know how far the end of a text is; native does")

    def _allowed(self, state: int) -> NDArray[np.uint32]:
        """Bits of the ordinary tokens that may follow."""
        known = recall(self._masks, int(state))
        if known is None:
            known = self._matcher(state).allowed()[: self.vocabulary.words] & self._ordinary
            known.setflags(write=False)
            keep(self._masks, int(state), known, MASKS_KEPT)
        return known

    def _matcher(self, state: int) -> EngineMatcher:
        """The engine's matcher in `state`, made again from the last one known on the way there."""
        known = recall(self._matchers, int(state))
        if known is not None:
            return known
        here: TextState | None = _checked(state)
        tokens = []
        while here is not None and here.before is not None and int(here) not in self._matchers:
            tokens.append(here.token_id)
            here = here.before
        matcher = self._first if here is None else self._matchers.get(int(here), self._first)
        if not tokens:
            return matcher
        matcher = matcher.fork()
        for token_id in reversed(tokens):
            taken = matcher.accept(token_id)
            assert taken, (self, token_id)
        keep(self._matchers, int(state), matcher, MATCHERS_KEPT)
        return matcher


def _checked(state: int) -> TextState:
    if not isinstance(state, TextState):
        raise ValueError(f"{state!r} is no state that this grammar has given")
    return state


def keep(cache: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Put `value` into a cache, and the least recently used value out of it where there are more than `most`."""
    cache[key] = value
    if len(cache) > most:
        cache.popitem(last=False)


def recall(cache: OrderedDict[Key, Value], key: Key) -> Value | None:
    """The value kept under `key`, which counts as used now."""
    value = cache.get(key)
    if value is not None:
        cache.move_to_end(key)
    return value


def ordinary_tokens(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """[words] uint32, the bits of all tokens that write something."""
    return packed(vocabulary, [i for i in range(len(vocabulary.token_bytes)) if vocabulary.bytes_of(i) is not None])


def end_tokens(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """[words] uint32, the bits of all end tokens."""
    return packed(vocabulary, sorted(vocabulary.end_ids))


def packed(vocabulary: Vocabulary, token_ids: list[int] | NDArray[np.int64]) -> NDArray[np.uint32]:
    """[words] uint32, the bits of `token_ids`."""
    bits = np.zeros(vocabulary.words * 32, np.bool_)
    bits[token_ids] = True
    words: NDArray[np.uint32] = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
    return words


def plain_tokens(vocabulary: Vocabulary) -> list[bytes]:
    """What each id below `size` writes, for an engine that is told nothing of ends: empty for all that is special."""
    return [vocabulary.bytes_of(i) or b"" for i in range(vocabulary.size)]
