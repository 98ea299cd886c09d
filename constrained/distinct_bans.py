"""Tokens that must not come in a place: they would complete a duplicate, or leave nothing but duplicates.

Nearly all tokens of a vocabulary need no look. Those that do are the ways of the trie along what must not come again,
and the few tokens that may span several keys or elements (distinct_tokens.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .distinct_endings import DEAD, ByteAutomaton, Endings
from .distinct_tokens import spanning_tokens
from .json_equality import stem
from .json_follow import (
    BACKSLASH,
    BETWEEN,
    EMPTY,
    KEY,
    KEY_ESCAPE,
    QUOTE,
    SCALAR,
    STRING,
    Frame,
    Memory,
)
from .json_watch import bytes_to_watch, may_repeat, words_to_watch
from .rules import UNIQUE_ARRAY
from .vocabulary import Vocabulary

_CACHED: Final = 1 << 14

_Stop = tuple[int, int, Memory]
"""A node of the trie, and the place there."""


class Bans:
    """Finds what must not come in places of one automaton and vocabulary.

    Attributes:
        may_ban_without_memory: whether anything may be banned where the text so far obliges to nothing.
    """

    def __init__(self, automaton: ByteAutomaton, vocabulary: Vocabulary, endings: Endings) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._endings = endings
        self._tokens = tokens = spanning_tokens(vocabulary)
        self._has_arrays = automaton.may_flag(UNIQUE_ARRAY)
        self._repeating = tokens.repeating if self._has_arrays else tokens.repeating_keys
        self.may_ban_without_memory = bool(self._repeating or (self._has_arrays and tokens.opening))
        self._different: dict[tuple[int, int, Frame | None], frozenset[int] | None] = {}

    def run(self, base: int, memory: Memory, text: bytes) -> tuple[int, Memory | None] | None:
        """Place after `text`; None where the automaton does not allow it, with no memory where it repeats something."""
        states = []
        for byte in text:
            states.append(base)
            base = self._automaton.step(base, byte)
            if base == DEAD:
                return None
        for here, byte in zip(states, text, strict=True):
            if memory is EMPTY and byte not in b'"[':
                continue
            following = self._endings.follow(here, memory, byte)
            if following is None:
                return base, None
            memory = following
        return base, memory

    def find(self, base: int, memory: Memory) -> frozenset[int] | None:
        """The tokens that must not come, or None."""
        if memory.frame is None:
            return self._find_alone(base, memory)
        is_fragile, may = self._endings.is_fragile(base, memory), may_repeat(memory)
        if is_fragile or may or self._tokens.string_after_string or not _is_plain_text(memory):
            return self._find(base, memory, is_fragile=is_fragile, may=may)
        # A string that is different already: what it says cannot matter within one token.
        key = base, memory.mode, memory.frame
        if key not in self._different:
            if len(self._different) >= _CACHED:
                self._different.clear()
            self._different[key] = self._find(base, memory, is_fragile=False, may=False)
        return self._different[key]

    def _find(self, base: int, memory: Memory, *, is_fragile: bool, may: bool) -> frozenset[int] | None:
        banned = {token_id for token_id in self._to_try(base, memory) if not self._may_come(base, memory, token_id)}
        if is_fragile or may:
            self._walk(base, memory, is_fragile, banned)
        return frozenset(banned) or None

    def _find_alone(self, base: int, memory: Memory) -> frozenset[int] | None:
        """What must not come where no key or element is finished yet: tokens that hold two, or open an array."""
        to_try = set(self._repeating)
        if memory.mode != BETWEEN:
            to_try.update(self._tokens.string_after_string)
        if self._has_arrays:
            for before, opening in self._tokens.opening_after.items():
                if self._opens_array(base, before):
                    to_try.update(opening)
        return frozenset(token_id for token_id in to_try if not self._may_come(base, memory, token_id)) or None

    def _opens_array(self, base: int, before: bytes) -> bool:
        """Whether a bracket after the bytes `before` may open an array whose elements must differ."""
        for byte in before:
            base = self._automaton.step(base, byte)
            if base == DEAD:
                return False
        return bool(self._automaton.flags(base) & UNIQUE_ARRAY)

    def _to_try(self, base: int, memory: Memory) -> Iterator[int]:
        """Tokens that may finish something and then repeat something else, or leave no choice for it."""
        first = self._automaton.next_bytes(base)
        is_outside = memory.mode in (BETWEEN, SCALAR)
        opening: list[int] = []
        if self._has_arrays:
            opening = self._tokens.opening if is_outside else self._tokens.opening_out_of_string
        for token_id in (*self._repeating, *opening):
            token = self._vocabulary.token_bytes[token_id]
            if token and first >> token[0] & 1:
                yield token_id
        if is_outside:
            for byte, tokens in self._tokens.by_first.items():
                if first >> byte & 1:
                    yield from tokens
        else:
            yield from self._tokens.out_of_string

    def _may_come(self, base: int, memory: Memory, token_id: int) -> bool:
        token = self._vocabulary.token_bytes[token_id]
        after = self.run(base, memory, token) if token else None
        return after is None or (after[1] is not None and self._endings.is_alive(after[0], after[1]))

    def _walk(self, base: int, memory: Memory, everything: bool, banned: set[int]) -> None:
        """Add the tokens that must not come along all ways on which something may repeat, or along all ways."""
        todo = [(-1, base, memory)]
        while todo:
            node, here, now = todo.pop()
            if not everything and _is_plain_text(now):
                self._walk_words(node, here, now, banned, todo)
                continue
            watched = None if everything else bytes_to_watch(now)
            allowed = self._automaton.next_bytes(here)
            for byte, child in self._children(node, watched):
                if allowed >> byte & 1:
                    self._enter(child, here, now, byte, banned, todo, everything=everything)

    def _enter(
        self, child: int, base: int, memory: Memory, byte: int, banned: set[int], todo: list[_Stop], *, everything: bool
    ) -> None:
        """Go along `byte` to a node of the trie; what is to be walked from there comes into `todo`."""
        then = self._endings.follow(base, memory, byte)
        if then is None:
            banned.update(self._tokens.below(child))
            return
        after = self._automaton.step(base, byte)
        tokens = self._tokens.at(child)
        if tokens and not self._endings.is_alive(after, then):
            banned.update(tokens)
        if everything or may_repeat(then):
            todo.append((child, after, then))

    def _walk_words(self, node: int, base: int, memory: Memory, banned: set[int], todo: list[_Stop]) -> None:
        """Walk on from inside a key or string along the spellings that it may repeat; their ends come into `todo`."""
        words = words_to_watch(memory)
        left: set[int] = set()
        if not all(self._walk_word(node, base, memory, word, len(words), left, banned, todo) for word in words):
            self._walk_together(node, base, memory, words, banned, todo)

    def _walk_word(
        self,
        node: int,
        base: int,
        memory: Memory,
        word: bytes,
        words: int,
        left: set[int],
        banned: set[int],
        todo: list[_Stop],
    ) -> bool:
        """Walk along one of so many words; False where others than they may not come everywhere on the way.

        Escapes are followed from nodes that are not in `left` yet.
        """
        child_of, step, has_room = self._vocabulary.child, self._automaton.step, self._endings.has_room
        is_string = memory.mode == STRING
        for size in range(len(memory.text), len(word)):
            byte = word[size]
            if is_string:
                if node not in left:
                    left.add(node)
                    self._leave(node, base, memory._replace(text=word[:size]), BACKSLASH, banned, todo)
                if byte in b'"\\':  # which only an escape can spell
                    return True
            node = child_of(node, byte)
            if node < 0:
                return True
            base = step(base, byte)
            if base == DEAD:
                return True
            if byte == BACKSLASH or not has_room(base, memory, words):
                return False
        now = memory._replace(text=word)
        if is_string:
            self._leave(node, base, now, BACKSLASH, banned, todo)
        self._leave(node, base, now, QUOTE, banned, todo)
        return True

    def _leave(self, node: int, base: int, memory: Memory, byte: int, banned: set[int], todo: list[_Stop]) -> None:
        """Go from a word along the quote that ends it, or a backslash."""
        child = self._vocabulary.child(node, byte)
        if child >= 0 and self._automaton.next_bytes(base) >> byte & 1:
            self._enter(child, base, memory, byte, banned, todo, everything=False)

    def _walk_together(
        self, node: int, base: int, memory: Memory, words: list[bytes], banned: set[int], todo: list[_Stop]
    ) -> None:
        """Walk along all words at once, looking at each end of a token whether others may still come."""
        step, child_of = self._automaton.step, self._vocabulary.child
        stack = [(node, base, len(memory.text), words)]
        while stack:
            node, base, size, words = stack.pop()
            now = _part_of(memory, words[0][:size])
            tokens = self._tokens.at(node) if size > len(memory.text) else None
            if tokens and not self._endings.is_alive(base, now):
                banned.update(tokens)
            following: dict[int, list[bytes]] = {}
            for word in words:
                if size == len(word):
                    self._leave(node, base, now, QUOTE, banned, todo)
                else:
                    following.setdefault(word[size], []).append(word)
            if memory.mode == STRING:
                following.pop(QUOTE, None)  # which only an escape can spell
                following.pop(BACKSLASH, None)
                self._leave(node, base, now, BACKSLASH, banned, todo)
            allowed = self._automaton.next_bytes(base)
            for byte, group in following.items():
                child = child_of(node, byte)
                if child >= 0 and allowed >> byte & 1:
                    stack.append((child, step(base, byte), size + 1, group))

    def _children(self, node: int, watched: frozenset[int] | None) -> list[tuple[int, int]]:
        """(byte, child) of the trie's children of `node`, those of the `watched` bytes only."""
        if watched is None:
            return self._tokens.children(node)
        child = self._vocabulary.child
        return [(byte, found) for byte in watched if (found := child(node, byte)) >= 0]


def _part_of(memory: Memory, text: bytes) -> Memory:
    """`memory` further on, at `text`, which in a key may end inside an escape."""
    escaped = memory.mode == KEY and (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
    return memory._replace(mode=KEY_ESCAPE if escaped else memory.mode, text=text)


def _is_plain_text(memory: Memory) -> bool:
    """Whether it is inside a key or a string that is kept, and inside no escape."""
    return memory.mode in (KEY, STRING) and not memory.escape and stem(memory.text) == memory.text
