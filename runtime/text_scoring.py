"""Log-probabilities of texts that begin alike: what is asked of the scheduler for them, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .batch import Float32Array, Int32Array
from .choice_tree import ChoiceTree, TreeShape
from .context import Prompt
from .messages import RequestEnd
from .usage_count import UsageCount

MOST_TOKENS = 4096
"""Tokens of the choices in one request. More choices are scored by several, which share the prompt all the same."""


class TextScoring:
    """The score requests of texts, one for all of them unless they are thousands.

    Args:
        texts: their tokens; the first `score_from` of them, one at least, are the same in all.
        score_from: log-probabilities are wanted from there on.
    """

    def __init__(self, texts: Sequence[Prompt], score_from: int) -> None:
        self.texts = texts
        self.score_from = score_from
        self._trees: list[tuple[list[int], ChoiceTree]] = []
        self._prompts: list[Prompt] = []
        for group in self._groups():
            ids, owners = ([getattr(texts[i], name) for i in group] for name in ("ids", "owners"))
            tree = ChoiceTree.of(ids, score_from)
            self._trees.append((group, tree))
            self._prompts.append(Prompt(tree.tokens(ids), tree.tokens(owners)))

    def __len__(self) -> int:
        """How many requests it takes."""
        return len(self._trees)

    def requests(self) -> Iterator[tuple[Int32Array, TreeShape]]:
        """Of each request, its tokens and what they score."""
        for (_, tree), prompt in zip(self._trees, self._prompts, strict=True):
            yield prompt.ids, tree.shape

    def scored_ids(self, text: int) -> tuple[int, ...]:
        """The tokens of a text that are scored."""
        return tuple(self.texts[text].ids[self.score_from :].tolist())

    def logprobs(self, ends: Sequence[RequestEnd]) -> list[tuple[float, ...]]:
        """Those of each text, from what the requests came to."""
        found: list[tuple[float, ...]] = [()] * len(self.texts)
        for (group, tree), end in zip(self._trees, ends, strict=True):
            told: Float32Array = np.array(end.score_logprobs)
            for text, scores in zip(group, tree.scores_of, strict=True):
                found[text] = tuple(told[scores].tolist())
        return found

    def count(self, usage: UsageCount, ends: Sequence[RequestEnd]) -> None:
        """Count the tokens that the requests computed, each once, and those that they found in the radix cache."""
        for prompt, end in zip(self._prompts, ends, strict=True):
            usage.add_prompt(prompt, end.cached_tokens)

    def _groups(self) -> Iterator[list[int]]:
        """The texts of each request: neighbours in alphabetical order, which share most."""
        tails = [text.ids[self.score_from :].tolist() for text in self.texts]
        group: list[int] = []
        tokens = 0
        for text in sorted(range(len(tails)), key=tails.__getitem__):
            tokens += len(tails[text])
            if group and tokens > MOST_TOKENS:
                yield group
                group, tokens = [], len(tails[text])
            group.append(text)
        yield group
