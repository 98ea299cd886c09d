"""Text that goes on freely until one of some strings has appeared in it.

Such texts are a regular language: the characters are followed through the trie of the strings with its failure links,
and every node of the trie becomes one right-linear rule. Text is whole characters of UTF-8; a string may begin
anywhere, inside a false start of another too. Source: Aho and Corasick, "Efficient string matching", 1975.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .code_points import ANY, CodePoints, utf8
from .limits import CompileLimits
from .rules import EMPTY, NOTHING, Choice, Node, RuleRef, Sequence


def free_text(
    rules: dict[str, Node],
    name: str,
    *,
    then: Mapping[str, Node],
    forbidden: Iterable[str] = (),
    may_end: bool,
    limits: CompileLimits,
) -> RuleRef:
    """Add the rules of free text to `rules` and return the one it begins with, called `name`.

    Args:
        rules: new rules are called `name` and ``name@1``, ``name@2`` and so on.
        name: not yet in `rules`. The nodes of `then` may refer to it.
        then: for each string, what follows at once when it has appeared for the first time.
        forbidden: strings that never appear; this goes before `then` where both are complete at the same character.
        may_end: whether the text may end before any of the strings has appeared.
        limits: the strings' characters are bounded by its `rules`, the ways between them by its `positions`.
    """
    trie = _Trie([*then, *forbidden], limits)
    follows = {trie.node_of(text): follow for text, follow in then.items()}
    follows.update((trie.node_of(text), NOTHING) for text in forbidden)
    names = [f"{name}@{node}" if node else name for node in range(len(trie.children))]
    for node in range(len(trie.children)):
        if trie.completed(node, follows):
            continue  # what happens there is what the transition into it does
        options = _transitions(trie, node, names, follows)
        rules[names[node]] = Choice((*options, EMPTY) if may_end else tuple(options))
    return RuleRef(name)


def _transitions(trie: _Trie, node: int, names: list[str], follows: Mapping[int, Node]) -> list[Node]:
    moves = trie.moves(node)
    others = ANY - CodePoints.from_text("".join(moves))
    options: list[Node] = [Sequence((utf8(others), RuleRef(names[0])))]
    for char, target in moves.items():
        completed = trie.completed(target, follows)
        if not completed:
            options.append(Sequence((utf8(CodePoints.from_text(char)), RuleRef(names[target]))))
        elif NOTHING not in completed:
            options.append(Sequence((utf8(CodePoints.from_text(char)), Choice(tuple(completed)))))
    return options


class _Trie:
    """Nodes are numbers, 0 the root.

    Attributes:
        fail: for each node, the longest other node that its text ends in.
        shorter: the longest of the strings that is such a node; 0 for none.
    """

    def __init__(self, texts: list[str], limits: CompileLimits) -> None:
        self.children: list[dict[str, int]] = [{}]
        self._limits = limits
        self._ends: set[int] = set()
        for text in texts:
            self._add(text)
            limits.check("rules", len(self.children), "characters of strings that end free text")
        self.fail = [0] * len(self.children)
        self.shorter = [0] * len(self.children)
        self._moves: list[dict[str, int]] = [{} for _ in self.children]
        self._link()

    def _add(self, text: str) -> None:
        node = 0
        for char in text:
            if char not in self.children[node]:
                self.children[node][char] = len(self.children)
                self.children.append({})
            node = self.children[node][char]
        self._ends.add(node)

    def _link(self) -> None:
        """Fill in links and moves, nodes nearer to the root first."""
        order = [0]
        moves = 0
        for node in order:  # grows while it is walked
            behind = self._moves[self.fail[node]] if node else {}
            for char, child in self.children[node].items():
                fail = self.fail[child] = behind.get(char, 0)
                self.shorter[child] = fail if fail in self._ends else self.shorter[fail]
                order.append(child)
            self._moves[node] = {**behind, **self.children[node]}
            moves += len(self._moves[node])
            self._limits.check("positions", moves, "places of the strings that end free text")

    def moves(self, node: int) -> Mapping[str, int]:
        """Where each character leads from `node`; those that are not named lead to the root."""
        return self._moves[node]

    def node_of(self, text: str) -> int:
        """The node of one of the strings."""
        node = 0
        for char in text:
            node = self.children[node][char]
        return node

    def completed(self, node: int, follows: Mapping[int, Node]) -> list[Node]:
        """What follows each of the strings that the text of `node` ends in."""
        found = []
        node = node if node in self._ends else self.shorter[node]
        while node:
            found.append(follows[node])
            node = self.shorter[node]
        return found
