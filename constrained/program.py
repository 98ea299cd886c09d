"""Rules flattened to positions, the instructions that the automaton follows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .errors import GrammarError
from .limits import CompileLimits, Deadline
from .rules import ByteClass, Choice, Except, Flagged, Graph, Literal, Node, Repeat, RuleRef, Rules, Sequence

RETURN = 0  # the one position that ends every rule and every counted round


class Op(IntEnum):
    """What happens at a position."""

    BYTES = 0  # take one byte of `mask`, go to `next`
    SPLIT = 1  # go to each of `targets`, taking nothing
    CALL = 2  # do the rule at `body`, then go to `next`
    REPEAT = 3  # do `body` `low` to `high` times, then go to `next`
    RETURN = 4  # end of a rule, of a round of a REPEAT, of an edge of a GRAPH, or of an EXCEPT
    GRAPH = 5  # go through `graph` from its state, then to `next`
    EXCEPT = 6  # do `body`, flat, unless it spells one of `words`, then go to `next`


@dataclass(slots=True)
class Position:
    """One instruction; the fields that its `op` does not use keep their defaults. `high` None is unbounded."""

    op: Op = Op.SPLIT
    mask: int = 0
    next: int = RETURN
    body: int = RETURN
    low: int = 0
    high: int | None = None
    targets: tuple[int, ...] = ()  # of a GRAPH: the first position of each body
    flags: int = 0
    graph: Graph | None = None
    words: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Program:
    """Positions of a whole grammar.

    Attributes:
        positions: `positions[RETURN]` is the one return.
        start: the first position of the start rule.
        shortest: [positions] the fewest bytes from a position to the RETURN of its own rule or round.
    """

    positions: list[Position]
    start: int
    shortest: list[int]


def build_program(grammar: Rules, limits: CompileLimits, deadline: Deadline) -> Program:
    """Flatten verified `grammar`.

    Raises:
        GrammarLimitError: too many rules, positions or needed repetitions, or out of time.
    """
    limits.check("rules", len(grammar.rules), "the grammar's rules")
    builder = _Builder(grammar, limits, deadline)
    builder.build()
    return Program(builder.positions, builder.entries[grammar.start], _shortest(builder.positions))


class _Builder:
    def __init__(self, grammar: Rules, limits: CompileLimits, deadline: Deadline) -> None:
        self._grammar = grammar
        self._limits = limits
        self._deadline = deadline
        self.positions: list[Position] = [Position(Op.RETURN)]
        self.entries: dict[str, int] = {}
        self._todo: list[tuple[Node, int, int, int]] = []

    def build(self) -> None:
        for name in self._grammar.rules:
            self.entries[name] = self._new()
        for name, node in self._grammar.rules.items():
            self._todo.append((node, self.entries[name], RETURN, 0))
            while self._todo:
                self._place(*self._todo.pop())
                self._limits.check("positions", len(self.positions), "the grammar's positions")
            self._deadline.check()

    def _new(self) -> int:
        self.positions.append(Position())
        return len(self.positions) - 1

    def _later(self, node: Node, then: int, flags: int) -> int:
        entry = self._new()
        self._todo.append((node, entry, then, flags))
        return entry

    def _place(self, node: Node, entry: int, then: int, flags: int) -> None:
        """Make position `entry` do `node` and go on at `then`."""
        match node:
            case Literal(value):
                self._place_literal(value, entry, then, flags)
            case ByteClass(mask):
                self.positions[entry] = Position(Op.BYTES, mask=mask, next=then, flags=flags)
            case Sequence(parts):
                entries = [entry, *(self._new() for _ in parts[1:])]
                following = [*entries[1:], then]
                self._todo.extend(
                    (part, here, after, flags) for part, here, after in zip(parts, entries, following, strict=True)
                )
            case Choice(options):
                targets = tuple(self._later(option, then, flags) for option in options)
                self.positions[entry] = Position(Op.SPLIT, targets=targets)
            case Flagged(body, more):
                self._todo.append((body, entry, then, flags | more))
            case Except(body, words):
                inside = self._later(body, RETURN, flags)
                self.positions[entry] = Position(Op.EXCEPT, body=inside, next=then, words=words)
            case Graph(_, bodies, _):
                targets = tuple(self._later(body, RETURN, flags) for body in bodies)
                self.positions[entry] = Position(Op.GRAPH, targets=targets, next=then, graph=node)
            case Repeat():
                self._place_repeat(node, entry, then, flags)
            case RuleRef(name):
                self.positions[entry] = Position(Op.CALL, body=self.entries[name], next=then)

    def _place_literal(self, value: bytes, entry: int, then: int, flags: int) -> None:
        if not value:
            self.positions[entry] = Position(Op.SPLIT, targets=(then,))
            return
        entries = [entry, *(self._new() for _ in value[1:]), then]
        for byte, here, following in zip(value, entries, entries[1:], strict=False):
            self.positions[here] = Position(Op.BYTES, mask=1 << byte, next=following, flags=flags)

    def _place_repeat(self, node: Repeat, entry: int, then: int, flags: int) -> None:
        self._limits.check("min_repeat", node.min, "a repetition's lower bound")
        match node.min, node.max:
            case 0, 1:
                body = self._later(node.body, then, flags)
                self.positions[entry] = Position(Op.SPLIT, targets=(body, then))
            case 0, None:
                body = self._later(node.body, entry, flags)
                self.positions[entry] = Position(Op.SPLIT, targets=(body, then))
            case 1, None:
                again = self._new()
                body = self._later(node.body, again, flags)
                self.positions[again] = Position(Op.SPLIT, targets=(body, then))
                self.positions[entry] = Position(Op.SPLIT, targets=(body,))
            case low, high:
                body = self._later(node.body, RETURN, flags)
                self.positions[entry] = Position(Op.REPEAT, body=body, next=then, low=low, high=high)


def _shortest(positions: list[Position]) -> list[int]:
    """Fewest bytes from each position to its RETURN.

    Source: Knuth, "A generalization of Dijkstra's algorithm", 1977.
    """
    users: list[list[int]] = [[] for _ in positions]
    for here, position in enumerate(positions):
        for needed in {position.next, position.body, *position.targets} - {here}:
            users[needed].append(here)
    final: dict[int, int] = {}
    heap = [(0, RETURN)]
    while heap:
        length, here = heapq.heappop(heap)
        if here in final:
            continue
        final[here] = length
        for user in users[here]:
            cost = None if user in final else _cost(positions, positions[user], final)
            if cost is not None:
                heapq.heappush(heap, (cost, user))
    return [final.get(here, 0) for here in range(len(positions))]


def _cost(positions: list[Position], position: Position, final: dict[int, int]) -> int | None:
    """Fewest bytes of `position` by what is `final` so far; None while something it needs is not."""
    if position.op is Op.SPLIT:
        return min((final[target] for target in position.targets if target in final), default=None)
    rest = final.get(position.next)
    if rest is None or position.op is Op.RETURN:
        return None
    if position.op is Op.BYTES:
        return rest + 1
    if position.graph is not None:
        through = position.graph.spec.cost(position.graph.state, body_costs(position, final))
        return None if math.isinf(through) else rest + int(through)
    if position.op is Op.EXCEPT:
        return rest + shortest_without(positions, position.body, Words(position.words), 0)
    rounds = 1 if position.op is Op.CALL else position.low
    if rounds == 0:
        return rest
    body = final.get(position.body)
    return None if body is None else rest + rounds * body


def body_costs(position: Position, costs: Mapping[int, int]) -> list[float]:
    """Fewest bytes of each body of a GRAPH, infinite where it is not in `costs`."""
    return [float(costs.get(target, math.inf)) for target in position.targets]


class Words:
    """The words of an EXCEPT as a trie. Node 0 is the root; `LEFT` is no beginning of any of them."""

    LEFT = -1

    def __init__(self, words: frozenset[bytes]) -> None:
        self.after: list[dict[int, int]] = [{}]
        self.is_word: list[bool] = [False]
        for word in sorted(words):
            here = 0
            for byte in word:
                if byte not in self.after[here]:
                    self.after[here][byte] = len(self.after)
                    self.after.append({})
                    self.is_word.append(False)
                here = self.after[here][byte]
            self.is_word[here] = True

    def step(self, node: int, byte: int) -> int:
        """The node after `byte`."""
        return self.after[node].get(byte, self.LEFT) if node >= 0 else self.LEFT

    def allows_end(self, node: int) -> bool:
        """Whether what was spelled is none of the words."""
        return node < 0 or not self.is_word[node]


def shortest_without(positions: list[Position], start: int, words: Words, node: int) -> int:
    """Fewest bytes from `start`, in the flat body of an EXCEPT at a trie node, to its end."""
    best = {(start, node): 0}
    heap = [(0, start, node)]
    while heap:
        length, here, at = heapq.heappop(heap)
        position = positions[here]
        following: list[tuple[int, int, int]] = []
        if position.op is Op.RETURN:
            if words.allows_end(at):
                return length
        elif position.op is Op.BYTES:
            told_apart = list(words.after[at]) if at >= 0 else []
            others = position.mask & ~sum(1 << byte for byte in told_apart)
            following = [(length + 1, position.next, words.step(at, b)) for b in told_apart if position.mask >> b & 1]
            if others:
                following.append((length + 1, position.next, Words.LEFT))
        else:
            targets = position.targets if position.op is Op.SPLIT else (position.body,)
            following = [(length, target, at) for target in targets]
        for entry in following:
            if entry[0] < best.get(entry[1:], 1 << 60):
                best[entry[1:]] = entry[0]
                heapq.heappush(heap, entry)
    raise GrammarError("a text that must differ from some words can only be one of them")
