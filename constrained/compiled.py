"""A compiled grammar: which tokens may follow, in every state that a text can be in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from .automaton import DEAD, LazyAutomaton
from .errors import UnsatisfiableGrammarError
from .grammar import Grammar
from .matcher import Matcher
from .vocabulary import Vocabulary


class CompiledGrammar:
    """A grammar over one vocabulary. States are small ints, made as they are met; `start` is the first.

    One thread at a time may use it; other threads may compile other grammars meanwhile. Any method may raise
    `GrammarLimitError` when the grammar meets more states than its `CompileLimits` allow.

    States take memory as they are met, within `CompileLimits.states` and `memory_bytes`; masks are kept by
    `Vocabulary.mask_cache`.
    """

    always_completes = True
    shares_states = True

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, automaton: LazyAutomaton) -> None:
        """For `compile_grammar`, which is how to make one."""
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.start = automaton.start
        self._automaton = automaton
        self._masks: dict[int, ref[NDArray[np.uint32]]] = {}
        self._endings: dict[int, _Ending] = {}
        self._path = np.zeros(vocabulary.longest + 1, np.int32)

    def __repr__(self) -> str:
        return f"CompiledGrammar({self.grammar!r}, {len(self._automaton)} states so far)"

    @property
    def num_states(self) -> int:
        """States made so far."""
        return len(self._automaton)

    def matcher(self) -> Matcher:
        """A new matcher at the start."""
        return Matcher(self)

    def advance(self, state: int, token_id: int) -> int | None:
        """The state after an ordinary token, or None if it is not allowed. End tokens are not advanced here."""
        token = self.vocabulary.bytes_of(token_id)
        if token is None:
            return None
        for byte in token:
            state = self._automaton.step(state, byte)
            if state == DEAD:
                return None
        return state

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""
        return self._automaton.is_accepting(state)

    def is_final(self, state: int) -> bool:
        """Whether the text may end in `state` and nothing may follow."""
        return self._automaton.is_accepting(state) and not self._automaton.next_bytes(state)

    def mask(self, state: int) -> NDArray[np.uint32]:
        """[words] uint32, read-only: bit ``i % 32`` of word ``i // 32`` says whether token i is allowed in `state`.

        End tokens are allowed exactly where the state is accepting.
        """
        kept = self._masks.get(state)
        known = kept() if kept is not None else None
        cache = self.vocabulary.mask_cache
        if known is None:
            near = self._automaton.near(state, self.vocabulary.longest + 1)
            known = CompiledGrammar.mask(self, near) if near != state else cache.keep(self._make_mask(state))
            self._masks[state] = ref(known)
        else:
            cache.touch(known)
        return known

    def mask_within(self, state: int, tokens_left: int) -> NDArray[np.uint32]:
        """The tokens of `mask(state)` after which a known ending fits in the `tokens_left` tokens, the token included.

        If ``len(shortest_ending(state)) <= tokens_left``, following these masks always ends in an accepting state in
        time: the first token of the shortest ending is allowed, and leads where the rest of it is the shortest ending.
        All zero where nothing fits.
        """
        if tokens_left <= 0:
            return self._pack(np.zeros(len(self.vocabulary.token_bytes), np.bool_), False)
        landing = self._landing(state)
        fits = np.zeros(len(self._automaton) + 1, np.bool_)  # the last entry is for DEAD, as landing -1
        reached = np.unique(landing[landing >= 0]).tolist()
        for target in reached:
            fits[target] = self._ending_fits(target, tokens_left - 1)
        return self._pack(fits[landing], self.is_accepting(state))

    def forced_bytes(self, state: int) -> bytes:
        """The bytes that every continuation of `state` begins with; empty if the text may end here."""
        forced = bytearray()
        while not self._automaton.is_accepting(state):
            mask = self._automaton.next_bytes(state)
            if mask.bit_count() != 1:
                break
            byte = mask.bit_length() - 1
            forced.append(byte)
            state = self._automaton.step(state, byte)
        return bytes(forced)

    def ending_bytes(self, state: int) -> int:
        """Bytes of the text that `shortest_ending` spells, known without a walk to its end."""
        return self._automaton.ending_length(state)

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        """Token ids of a byte-shortest text that ends in an accepting state, spelled in as few tokens as possible.

        Empty if `state` is accepting.

        Raises:
            UnsatisfiableGrammarError: the vocabulary has no tokens that spell those bytes. It never happens with a
                vocabulary that has a token for every byte.
        """
        ending = self._ending(state)
        tokens = []
        while ending.count:
            if math.isinf(ending.count):
                raise UnsatisfiableGrammarError("this vocabulary has no tokens that spell the shortest ending")
            tokens.append(ending.token_id)
            ending = self._ending(ending.state)
        return tuple(tokens)

    def _pack(self, allowed: NDArray[np.bool_], accepting: bool) -> NDArray[np.uint32]:
        bits = np.zeros(self.vocabulary.words * 32, np.bool_)
        bits[: len(allowed)] = allowed
        if accepting:
            bits[list(self.vocabulary.end_ids)] = True
        packed: NDArray[np.uint32] = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
        packed.setflags(write=False)
        return packed

    def _make_mask(self, state: int) -> NDArray[np.uint32]:
        vocabulary = self.vocabulary
        cover = self._automaton.cover(state)
        trie = vocabulary.trie
        bits: NDArray[np.uint32] | None = None
        if cover:
            for each in vocabulary.slices:
                if cover >> 8 * each.lane & 255 >= each.characters:
                    bits, trie = each.bits.copy(), each.rest
                    break
        if bits is None:
            bits = np.zeros(vocabulary.words, np.uint32)
        self._automaton.walk_mask(trie, state, self._path, bits)
        if self._automaton.is_accepting(state):
            bits |= vocabulary.end_bits
        return bits

    def _landing(self, state: int) -> NDArray[np.int32]:
        """[tokens] the state after each token, -1 where it is not allowed."""
        landing = np.full(len(self.vocabulary.token_bytes), -1, np.int32)
        self._automaton.walk_landing(self.vocabulary.trie, state, self._path, landing)
        return landing

    def _ending_fits(self, state: int, tokens: int) -> bool:
        # Without this bound a far ending would be walked byte by byte only to learn that it is far.
        if self._automaton.ending_length(state) > tokens * self.vocabulary.longest:
            return False
        return self._ending(state).count <= tokens

    def _ending(self, state: int) -> _Ending:
        known = self._endings.get(state)
        return known if known is not None else self._make_endings(state)

    def _make_endings(self, state: int) -> _Ending:
        """Endings of `state` and of every state on its shortest way to an end, last first."""
        way = [state]
        while not self._automaton.is_accepting(way[-1]) and way[-1] not in self._endings:
            way.append(self._automaton.ending_step(way[-1])[1])
        for here in reversed(way):
            if here not in self._endings:
                self._endings[here] = self._fewest_tokens(here)
        return self._endings[state]

    def _fewest_tokens(self, state: int) -> _Ending:
        """Best first token of the ending of `state`, given the endings of all later states on its way."""
        if self._automaton.is_accepting(state):
            return _Ending(0, -1, state)
        best = _Ending(math.inf, -1, state)
        node, here = -1, state
        while not self._automaton.is_accepting(here):
            byte, here = self._automaton.ending_step(here)
            node = self.vocabulary.child(node, byte)
            if node < 0:
                break
            token_id = self.vocabulary.token_at(node)
            if token_id is not None and self._endings[here].count + 1 <= best.count:
                best = _Ending(self._endings[here].count + 1, token_id, here)
        return best


@dataclass(frozen=True, slots=True)
class _Ending:
    """Tokens of a shortest ending: how many (infinity: it cannot be spelled), the first, and the state after it."""

    count: float
    token_id: int
    state: int
