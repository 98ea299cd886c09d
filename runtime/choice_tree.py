"""Texts that begin alike as one little tree of tokens, in which what they share stands once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np

from .batch import Int32Array
from .errors import EngineError


class TreeShape(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of a score request hang together, and what they score; int32 arrays as bytes.

    The request's tokens are *limbs*, one behind the other. The first limb begins at the first token of all texts. Every
    other one leaves the path of the limb before it: the tokens from the first on that lead to that limb's end.

    Attributes:
        limbs: [L, 2], of each limb the index of its first token, and the place of that token in its text.
        scores: [K, 2], the index of a token whose logits score another token, and the id of that token; in rising order
            of index.
    """

    limbs: bytes
    scores: bytes


@dataclass(frozen=True, slots=True)
class ChoiceTree:
    """The tree of several texts. Its tokens are those that some scored token of a text comes after.

    A text's last token comes before nothing, so it is in the tree only where a longer text goes on from it; its own
    log-probability is known from the token before it.

    Attributes:
        pieces: what the tree's tokens are: of each piece the index of a text, and from where to where it goes in that
            text.
        limbs: [L, 2] int32, see `TreeShape`.
        scores: [K, 2] int32, see `TreeShape`.
        scores_of: for each text, which scores are those of its own tokens.
    """

    pieces: tuple[tuple[int, int, int], ...]
    limbs: Int32Array
    scores: Int32Array
    scores_of: tuple[Int32Array, ...]

    @classmethod
    def of(cls, texts: Sequence[Int32Array], score_from: int) -> ChoiceTree:
        """The tree of texts that have their first `score_from` tokens, one at least, in common.

        Log-probabilities of all of their tokens from there on are wanted. The tree has the fewest tokens that give
        them.

        Raises:
            EngineError: they cannot have that many tokens in common: a defect of the engine.
        """
        shortest = min(map(len, texts))
        if not 1 <= score_from <= shortest:
            raise EngineError(
                f"score_from must be from 1 to {shortest}, the tokens of the shortest text, not {score_from}"
            )
        tails = [text[score_from:].tolist() for text in texts]
        order = sorted(range(len(texts)), key=tails.__getitem__)
        growth = _Growth(order[0], tails[order[0]], score_from, len(texts))
        for before, text in pairwise(order):
            growth.add(text, tails[text], _shared(tails[before], tails[text]))
        return growth.tree()

    @property
    def shape(self) -> TreeShape:
        """What the scheduler must know of it beside its tokens."""
        return TreeShape(self.limbs.tobytes(), self.scores.tobytes())

    def tokens(self, texts: Sequence[Int32Array]) -> Int32Array:
        """Of arrays with an entry for each token of each text, those of the tree's tokens."""
        return np.concatenate([texts[text][start:stop] for text, start, stop in self.pieces])


@dataclass(slots=True)
class _Growth:
    """A tree to which texts are added in the order of their tokens.

    In that order a text shares most with the one before it, and what it does not share with that, it shares with none
    before. So the tree is only ever left from the path that was added last.

    Attributes:
        first, tail, score_from, count: the first text, its tokens from `score_from` on; number of texts.
        path: indices of the tree's tokens that lead from place score_from - 1 on to where the last text goes.
        scored: the scores of the last text.
        end: the place at which the last limb ends.
    """

    first: int
    tail: list[int]
    score_from: int
    count: int
    pieces: list[tuple[int, int, int]] = field(init=False)
    limbs: list[tuple[int, int]] = field(init=False)
    scores: list[tuple[int, int]] = field(default_factory=list, init=False)
    scores_of: list[list[int]] = field(init=False)
    path: list[int] = field(init=False)
    scored: list[int] = field(default_factory=list, init=False)
    end: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.scores_of = [[] for _ in range(self.count)]
        self.size = self.end = self.score_from
        self.pieces = [(self.first, 0, self.end)]
        self.limbs = [(0, 0)]
        self.path = [self.size - 1]
        self.add(self.first, self.tail, 0)

    def add(self, text: int, tail: list[int], shared: int) -> None:
        """Add a text of which the first `shared` tokens of the tail are those of the text before it."""
        first = self.score_from
        start = min(first + shared, first - 1 + len(self.path))
        stop = first + len(tail) - 1
        del self.path[start - first + 1 :]
        if stop > start:
            self._extend(text, start, stop)
        del self.scored[shared:]
        for place in range(shared, len(tail)):
            self.scored.append(len(self.scores))
            self.scores.append((self.path[place], tail[place]))
        self.scores_of[text] = self.scored.copy()

    def _extend(self, text: int, start: int, stop: int) -> None:
        """Add the tokens from place `start` to `stop` of a text behind the path, in a limb of their own if need be."""
        if start != self.end:
            self.limbs.append((self.size, start))
        self.pieces.append((text, start, stop))
        self.path += range(self.size, self.size + stop - start)
        self.size += stop - start
        self.end = stop

    def tree(self) -> ChoiceTree:
        scores = np.array(self.scores, dtype=np.int32).reshape(-1, 2)
        order = np.argsort(scores[:, 0], kind="stable")
        ranks = np.empty(len(order), dtype=np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        return ChoiceTree(
            pieces=tuple(self.pieces),
            limbs=np.array(self.limbs, dtype=np.int32),
            scores=scores[order],
            scores_of=tuple(ranks[places] for places in self.scores_of),
        )


def _shared(left: list[int], right: list[int]) -> int:
    """Number of tokens that two lists have in common at their beginning."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
