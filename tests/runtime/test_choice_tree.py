"""The tree of several texts: what it holds, and what it scores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_runner import ids

from palmette.runtime.choice_tree import ChoiceTree
from palmette.runtime.errors import EngineError
from palmette.runtime.score_request import TreeLayout

TAILS = st.lists(st.lists(st.integers(3, 5), max_size=6), min_size=1, max_size=12)
PROMPTS = st.lists(st.integers(3, 5), min_size=1, max_size=20)


def tree_of(prompt: Sequence[int], tails: Sequence[Sequence[int]]) -> tuple[ChoiceTree, list[int]]:
    """The tree of prompt and tails, and its tokens."""
    texts = [ids(*prompt, *tail) for tail in tails]
    tree = ChoiceTree.of(texts, len(prompt))
    return tree, tree.tokens(texts).tolist()


def paths(tokens: Sequence[int], limbs: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """For each token of a tree, all tokens up to it; limbs are given as (index of the first token, its place)."""
    path: list[int] = []
    found = []
    ends = [first for first, _ in limbs[1:]]
    for (first, start), stop in zip(limbs, [*ends, len(tokens)], strict=True):
        assert start <= len(path), "a limb leaves no path"
        path = path[:start]
        for token_id in tokens[first:stop]:
            path.append(token_id)
            found.append(tuple(path))
    return found


def test_what_is_shared_stands_once() -> None:
    """Two choices that part after a token, one that ends where the others part, and one of its own."""
    tree, tokens = tree_of([1, 2], [[5, 6, 7], [5, 8, 9], [5], [4, 4]])
    assert tokens == [1, 2, 4, 5, 6, 8]
    assert tree.limbs.tolist() == [[0, 0], [3, 2], [5, 3]]
    assert tree.scores.tolist() == [[1, 4], [1, 5], [2, 4], [3, 6], [3, 8], [4, 7], [5, 9]]
    assert [scores.tolist() for scores in tree.scores_of] == [[1, 3, 5], [1, 4, 6], [1], [0, 2]]


def test_choices_of_one_token_add_no_token() -> None:
    """The prompt's last logits score them all, the same choice twice included."""
    tree, tokens = tree_of([1, 2, 3], [[9], [7], [8], [7]])
    assert tokens == [1, 2, 3]
    assert tree.limbs.tolist() == [[0, 0]]
    assert tree.scores.tolist() == [[2, 7], [2, 8], [2, 9]]
    assert [scores.tolist() for scores in tree.scores_of] == [[2], [0], [1], [0]]


def test_a_choice_that_goes_on_from_another_needs_no_limb() -> None:
    """Its tokens follow those that are there."""
    tree, tokens = tree_of([1], [[5, 6, 7, 8], [5, 6], [5]])
    assert tokens == [1, 5, 6, 7]
    assert tree.limbs.tolist() == [[0, 0]]


def test_a_choice_without_tokens_of_its_own_has_no_scores() -> None:
    """All of its text lies in tokens that every choice shares; alone it leaves nothing to score."""
    tree, tokens = tree_of([1, 2], [[], [5, 6]])
    assert tokens == [1, 2, 5]
    assert [len(scores) for scores in tree.scores_of] == [0, 2]
    alone, tokens = tree_of([1, 2], [[]])
    assert tokens == [1, 2]
    assert len(alone.scores) == 0


@given(PROMPTS, TAILS)
def test_every_token_is_scored_after_its_own_text_and_no_tree_is_smaller(
    prompt: list[int], tails: list[list[int]]
) -> None:
    """A tree has one token for each text that a scored token comes after, and the tokens before those."""
    tree, tokens = tree_of(prompt, tails)
    path_of = paths(tokens, [(first, start) for first, start in tree.limbs.tolist()])
    sources, targets = tree.scores[:, 0].tolist(), tree.scores[:, 1].tolist()
    assert sources == sorted(sources)
    assert len({*zip(sources, targets, strict=True)}) == len(sources)
    for tail, scores in zip(tails, tree.scores_of, strict=True):
        scored = [(path_of[sources[score]], targets[score]) for score in scores]
        assert scored == [((*prompt, *tail[:place]), token) for place, token in enumerate(tail)]
    needed = {tuple(tail[:end]) for tail in tails for end in range(1, len(tail))}
    assert len(tokens) == len(prompt) + len(needed)


@given(PROMPTS, TAILS, st.sampled_from([1, 2, 4, 16]))
def test_laid_out_in_pages_every_limb_finds_its_path(prompt: list[int], tails: list[list[int]], page_size: int) -> None:
    """Pages that hold each token where it was written show every limb all of the tokens before it."""
    tree, tokens = tree_of(prompt, tails)
    layout = TreeLayout.of(np.array(tokens, dtype=np.int32), tree.shape, page_size)
    laid_out = paths(layout.token_ids.tolist(), list(zip(layout.firsts, layout.starts, strict=True)))
    plain = paths(tokens, [(first, start) for first, start in tree.limbs.tolist()])
    assert [laid_out[source] for source in layout.sources] == [plain[source] for source in tree.scores[:, 0]]
    assert layout.targets.tolist() == tree.scores[:, 1].tolist()
    memory: dict[tuple[int, int], int] = {}
    for limb, (first, start, page) in enumerate(zip(layout.firsts, layout.starts, layout.page_firsts, strict=True)):
        assert start % page_size == 0
        for offset, token_id in enumerate(layout.token_ids[first : layout.stop_of(limb)].tolist()):
            place = page + offset // page_size, offset % page_size
            assert place not in memory
            memory[place] = token_id
    for limb, first in enumerate(layout.firsts):
        length = len(laid_out[layout.stop_of(limb) - 1])
        pages = path_pages(layout, limb, -(-length // page_size), page_size)
        shown = [memory[pages[place // page_size], place % page_size] for place in range(length)]
        assert tuple(shown) == laid_out[layout.stop_of(limb) - 1]
        assert first < layout.stop_of(limb)
    assert layout.longest_text == 1 + max(map(len, laid_out))


def path_pages(layout: TreeLayout, limb: int, pages: int, page_size: int) -> list[int]:
    """The pages of a limb's text, by the definition of `TreeLayout`."""
    before = layout.starts[limb] // page_size
    own = [layout.page_firsts[limb] + page for page in range(pages - before)]
    return path_pages(layout, layout.parents[limb], before, page_size) + own if before else own


@pytest.mark.parametrize("score_from", [0, 3])
def test_texts_must_have_something_in_common(score_from: int) -> None:
    """Something must come before the first scored token, and no text may end before it."""
    with pytest.raises(EngineError, match="score_from must be from 1 to 2"):
        ChoiceTree.of([ids(1, 2, 3), ids(1, 2)], score_from)


def test_ten_thousand_choices_take_no_long() -> None:
    """A tree grows in one pass over the tokens, however many choices there are."""
    digits = itertools.islice(itertools.product(range(3, 13), repeat=4), 10_000)
    tree, tokens = tree_of([1] * 500, list(digits))
    assert len(tokens) == 500 + 10 + 100 + 1000
    assert len(tree.scores) == 10 + 100 + 1000 + 10_000
