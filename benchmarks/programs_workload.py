"""The six kinds of programs of `programs.py`, with their sizes in tokens.

Texts that many programs of a kind share (instructions, examples, descriptions of tools) are drawn once. Whatever a
program decides on, it decides by the tokens of answers that it has read.

| kind | shared by programs | a program's own | calls |
|---|---|---|---|
| tree of thought | 4 tasks of 700 | problem of 400 | 3 levels of 3 to 5 thoughts from each of two, each rated |
| branch, solve, merge | 2 instructions of 300 | essay of 3000 | criteria, 3 to 5 judgements, a merged one, a verdict |
| react | 4 agents of 2000 | observations of 1000 | 3 to 6 thoughts, each with a tool of 300 ms; an answer |
| skeleton of thought | 2 instructions of 200 | document of 1500 | a skeleton, 5 to 8 points |
| few-shot select | 3 tasks of 20 x 60 | question of 100 | a select of 4 |
| chat | 10 assistants of 500 | document of 2000, messages of 150 | 3 to 6 answers, 1 to 2 s between them |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.programs_tree import FIRST_ID, Answer, Branch, Pause, Program, Read, Tree, random_text

from palmette.runtime.program import Generated

TOOL_S = 0.3
CHOICES = (" sad", " glad", " calm", " grim")
VERDICTS = (" pass", " fail", " redo")


class Texts:
    """What programs share, drawn once.

    Args:
        scale: of all lengths; 1 is that of the table above.
        first_id, exact: see `Tree`.
    """

    def __init__(self, seed: int = 7, *, scale: float = 1.0, first_id: int = FIRST_ID, exact: bool = False) -> None:
        self._random = random.Random(seed)
        self.scale = scale
        self.first_id = first_id
        self.exact = exact
        self.tasks = self._several(4, 700)
        self.judges = self._several(2, 300)
        self.agents = self._several(4, 2000)
        self.skeletons = self._several(2, 200)
        self.examples = self._several(3, 20 * 60)
        self.assistants = self._several(10, 500)
        self.rate = self.drawn(40)
        self.criterion = self.drawn(40)
        self.merge = self.drawn(30)
        self.verdict = self.drawn(10)
        self.point = self.drawn(30)
        self.closing = self.drawn(12)

    def size(self, length: int) -> int:
        """A length in this scale."""
        return max(1, round(length * self.scale))

    def drawn(self, length: int) -> tuple[int, ...]:
        return random_text(self._random, self.size(length), self.first_id)

    def _several(self, count: int, length: int) -> list[tuple[int, ...]]:
        return [self.drawn(length) for _ in range(count)]


class Writer:
    """One program being written: its tree, and lengths in its scale."""

    def __init__(self, texts: Texts, tree: Tree) -> None:
        self.texts = texts
        self.tree = tree
        self.random = tree.random

    def begin(self, shared: Sequence[tuple[int, ...]], own: int) -> Branch:
        """A branch of a shared text and one of its own."""
        return self.tree.branch().tokens(self.random.choice(shared)).tokens(self.own(own))

    def own(self, length: int) -> tuple[int, ...]:
        """A text of about this length."""
        return self.tree.text(self.texts.size(self.random.randint(length // 2, length + length // 2)))

    def mean(self, length: int) -> int:
        return max(2, self.texts.size(length))


def tree_of_thought(w: Writer) -> Program:
    """Thoughts, each rated; the best two go on."""
    kept = [w.begin(w.texts.tasks, 400)]
    for _ in range(3):
        thoughts = [branch for best in kept for branch in best.fork(w.random.randint(3, 5))]
        rated = []
        for thought in thoughts:
            thought.generate(w.mean(60))
            rating = Branch(w.tree, thought.end).tokens(w.texts.rate)
            rated.append(rating.generate(w.mean(6)))
        scores = [_first_token(answer) for answer in (yield Read(tuple(rated)))]
        ranked = sorted(range(len(thoughts)), key=lambda place: (-scores[place], place))
        kept = [thoughts[place] for place in ranked[:2]]
    kept[0].tokens(w.texts.closing).generate(w.mean(80))


def branch_solve_merge(w: Writer) -> Program:
    """Criteria for an essay, a judgement by each, and a verdict on all of them."""
    trunk = w.begin(w.texts.judges, 3000)
    (criteria,) = yield Read((trunk.generate(w.mean(60)),))
    branches = trunk.fork(3 + _first_token(criteria) % 3)
    judged = [branch.tokens(w.texts.criterion).tokens(w.own(15)).generate(w.mean(90)) for branch in branches]
    trunk.join(branches).tokens(w.texts.merge)
    for answer in judged:
        trunk.refer(answer).tokens(w.texts.closing)
    trunk.generate(w.mean(90))
    trunk.tokens(w.texts.verdict).select(VERDICTS)


def react(w: Writer) -> Program:
    """Thoughts and calls of tools in turn, then the answer."""
    branch = w.begin(w.texts.agents, 60)
    for _ in range(w.random.randint(3, 6)):
        yield Read((branch.generate(w.mean(50)),))
        yield Pause(TOOL_S)
        branch.tokens(w.own(1000))
    branch.tokens(w.texts.closing).generate(w.mean(80))


def skeleton_of_thought(w: Writer) -> Program:
    """The points of an answer, then each point by itself."""
    trunk = w.begin(w.texts.skeletons, 1500)
    (skeleton,) = yield Read((trunk.generate(w.mean(60)),))
    branches = trunk.fork(5 + _first_token(skeleton) % 4)
    for branch in branches:
        branch.tokens(w.texts.point).tokens(w.own(10)).generate(w.mean(90))
    trunk.join(branches)


def few_shot_select(w: Writer) -> Program:
    """One of four, after twenty examples."""
    w.begin(w.texts.examples, 100).select(CHOICES)
    yield from ()


def chat(w: Writer) -> Program:
    """A conversation with a person who reads and thinks."""
    branch = w.begin(w.texts.assistants, 2000)
    for turn in range(turns := w.random.randint(3, 6)):
        answer = branch.generate(w.mean(100))
        if turn + 1 < turns:
            yield Read((answer,))
            yield Pause(w.random.uniform(1.0, 2.0))
            branch.tokens(w.texts.closing).tokens(w.own(150))


KINDS: dict[str, Callable[[Writer], Program]] = {
    "tree of thought": tree_of_thought,
    "branch, solve, merge": branch_solve_merge,
    "react": react,
    "skeleton of thought": skeleton_of_thought,
    "few-shot select": few_shot_select,
    "chat": chat,
}


@dataclass(frozen=True, slots=True)
class Item:
    """One program to run."""

    number: int
    kind: str
    seed: int

    def begin(self, texts: Texts) -> tuple[Tree, Program]:
        """The program at its beginning, and its tree, still empty."""
        tree = Tree(self.seed, first_id=texts.first_id, exact=texts.exact)
        return tree, KINDS[self.kind](Writer(texts, tree))


def mix(count: int, seed: int = 1) -> list[Item]:
    """Programs of all kinds, equally many on average, in an order of chance."""
    source = random.Random(seed)
    kinds = list(KINDS)
    return [Item(number, source.choice(kinds), source.getrandbits(48)) for number in range(count)]


def _first_token(answer: Answer) -> int:
    """What a program decides by: no two answers are likely to agree on why."""
    assert isinstance(answer, Generated)
    token_ids = answer.completions[0].token_ids
    return token_ids[0] if token_ids else 0
