"""Masks of real vocabularies by brute force: every token's bytes, one after the other, on a table of derivatives."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tests.constrained.reference import Derivatives

from palmette.constrained import Grammar, Vocabulary
from palmette.constrained.compiler import lower
from palmette.constrained.limits import CompileLimits, Deadline
from palmette.constrained.rules import (
    NOTHING,
    ByteClass,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
)
from palmette.constrained.simplify import simplify

_LIMITS = CompileLimits()
_UNKNOWN, _DEAD = -2, -1


class TokenMatrix:
    """The ordinary tokens of a vocabulary as a matrix, for `ByteTable`. Built once a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.ids = np.array([i for i in range(vocabulary.size) if vocabulary.bytes_of(i)], np.int64)
        tokens = [vocabulary.token_bytes[i] or b"" for i in self.ids.tolist()]
        self.lengths = np.array([len(token) for token in tokens])
        self.bytes = np.zeros((max(map(len, tokens)), len(tokens)), np.uint8)
        for place, token in enumerate(tokens):
            self.bytes[: len(token), place] = np.frombuffer(token, np.uint8)

    @cached_property
    def single_bytes(self) -> dict[int, int]:
        """Bytes that are tokens of their own, and the token."""
        return {int(self.bytes[0, i]): int(self.ids[i]) for i in np.flatnonzero(self.lengths == 1)}


class ByteTable:
    """A table of derivatives, filled where it is read. States are numbers; `start` is the first."""

    def __init__(self, grammar: Grammar, tokens: TokenMatrix) -> None:
        self._tokens = tokens
        rules = simplify(lower(grammar, _LIMITS, Deadline(_LIMITS)), tokens.vocabulary.alphabet)
        self._derivatives = Derivatives(rules)
        self._alike = _alike_bytes(rules)
        self._nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._table = np.empty((0, 256), np.int64)
        self.start = self._number(self._derivatives.start)

    def accepts(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._derivatives.accepts(self._nodes[state])

    def after(self, state: int, token: bytes) -> int:
        """The state after a token, -1 where it may not come."""
        for byte in token:
            self._fill(np.array([state]), np.array([byte]))
            state = int(self._table[state, byte])
            if state == _DEAD:
                break
        return state

    def allowed(self, state: int) -> NDArray[np.bool_]:
        """[size] which tokens may follow, end tokens where the text may end."""
        tokens = self._tokens
        alive, states = np.arange(len(tokens.ids)), np.full(len(tokens.ids), state)
        allowed = np.zeros(tokens.vocabulary.size, np.bool_)
        for column, spelled in enumerate(tokens.bytes):
            self._fill(states, spelled[alive])
            states = self._table[states, spelled[alive]]
            alive, states = alive[states != _DEAD], states[states != _DEAD]
            ended = tokens.lengths[alive] == column + 1
            allowed[tokens.ids[alive[ended]]] = True
            alive, states = alive[~ended], states[~ended]
        if self.accepts(state):
            allowed[list(tokens.vocabulary.end_ids)] = True
        return allowed

    def _fill(self, states: NDArray[np.int64], spelled: NDArray[np.int64] | NDArray[np.uint8]) -> None:
        missing = self._table[states, spelled] == _UNKNOWN
        for key in np.unique(states[missing] * 256 + spelled[missing]).tolist():
            state, byte = divmod(key, 256)
            if self._table[state, byte] == _UNKNOWN:
                after = self._number(self._derivatives.after(self._nodes[state], byte))
                self._table[state, self._alike[byte]] = after

    def _number(self, node: Node) -> int:
        if node == NOTHING:
            return _DEAD
        if node not in self._numbers:
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
            if len(self._nodes) > len(self._table):
                more = np.full((len(self._table) + 64, 256), _UNKNOWN)
                self._table = np.concatenate([self._table, more])
        return self._numbers[node]


def _alike_bytes(rules: Rules) -> list[NDArray[np.int64]]:
    """For every byte, the bytes that no part of the rules tells apart from it."""
    masks = {mask for rule in rules.rules.values() for mask in _masks(rule)}
    kinds = [tuple(mask >> byte & 1 for mask in masks) for byte in range(256)]
    return [np.array([other for other in range(256) if kinds[other] == kind]) for kind in kinds]


def _masks(rule: Node) -> set[int]:
    """The sets of bytes that a rule speaks of."""
    waiting, found = [rule], set()
    while waiting:
        node = waiting.pop()
        match node:
            case Literal(value):
                found |= {1 << byte for byte in value}
            case ByteClass(mask):
                found.add(mask)
            case Sequence(nodes) | Choice(nodes):
                waiting.extend(nodes)
            case Repeat(body, _, _) | Flagged(body, _):
                waiting.append(body)
            case Except(body, words):
                found |= {1 << byte for word in words for byte in word}
                waiting.append(body)
            case Graph():
                waiting.extend(node.bodies)
            case RuleRef(_):
                pass
    return found
