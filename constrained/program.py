"""Rules flattened to positions, the instructions that the automaton follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

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
    """

    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    masks: NDArray[np.int64]
    start: int
    graphs: dict[int, Graph]
    words: dict[int, frozenset[bytes]]
    rules: int


def build_program(grammar: Rules, limits: CompileLimits, deadline: Deadline, alphabet: int = ALL_BYTES) -> Program:
    """Flatten the rules that the start rule needs, over the bytes of `alphabet` (bit b: byte b).

    Raises:
        GrammarLimitError: too many rules, positions or needed repetitions, or out of time.
        GrammarError: a reference to no rule, or impossible bounds.
    """
    builder = _Builder(grammar, limits, deadline, alphabet)
    builder.build()
    return builder.program()


_Task = tuple[Node, int, int, int]  # node, the position that does it, the one after it, flags of its bytes


class _Builder:
    def __init__(self, grammar: Rules, limits: CompileLimits, deadline: Deadline, alphabet: int) -> None:
        self._rules = grammar.rules
        self._start = grammar.start
        self._limits = limits
        self._deadline = deadline
        self._alphabet = alphabet
        self._positions: list[tuple[int, ...]] = [_row(Op.RETURN)]
        self._targets: list[int] = []
        self._masks: dict[int, int] = {0: 0}
        self._entries: dict[str, int] = {}
        self._new_rules: list[str] = []
        self._todo: list[_Task] = []
        self._graphs: dict[int, Graph] = {}
        self._words: dict[int, frozenset[bytes]] = {}

    def build(self) -> None:
        self._entry(self._start)
        while self._new_rules:
            name = self._new_rules.pop()
            self._todo.append((self._rules[name], self._entries[name], RETURN, 0))
            while self._todo:
                self._place(*self._todo.pop())
            self._limits.check("positions", len(self._positions), "the grammar's positions")
            self._deadline.check()

    def program(self) -> Program:
        masks = b"".join(mask.to_bytes(32, "little") for mask in self._masks)
        return Program(
            np.array(self._positions, np.int64),
            np.array(self._targets or [0], np.int64),
            np.frombuffer(masks, "<i8").reshape(-1, 4).astype(np.int64),
            self._entries[self._start],
            self._graphs,
            self._words,
            len(self._entries),
        )

    def _entry(self, name: str) -> int:
        known = self._entries.get(name)
        if known is None:
            if name not in self._rules:
                raise GrammarError(f"there is no rule {name!r}")
            known = self._entries[name] = self._new()
            self._new_rules.append(name)
            self._limits.check("rules", len(self._entries), "the grammar's rules")
        return known

    def _new(self) -> int:
        self._positions.append(_NOTHING)
        return len(self._positions) - 1

    def _later(self, node: Node, then: int, flags: int) -> int:
        entry = self._new()
        self._todo.append((node, entry, then, flags))
        return entry

    def _mask(self, mask: int) -> int:
        return self._masks.setdefault(mask & self._alphabet, len(self._masks))

    def _split(self, entry: int, targets: Iterable[int], loops: int = 0) -> None:
        first = len(self._targets)
        self._targets.extend(targets)
        count = len(self._targets) - first
        self._positions[entry] = _row(Op.SPLIT, targets=first, count=count, loops=loops)

    def _place(self, node: Node, entry: int, then: int, flags: int) -> None:
        """Make position `entry` do `node` and go on at `then`."""
        kind = type(node)  # not `match`: this is the inner loop of a compilation
        if kind is Literal:
            self._place_literal(node.value, entry, then, flags)  # type: ignore[union-attr]  # `kind is` does not narrow
        elif kind is Sequence:
            self._place_sequence(node.parts, entry, then, flags)  # type: ignore[union-attr]  # as above
        elif kind is RuleRef:
            body = self._entry(node.name)  # type: ignore[union-attr]  # as above
            self._positions[entry] = _row(Op.CALL, then, body)
        elif kind is Choice:
            options = node.options  # type: ignore[union-attr]  # as above
            self._split(entry, [self._later(option, then, flags) for option in options])
        elif kind is ByteClass:
            mask = self._mask(node.mask)  # type: ignore[union-attr]  # as above
            self._positions[entry] = _row(Op.BYTES, then, mask=mask, flags=flags)
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
                self._positions[entry] = _row(Op.EXCEPT, then, self._later(body, RETURN, flags), -1)
            case Graph(_, bodies, _):
                self._graphs[entry] = node
                first = len(self._targets)
                self._targets.extend([self._later(body, RETURN, flags) for body in bodies])
                self._positions[entry] = _row(Op.GRAPH, then, targets=first, count=len(bodies))
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
        if not value:
            self._split(entry, (then,))
            return
        positions = self._positions
        for byte in value[:-1]:
            following = len(positions)
            positions[entry] = _row(Op.BYTES, following, mask=self._mask(1 << byte), flags=flags)
            positions.append(_NOTHING)
            entry = following
        positions[entry] = _row(Op.BYTES, then, mask=self._mask(1 << value[-1]), flags=flags)

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
            self._positions[entry] = _row(Op.REPEAT, then, body, least, high)


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


_NOTHING = _row(Op.SPLIT)  # goes nowhere
