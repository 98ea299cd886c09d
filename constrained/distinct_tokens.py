"""Tokens that may spell more than one key or element: the few that distinct.py tries one by one."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from .json_follow import EMPTY, QUOTE, Follower
from .rules import OPEN_KEY, UNIQUE_ARRAY
from .vocabulary import Vocabulary

_COMMA = ord(",")
_BRACKET = ord("[")


class SpanningTokens:
    """Tokens of one vocabulary by what they may span.

    Attributes:
        by_first: by first byte, tokens with a comma, which may finish one key or element and begin another.
        out_of_string: those of them with a quote before the comma: all that matter inside a string.
        string_after_string: tokens that may end one string and hold all of another after a comma.
        repeating_keys: tokens that may hold a key twice.
        repeating: those and tokens that may hold an element twice.
        opening: tokens that may open an array and go on.
        opening_out_of_string: those of them with a quote before the bracket.
        opening_after: by what comes before the bracket, the tokens that may open an array and go on.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.by_first: dict[int, list[int]] = {}
        self.out_of_string: list[int] = []
        self.string_after_string: list[int] = []
        self.repeating_keys: list[int] = []
        self.repeating: list[int] = []
        self.opening: list[int] = []
        self.opening_out_of_string: list[int] = []
        self.opening_after: dict[bytes, list[int]] = {}
        self._trie = vocabulary.trie
        self._first: list[int] = vocabulary.trie.first.tolist()  # a list is read faster
        self._children: dict[int, list[tuple[int, int]]] = {}
        for token_id in range(len(vocabulary.token_bytes)):
            token = vocabulary.bytes_of(token_id)
            if token is not None and (b"," in token or b"[" in token):
                self._sort_in(token, token_id)

    def children(self, node: int) -> list[tuple[int, int]]:
        """(byte, node) of the children of a node of the trie, -1 for its root."""
        known = self._children.get(node)
        if known is None:
            byte, end = self._trie.byte, self._trie.end
            known, here, last = [], node + 1, len(byte) if node < 0 else int(end[node])
            while here < last:
                known.append((int(byte[here]), here))
                here = int(end[here])
            self._children[node] = known
        return known

    def at(self, node: int) -> list[int]:
        """Tokens that end at a node of the trie."""
        first, last = self._first[node], self._first[node + 1]
        return self._trie.ids[first:last].tolist() if first < last else []

    def below(self, node: int) -> list[int]:
        """Tokens that end at a node of the trie or under it."""
        found: list[int] = self._trie.ids[self._first[node] : self._first[self._trie.end[node]]].tolist()
        return found

    def _sort_in(self, token: bytes, token_id: int) -> None:
        if _COMMA in token:
            self.by_first.setdefault(token[0], []).append(token_id)
        if 0 <= token.find(QUOTE) < token.rfind(_COMMA):
            self.out_of_string.append(token_id)
            if token[token.index(_COMMA, token.index(QUOTE)) :].count(QUOTE) >= 2:
                self.string_after_string.append(token_id)
        if b"[" in token[:-1]:
            self.opening.append(token_id)
            for index in range(len(token) - 1):
                if token[index] == _BRACKET:
                    self.opening_after.setdefault(token[:index], []).append(token_id)
            if 0 <= token.find(QUOTE) < token.rfind(b"["):
                self.opening_out_of_string.append(token_id)
        if _COMMA in token:
            repeats_key = _repeats(token, OPEN_KEY)
            if repeats_key:
                self.repeating_keys.append(token_id)
            if repeats_key or _repeats(token, UNIQUE_ARRAY):
                self.repeating.append(token_id)


def _repeats(token: bytes, flags: int) -> bool:
    """Whether `token` holds a duplicate if all that may be a key is, or all arrays have to differ in elements."""
    follower = Follower()
    for start, first in enumerate(token):
        if first not in b'"[':
            continue
        memory = EMPTY
        for byte in token[start:]:
            following = follower.follow(memory, byte, flags)
            if following is None:
                return True
            memory = following
    return False


_KNOWN: WeakKeyDictionary[Vocabulary, SpanningTokens] = WeakKeyDictionary()


def spanning_tokens(vocabulary: Vocabulary) -> SpanningTokens:
    """The spanning tokens of `vocabulary`, found once."""
    known = _KNOWN.get(vocabulary)
    if known is None:
        known = _KNOWN[vocabulary] = SpanningTokens(vocabulary)
    return known
