"""Rules flattened to positions, the instructions that the automaton follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .errors import GrammarError
from .limits import CompileLimits, Deadline
from .rules import (
    ALL_BYTES,
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

RETURN = 0  # the one position that ends every rule, counted round, edge of a graph and text with words left out
INFINITE = 1 << 40  # the length of what matches nothing; above every finite one
UNBOUNDED = -1


class Op(IntEnum):
    """What happens at a position. kernels of machine.py know these numbers."""

    BYTES = 0  # take one byte of the mask, go to NEXT
    SPLIT = 1  # go to each target, taking nothing
    CALL = 2  # do the rule at BODY, then go to NEXT
    REPEAT = 3  # do BODY LOW to HIGH times, then go to NEXT
    RETURN = 4
    GRAPH = 5  # go through a graph from its state LOW, then to NEXT; targets are the first positions of its bodies
    EXCEPT = 6  # do BODY, flat, unless it spells a word of the trie at LOW (made when first needed), then go to NEXT


class Field(IntEnum):
    """Columns of `Program.positions`."""

    OP = 0
    NEXT = 1
    BODY = 2
    LOW = 3
    HIGH = 4  # UNBOUNDED for none
    TARGETS = 5  # where in `Program.targets` its targets begin
    COUNT = 6  # how many targets
    MASK = 7  # row of `Program.masks`
    FLAGS = 8
    LOOPS = 9  # 1 for the SPLIT of an unbounded loop


@dataclass(frozen=True, slots=True)
class Program:
    """Positions of a whole grammar.

    Attributes:
        positions: [positions, fields] int64, by `Field`; ``positions[RETURN]`` is the one return.
        targets: [targets] int64 positions.
        masks: [masks, 4] int64, sets of bytes: bit ``b % 64`` of word ``b // 64`` is byte b.
        start: the first position of the start rule.
        graphs: by position, the graph of each GRAPH.
        words: by position, the words of each EXCEPT.
        rules: how many rules were reached.
        flags: of all bytes (rules.py), joined.
    """

    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    masks: NDArray[np.int64]
    start: int
    graphs: dict[int, Graph]
    words: dict[int, frozenset[bytes]]
    rules: int
    flags: int


def build_program(grammar: Rules, limits: CompileLimits, deadline: Deadline, alphabet: int = ALL_BYTES) -> Program:
    """Flatten the rules that the start rule needs, over the bytes of `alphabet` (bit b: byte b).

    Raises:
        GrammarLimitError: too many rules, positions or needed repetitions, or out of time.
        GrammarError: a reference to no rule, or impossible bounds.
    """
    builder = _Builder(grammar, limits, deadline, alphabet)
    if grammar.common:
        builder.begin(_common(grammar.common, alphabet))
    builder.build((grammar.start,))
    return builder.program(grammar.start)


_commons: dict[tuple[int, int], tuple[Mapping[str, Node], _Builder]] = {}
_MOST_COMMONS = 16


def _common(rules: Mapping[str, Node], alphabet: int) -> _Builder:
    """What has placed all of `rules`, once for every mapping that grammars have in common."""
    key = id(rules), alphabet
    known = _commons.get(key)
    if known is None or known[0] is not rules:
        limits = CompileLimits(seconds=math.inf)
        builder = _Builder(Rules("", rules), limits, Deadline(limits), alphabet)
        builder.build(rules)
        builder.flatten()
        builder.find_flags()
        if len(_commons) >= _MOST_COMMONS:
            _commons.clear()
        known = _commons[key] = rules, builder  # with the rules, whose id() may not come again
    return known[1]


_Task = tuple[Node, int, int, int]  # node, the position that does it, the one after it, flags of its bytes
_Row = tuple[int, ...]  # a position, and its fields


class _Builder:
    def __init__(self, grammar: Rules, limits: CompileLimits, deadline: Deadline, alphabet: int) -> None:
        self._rules = grammar.rules
        self._limits = limits
        self._deadline = deadline
        self._alphabet = alphabet
        self._flat = np.array([_row(Op.RETURN)], np.int64)  # positions that are done
        self._count = 1  # of positions
        self._rows: list[_Row] = []
        self._literals: list[tuple[bytes, int, int, int, int]] = []  # value, first, second and next position, flags
        self._targets: list[int] = []
        self._masks: dict[int, int] = {0: 0}
        self._placed: dict[tuple[int, int, int], int] = {}  # by id() of a node, the position after it and flags
        self._entries: dict[str, int] = {}
        self._new_rules: list[str] = []
        self._todo: list[_Task] = []
        self._graphs: dict[int, Graph] = {}
        self._words: dict[int, frozenset[bytes]] = {}
        self._common_flags: dict[str, int] = {}  # by rule that was placed before, of all that it may come to
        self._flags = 0

    def begin(self, other: _Builder) -> None:
        """Begin with what `other` has placed."""
        self._flat, self._count = other._flat, other._count
        self._targets = other._targets.copy()
        self._masks = other._masks.copy()
        self._entries = other._entries.copy()
        self._graphs = other._graphs.copy()
        self._words = other._words.copy()
        self._common_flags = other._common_flags

    def build(self, names: Iterable[str]) -> None:
        """Place the rules `names`, and all that they need."""
        for name in names:
            self._entry(name)
        while self._new_rules:
            name = self._new_rules.pop()
            self._todo.append((self._rules[name], self._entries[name], RETURN, 0))
            while self._todo:
                self._place(*self._todo.pop())
            self._limits.check("positions", self._count, "the grammar's positions")
            self._deadline.check()

    def flatten(self) -> None:
        """Write down all positions so far."""
        positions = np.zeros((self._count, len(Field)), np.int64)
        positions[:, Field.OP] = Op.SPLIT  # of nothing, until filled in
        positions[: len(self._flat)] = self._flat
        flat = np.fromiter(chain.from_iterable(self._rows), np.int64, len(self._rows) * (len(Field) + 1))
        rows = flat.reshape(-1, len(Field) + 1)
        positions[rows[:, 0]] = rows[:, 1:]
        if self._literals:
            self._fill_literals(positions)
        self._flat = positions
        self._rows, self._literals = [], []

    def find_flags(self) -> None:
        """Find the flags of each rule that was placed, for those who begin with them."""
        for name, entry in self._entries.items():
            seen, todo = {entry}, [entry]
            for here in todo:  # grows while it is walked
                row = self._flat[here]
                first = int(row[Field.TARGETS])
                following = {int(row[Field.NEXT]), int(row[Field.BODY])}
                following.update(self._targets[first : first + int(row[Field.COUNT])])
                todo.extend(following - seen)
                seen |= following
            self._common_flags[name] = int(np.bitwise_or.reduce(self._flat[list(seen), Field.FLAGS]))

    def program(self, start: str) -> Program:
        """The program that begins with the rule `start`."""
        self.flatten()
        masks = b"".join(mask.to_bytes(32, "little") for mask in self._masks)
        return Program(
            self._flat,
            np.array(self._targets or [0], np.int64),
            np.frombuffer(masks, "<i8").reshape(-1, 4).astype(np.int64),
            self._entries[start],
            self._graphs,
            self._words,
            len(self._entries),
            self._flags | self._common_flags.get(start, 0),
        )

    def _fill_literals(self, positions: NDArray[np.int64]) -> None:
        """Write the positions of all literals at once: most of a grammar is names and other words."""
        values, *columns = zip(*self._literals, strict=True)
        first, second, then, flags = (np.array(column, np.int64) for column in columns)
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        last = np.cumsum(lengths) - 1
        begin = last - lengths + 1
        own = np.arange(last[-1] + 1) + np.repeat(second - 1 - begin, lengths)
        own[begin] = first
        following = np.empty_like(own)
        following[:-1] = own[1:]
        following[last] = then
        text = np.frombuffer(b"".join(values), np.uint8)
        masks = np.zeros(256, np.int64)
        for byte in np.unique(text).tolist():
            masks[byte] = self._mask(1 << byte)
        positions[own, Field.OP] = Op.BYTES
        positions[own, Field.NEXT] = following
        positions[own, Field.MASK] = masks[text]
        positions[own, Field.FLAGS] = np.repeat(flags, lengths)

    def _entry(self, name: str) -> int:
        known = self._entries.get(name)
        if known is None:
            if name not in self._rules:
                raise GrammarError(f"there is no rule {name!r}")
            known = self._entries[name] = self._new()
            self._new_rules.append(name)
            self._limits.check("rules", len(self._entries), "the grammar's rules")
        elif name in self._common_flags:
            self._flags |= self._common_flags[name]
        return known

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _later(self, node: Node, then: int, flags: int) -> int:
        """The position that does `node`: one for all places where the same goes on after the same node."""
        key = id(node), then, flags
        entry = self._placed.get(key)
        if entry is None:
            entry = self._placed[key] = self._new()
            self._todo.append((node, entry, then, flags))
        return entry

    def _mask(self, mask: int) -> int:
        return self._masks.setdefault(mask & self._alphabet, len(self._masks))

    def _split(self, entry: int, targets: Iterable[int], loops: int = 0) -> None:
        first = len(self._targets)
        self._targets.extend(targets)
        count = len(self._targets) - first
        self._rows.append((entry, 1, 0, 0, 0, 0, first, count, 0, 0, loops))  # as `_row` has it, but at once

    def _place(self, node: Node, entry: int, then: int, flags: int) -> None:
        """Make position `entry` do `node` and go on at `then`."""
        self._flags |= flags
        kind = type(node)  # not `match`: this is the inner loop of a compilation
        if kind is Literal:
            self._place_literal(node.value, entry, then, flags)  # type: ignore[union-attr]  # `kind is` does not narrow
        elif kind is Sequence:
            self._place_sequence(node.parts, entry, then, flags)  # type: ignore[union-attr]  # as above
        elif kind is RuleRef:
            body = self._entry(node.name)  # type: ignore[union-attr]  # as above
            self._rows.append((entry, 2, then, body, 0, 0, 0, 0, 0, 0, 0))  # as `_row` has it, but at once
        elif kind is Choice:
            options = node.options  # type: ignore[union-attr]  # as above
            self._split(entry, [self._later(option, then, flags) for option in options])
        elif kind is ByteClass:
            mask = self._mask(node.mask)  # type: ignore[union-attr]  # as above
            self._rows.append((entry, 0, then, 0, 0, 0, 0, 0, mask, flags, 0))  # as above
        else:
            self._place_rare(node, entry, then, flags)

    def _place_rare(self, node: Node, entry: int, then: int, flags: int) -> None:
        match node:
            case Repeat():
                self._place_repeat(node, entry, then, flags)
            case Flagged(body, more):
                self._todo.append((body, entry, then, flags | more))
            case Except(body, words):
                self._words[entry] = words
                self._rows.append((entry, *_row(Op.EXCEPT, then, self._later(body, RETURN, flags), -1)))
            case Graph(_, bodies, _):
                self._graphs[entry] = node
                first = len(self._targets)
                self._targets.extend([self._later(body, RETURN, flags) for body in bodies])
                self._rows.append((entry, *_row(Op.GRAPH, then, targets=first, count=len(bodies))))
            case _:
                raise TypeError(f"{node!r} is no node of a grammar")

    def _place_sequence(self, parts: tuple[Node, ...], entry: int, then: int, flags: int) -> None:
        if not parts:
            self._split(entry, (then,))
            return
        for part in parts[:-1]:
            following = self._new()
            self._todo.append((part, entry, following, flags))
            entry = following
        self._todo.append((parts[-1], entry, then, flags))

    def _place_literal(self, value: bytes, entry: int, then: int, flags: int) -> None:
        if value:
            self._literals.append((value, entry, self._count, then, flags))
            self._count += len(value) - 1
        else:
            self._split(entry, (then,))

    def _place_repeat(self, node: Repeat, entry: int, then: int, flags: int) -> None:
        least, most = node.min, node.max
        if least < 0 or (most is not None and most < least):
            raise GrammarError(f"a repetition of {least} to {most} times")
        self._limits.check("min_repeat", least, "a repetition's lower bound")
        if (least, most) == (0, 1):
            self._split(entry, (self._later(node.body, then, flags), then))
        elif (least, most) == (0, None):
            self._split(entry, (self._later(node.body, entry, flags), then), 1)
        elif (least, most) == (1, None):
            again = self._new()
            body = self._later(node.body, again, flags)
            self._split(again, (body, then), 1)
            self._split(entry, (body,))
        else:
            body = self._later(node.body, RETURN, flags)
            high = UNBOUNDED if most is None else min(most, 2**31 - 1)
            self._rows.append((entry, *_row(Op.REPEAT, then, body, least, high)))


def _row(
    op: Op,
    then: int = RETURN,
    body: int = RETURN,
    low: int = 0,
    high: int = 0,
    targets: int = 0,
    count: int = 0,
    mask: int = 0,
    flags: int = 0,
    loops: int = 0,
) -> tuple[int, ...]:
    """A row of `Program.positions`, in the order of `Field`."""
    return (op, then, body, low, high, targets, count, mask, flags, loops)
