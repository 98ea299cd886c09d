"""A compiled grammar whose texts repeat no undeclared key, and no element of an array with `uniqueItems`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .automaton import LazyAutomaton
from .compiled import CompiledGrammar
from .distinct import Distinct
from .errors import UnsatisfiableGrammarError
from .grammar import Grammar
from .rules import OPEN_KEY, UNIQUE_ARRAY
from .vocabulary import Vocabulary

_CACHED = 1 << 16
_FAR_BYTES = 1 << 10  # of an ending; few detours make it longer, and far fewer tokens spell it
_WEIGHED = 64
"""With a budget that is nearly used up, of the tokens whose endings must be searched one by one so many are tried."""


class DistinctGrammar(CompiledGrammar):
    """`CompiledGrammar` with `Distinct` beside its automaton; its states are combined ones."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, automaton: LazyAutomaton) -> None:
        """For `compile_grammar`, which is how to make one."""
        super().__init__(grammar, vocabulary, automaton)
        self._distinct = Distinct(automaton, vocabulary)
        self._texts: dict[int, bytes] = {}
        self._spellings: dict[bytes, tuple[int, ...] | None] = {}
        self._plain: dict[int, bool] = {}

    def advance(self, state: int, token_id: int) -> int | None:
        """The state after an ordinary token, or None if it is not allowed."""
        banned = self._distinct.banned(state)
        return None if banned and token_id in banned else self._distinct.advance(state, token_id)

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""
        return super().is_accepting(self._distinct.base(state))

    def is_final(self, state: int) -> bool:
        """Whether the text may end in `state` and nothing may follow."""
        return super().is_final(self._distinct.base(state))

    def mask(self, state: int) -> NDArray[np.uint32]:
        """As `CompiledGrammar.mask`."""
        bits = super().mask(self._distinct.base(state))
        banned = self._distinct.banned(state)
        return self._without(bits, banned) if banned else bits

    def mask_within(self, state: int, tokens_left: int) -> NDArray[np.uint32]:
        """As `CompiledGrammar.mask_within`, but of the tokens whose endings are dear to find only some are allowed."""
        fits = np.zeros(len(self.vocabulary.token_bytes), np.bool_)
        if tokens_left <= 0:
            return self._pack(fits, False)
        base = self._distinct.base(state)
        landing = self._landing(base)
        banned = self._distinct.banned(state)
        if banned:
            landing[list(banned)] = -1
        room = (tokens_left - 1) * self.vocabulary.longest
        for target in np.unique(landing[landing >= 0]).tolist():
            if self._automaton.ending_length(target) > room:  # and what repeats nothing is no shorter
                landing[landing == target] = -1
            elif self._is_plain(target):
                fits[landing == target] = self._ending_fits(target, tokens_left - 1)
                landing[landing == target] = -1
        candidates = np.flatnonzero(landing >= 0).tolist()
        for token_id in candidates[:_WEIGHED]:
            following = self._distinct.advance(state, token_id)
            ending = None if following is None else self._spelled(self._ending_text(following, is_any=True))
            fits[token_id] = ending is not None and len(ending) <= tokens_left - 1
        ending = self.shortest_ending(state)
        if 0 < len(ending) <= tokens_left:
            fits[ending[0]] = True
            self._keep_rest(state, ending)
        return self._pack(fits, self.is_accepting(state))

    def forced_bytes(self, state: int) -> bytes:
        """The bytes that every continuation of `state` begins with, as far as they are known."""
        return self._distinct.forced_bytes(state)

    def ending_bytes(self, state: int) -> int:
        """Bytes of the text that `shortest_ending` spells; of one that is far away, without its detours."""
        base = self._distinct.base(state)
        length = self._automaton.ending_length(base)
        return length if length > _FAR_BYTES or self._is_plain(base) else len(self._ending_text(state))

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        """Token ids of a short text that ends in an accepting state and repeats nothing, in as few tokens as possible.

        Raises:
            UnsatisfiableGrammarError: the vocabulary has no tokens that spell it.
        """
        base = self._distinct.base(state)
        if state not in self._texts and self._is_plain(base):
            return super().shortest_ending(base)  # the one by which `mask_within` judges
        tokens = self._spelled(self._ending_text(state))
        if tokens is None:
            raise UnsatisfiableGrammarError("this vocabulary has no tokens that spell the shortest ending")
        return tokens

    def _is_plain(self, base: int) -> bool:
        """Whether the automaton's own shortest ending from one of its states repeats nothing, whatever came before."""
        if self._automaton.may_flag(UNIQUE_ARRAY):
            return False
        way = []
        while base not in self._plain and not self._automaton.flags(base) & OPEN_KEY:
            way.append(base)
            if self._automaton.is_accepting(base):
                break
            base = self._automaton.ending_step(base)[1]
        known = self._plain[base] = self._plain.get(base, self._automaton.is_accepting(base))
        self._plain.update(dict.fromkeys(way, known))
        return known

    def _keep_rest(self, state: int, ending: tuple[int, ...]) -> None:
        """Let the ending after the first token of an `ending` be its rest, unless one of as few tokens is known."""
        following = self._distinct.advance(state, ending[0])
        if following is None:
            return
        if not self._is_plain(self._distinct.base(following)):
            self._ending_text(following, is_any=True)
        if len(self.shortest_ending(following)) >= len(ending):
            self._texts[following] = b"".join(self.vocabulary.token_bytes[token] or b"" for token in ending[1:])

    def _ending_text(self, state: int, *, is_any: bool = False) -> bytes:
        known = self._texts.get(state)
        if known is None:
            if len(self._texts) >= _CACHED:
                self._texts.clear()
            known = self._texts[state] = self._distinct.shortest_ending_bytes(state, is_any=is_any)
        return known

    def _spelled(self, text: bytes) -> tuple[int, ...] | None:
        """The fewest tokens that spell `text`, or None."""
        if text not in self._spellings:
            if len(self._spellings) >= _CACHED:
                self._spellings.clear()
            self._spellings[text] = self.vocabulary.fewest_tokens(text)
        return self._spellings[text]

    def _without(self, bits: NDArray[np.uint32], banned: frozenset[int]) -> NDArray[np.uint32]:
        fewer = bits.copy()
        for token_id in banned:
            fewer[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        fewer.setflags(write=False)
        return fewer


def needs_memory(automaton: LazyAutomaton) -> bool:
    """Whether texts of the grammar could repeat what must not come again."""
    return automaton.may_flag(OPEN_KEY | UNIQUE_ARRAY)
