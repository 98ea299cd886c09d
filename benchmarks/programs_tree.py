"""How the programs of `programs.py` are written: branches of one request tree, and waits.

A program is a generator. It appends to the branches of its tree, and yields where it must wait: `Read` for answers,
`Pause` for a tool or a person. Who runs it decides how the nodes reach the engine. What is drawn (lengths of answers,
texts as token ids) depends on the program's own seed only, so every way of running it does the same work.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from palmette.runtime.program import Fork, Generate, Generated, Join, Node, Reference, Select, Selected, Tokens
from palmette.runtime.sampling_params import SamplingParams

FIRST_ID = 3
"""Of the 256 tokens that texts are made of: the fake model's vocabulary of bytes, without its special tokens."""

Answer = Generated | Selected


@dataclass(frozen=True, slots=True)
class Read:
    """Wait for the answers of these nodes, which are sent back in their order."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for something else than the engine."""

    seconds: float


Wait = Read | Pause
Program = Generator[Wait, list[Answer], None]


class Tree:
    """The nodes of one program, as they are appended.

    Attributes:
        awaited: every node that ends in an answer.
    """

    def __init__(self, seed: int, *, first_id: int = FIRST_ID, exact: bool = False) -> None:
        """Begin an empty tree.

        Args:
            first_id: texts are of 256 token ids from here on.
            exact: answers have their length because nothing ends them sooner, not because the model says so.
        """
        self.random = random.Random(seed)
        self.exact = exact
        self._first_id = first_id
        self.awaited: list[int] = []
        self._added: list[Node] = []
        self._count = 0

    def take(self) -> list[Node]:
        """The nodes that were appended since the last call."""
        added, self._added = self._added, []
        return added

    def next_id(self) -> int:
        self._count += 1
        return self._count

    def add(self, node: Node) -> int:
        self._added.append(node)
        if isinstance(node, Generate | Select):
            self.awaited.append(node.id)
        return node.id

    def branch(self) -> Branch:
        """A branch that begins at the root."""
        return Branch(self, None)

    def text(self, length: int) -> tuple[int, ...]:
        """A text of this program's own."""
        return random_text(self.random, length, self._first_id)


class Branch:
    """A branch that grows at its end."""

    __slots__ = ("end", "tree")

    def __init__(self, tree: Tree, end: int | None) -> None:
        self.tree = tree
        self.end = end

    def tokens(self, token_ids: Sequence[int]) -> Branch:
        """Append constant tokens."""
        self.end = self.tree.add(Tokens(self.tree.next_id(), self.end, tuple(token_ids)))
        return self

    def generate(self, mean: int) -> int:
        """Append a generation of `mean` tokens on average, of which the program allows four times as many."""
        length, most = answer_length(self.tree.random, mean)
        seed = length << 32 | self.tree.random.getrandbits(32)
        if self.tree.exact:
            params = SamplingParams(seed=seed, max_tokens=length, ignore_eos=True)
        else:
            params = SamplingParams(seed=seed, max_tokens=most)
        self.end = self.tree.add(Generate(self.tree.next_id(), self.end, params))
        return self.end

    def select(self, choices: Sequence[str]) -> int:
        """Append a select."""
        self.end = self.tree.add(Select(self.tree.next_id(), self.end, tuple(choices)))
        return self.end

    def refer(self, source: int) -> Branch:
        """Append the answer of another node as text."""
        self.end = self.tree.add(Reference(self.tree.next_id(), self.end, source))
        return self

    def fork(self, count: int) -> list[Branch]:
        """Branches that begin here."""
        self.end = self.tree.add(Fork(self.tree.next_id(), self.end, count))
        return [Branch(self.tree, self.end) for _ in range(count)]

    def join(self, branches: Sequence[Branch]) -> Branch:
        """End branches that began here."""
        ends = tuple(branch.end for branch in branches if branch.end is not None)
        self.end = self.tree.add(Join(self.tree.next_id(), self.end, ends))
        return self


def random_text(source: random.Random, length: int, first_id: int = FIRST_ID) -> tuple[int, ...]:
    """Token ids that no other text is likely to begin with."""
    return tuple(first_id + byte for byte in source.randbytes(length))


SPREAD = 0.5
"""Of the logarithm of an answer's length."""


def answer_length(source: random.Random, mean: int) -> tuple[int, int]:
    """The length of an answer, log-normal with its end token, and the most tokens that the program allows it."""
    most = 4 * mean
    drawn = source.lognormvariate(0.0, SPREAD) / 1.133  # exp(SPREAD ** 2 / 2): the mean of what was drawn
    return max(2, min(most, round(mean * drawn))), most


def length_of_seed(seed: int) -> int:
    """How long an answer of this seed is, its end token included: the fake model is told so by the seed."""
    return seed >> 32
