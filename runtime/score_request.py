"""A request that scores a tree of texts: its tokens are limbs, of which each goes on from the path that it leaves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .batch import Int32Array
from .choice_tree import TreeShape
from .messages import RequestKind
from .request import Request
from .step_builder import Line, Row


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """The tokens and pages of a tree, for one page size.

    Pages are whole, and only pages can be shared: a limb begins on a page of its own. Where it leaves its path in the
    middle of a page, the tokens before it in that page are in the limb as well, and computed again.

    Attributes:
        token_ids: [T], of all limbs, one behind the other.
        firsts: of each limb, the index of its first token.
        starts: of each limb, the place of that token in its text: the first of a page.
        page_firsts: of each limb, its first page among those of the request.
        parents: of each limb, the one that has the page before its first; -1 where none is before.
        sources: in rising order, the indices of tokens whose logits score the tokens `targets`.
    """

    token_ids: Int32Array
    firsts: list[int]
    starts: list[int]
    page_firsts: list[int]
    parents: list[int]
    sources: list[int]
    targets: Int32Array

    @classmethod
    def of(cls, token_ids: Int32Array, shape: TreeShape, page_size: int) -> TreeLayout:
        """Lay out the tokens of a tree."""
        limbs = np.frombuffer(shape.limbs, dtype=np.int32).reshape(-1, 2)
        scores = np.frombuffer(shape.scores, dtype=np.int32).reshape(-1, 2)
        begins = limbs[:, 1] // page_size * page_size
        again = limbs[:, 1] - begins
        before = np.cumsum(again)
        limb_of = np.searchsorted(limbs[:, 0], scores[:, 0], side="right") - 1
        firsts = limbs[:, 0] + before - again
        if again.any():
            token_ids = _with_page_beginnings(token_ids, limbs, begins)
        lengths = np.diff(firsts, append=len(token_ids))
        page_firsts = np.cumsum(-(-lengths // page_size)) - -(-lengths // page_size)
        return cls(
            token_ids=token_ids,
            firsts=firsts.tolist(),
            starts=begins.tolist(),
            page_firsts=page_firsts.tolist(),
            parents=_parents(begins.tolist()),
            sources=(scores[:, 0] + before[limb_of]).tolist(),
            targets=scores[:, 1].copy(),
        )

    def limb_of(self, index: int) -> int:
        """The limb that has a token."""
        return bisect_right(self.firsts, index) - 1

    def stop_of(self, limb: int) -> int:
        """The index behind a limb's last token."""
        return self.firsts[limb + 1] if limb + 1 < len(self.firsts) else len(self.token_ids)

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text, with the last one, which is scored and not computed."""
        stops = map(self.stop_of, range(len(self.firsts)))
        return 1 + max(start + stop - first for start, stop, first in zip(self.starts, stops, self.firsts, strict=True))


def _with_page_beginnings(token_ids: Int32Array, limbs: Int32Array, begins: Int32Array) -> Int32Array:
    """The tokens of limbs which begin at these places: each has those of its path before its own first."""
    tokens = token_ids.tolist()
    path: list[int] = []
    laid_out: list[int] = []
    firsts, starts = limbs.T.tolist()
    for first, stop, start, begin in zip(firsts, [*firsts[1:], len(tokens)], starts, begins.tolist(), strict=True):
        path[start:] = tokens[first:stop]
        laid_out += path[begin:]
    return np.array(laid_out, dtype=np.int32)


def _parents(begins: list[int]) -> list[int]:
    """Of each limb the last one before it that began at an earlier place, and that no one after it has left."""
    path: list[int] = []
    parents = []
    for limb, begin in enumerate(begins):
        while path and begins[path[-1]] >= begin:
            path.pop()
        parents.append(path[-1] if path else -1)
        path.append(limb)
    return parents


@dataclass(eq=False, slots=True, kw_only=True)
class ScoreRequest(Request):
    """A request for log-probabilities of the tokens of several texts that begin alike, and for no output.

    Its tokens are those of a tree, in which a limb follows the limb before it without going on from it. Those of a
    step's tokens that are of one limb are a line of the plan. All lines of a step may be of one request: in each layer
    the keys and values of all tokens are written before any attention reads them.

    Attributes:
        tree: its tokens and what they score; `prompt_ids` are all of them.
        score_logprobs: in the order of `tree.sources`, as far as known.
    """

    given: ClassVar[str] = "the prompt with its choices"
    has_limbs: ClassVar[bool] = True

    tree: TreeLayout
    kind: RequestKind = field(default="score", init=False)

    @property
    def unscored(self) -> range:
        """Which of the tree's scores are not known yet."""
        return range(len(self.score_logprobs), len(self.tree.sources))

    def scored_by(self, start: int, stop: int) -> range:
        """Which of those the tokens from `start` to `stop` tell."""
        sources, unscored = self.tree.sources, self.unscored
        first = bisect_left(sources, start, unscored.start)
        return range(first, bisect_left(sources, stop, first))

    def scoring(self, scored: range) -> tuple[Int32Array, Int32Array]:
        """The tokens that tell them, by index, and the ids that they score."""
        part = slice(scored.start, scored.stop)
        return np.array(self.tree.sources[part], dtype=np.int32), self.tree.targets[part]

    def are_output(self, scored: range) -> bool:
        return False

    @property
    def path_end(self) -> int:
        """Tokens of the first limb: the others do not go on from those before them."""
        return self.tree.stop_of(0)

    @property
    def longest_prefix(self) -> int:
        unscored = self.unscored
        first = self.tree.sources[unscored.start] if unscored else self.end - 1
        return min(first, self.path_end)

    @property
    def context_needed(self) -> int:
        return self.tree.longest_text

    def too_long_for(self, context_length: int) -> str:
        return (
            f"the prompt and a choice have {self.context_needed} tokens, but at most {context_length} fit this model's"
            " context; shorten one of them"
        )

    @property
    def largest_token(self) -> int:
        return int(max(self.prompt_ids.max(), self.tree.targets.max(initial=0)))

    def pages_for(self, tokens: int, page_size: int) -> int:
        """Pages that hold its first `tokens` tokens."""
        limb = self.tree.limb_of(max(0, tokens - 1))
        return self.tree.page_firsts[limb] - (self.tree.firsts[limb] - tokens) // page_size

    def tokens_within(self, pages: int, page_size: int) -> int:
        """Most tokens, from the first on, that so many pages hold."""
        limb = bisect_right(self.tree.page_firsts, pages) - 1
        held = self.tree.firsts[limb] + (pages - self.tree.page_firsts[limb]) * page_size
        return min(held, self.tree.stop_of(limb))

    def lines(self, row: Row) -> Sequence[Line]:
        """The parts of a row that are of one limb each."""
        lines = []
        first = row.start
        while first < row.stop:
            limb = self.tree.limb_of(first)
            stop = min(row.stop, self.tree.stop_of(limb))
            lines.append(LimbLine(self, limb, first, stop - first))
            first = stop
        return lines

    def path_pages(self, limb: int, pages: int, page_size: int) -> Int32Array:
        """The first pages of the text of a limb: its own, and before them those of its path."""
        tree, held = self.tree, self.page_table.pages.view
        parts = []
        while limb >= 0:
            before, first = tree.starts[limb] // page_size, tree.page_firsts[limb]
            parts.append(held[first : first + pages - before])
            pages, limb = before, tree.parents[limb]
        return np.concatenate(parts[::-1])


@dataclass(frozen=True, slots=True)
class LimbLine:
    """Tokens of one limb in a step: see `Line`."""

    follows_sample: ClassVar[bool] = False
    is_sampled: ClassVar[bool] = False

    request: ScoreRequest
    limb: int
    first: int
    count: int

    @property
    def start(self) -> int:
        tree = self.request.tree
        return tree.starts[self.limb] + self.first - tree.firsts[self.limb]

    def token_ids(self) -> Int32Array:
        return self.request.token_ids[self.first : self.first + self.count]

    def pages(self, count: int, page_size: int) -> Int32Array:
        return self.request.path_pages(self.limb, count, page_size)
