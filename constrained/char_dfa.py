"""Deterministic finite automata over characters: made from patterns and words, intersected, complemented, listed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TypeVar

from .char_machine import Recognizer
from .char_symbols import Symbols, union
from .code_points import CodePoints
from .errors import GrammarLimitError
from .regex_tree import Pattern

_MAX_STATES = 20_000
_MAX_TABLE = 500_000
_MINIMISED_STATES = 256

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class CharDfa:
    """A complete automaton; state 0 is its start.

    Attributes:
        symbols: what it tells apart.
        steps: for each state, the state after each symbol.
        accepting: for each state, whether the text may end there.
    """

    symbols: Symbols
    steps: tuple[tuple[int, ...], ...]
    accepting: tuple[bool, ...]

    def complement(self) -> CharDfa:
        """The texts that this one does not accept."""
        return CharDfa(self.symbols, self.steps, tuple(not end for end in self.accepting))

    def accepts(self, text: str) -> bool:
        """Whether `text` is accepted."""
        state = 0
        for char in text:
            state = self.steps[state][self.symbols.symbol(char)]
        return self.accepting[state]

    def live(self) -> list[bool]:
        """For each state, whether some text leads from it to an end."""
        before: list[list[int]] = [[] for _ in self.steps]
        for state, row in enumerate(self.steps):
            for target in set(row):
                before[target].append(state)
        live = list(self.accepting)
        todo = [state for state, end in enumerate(live) if end]
        while todo:
            for state in before[todo.pop()]:
                if not live[state]:
                    live[state] = True
                    todo.append(state)
        return live


@dataclass(frozen=True, slots=True, eq=False)
class Trimmed:
    """The live part of an automaton, with characters grouped by where they lead; state 0 is its start.

    Attributes:
        edges: for each state (characters, state after them); no two of a state share a character.
        accepting: for each state, whether the text may end there. No states at all: nothing is accepted.
    """

    edges: tuple[tuple[tuple[CodePoints, int], ...], ...]
    accepting: tuple[bool, ...]

    def lengths(self) -> tuple[int, int | None]:
        """Fewest and most characters of its texts, of which there are some; None is unbounded."""
        front, least = {0}, 0
        while not any(self.accepting[state] for state in front):
            front = {target for state in front for _, target in self.edges[state]}
            least += 1
        order = self._topological()
        if order is None:
            return least, None
        most = [0] * len(self.edges)
        for state in reversed(order):
            most[state] = max((most[target] + 1 for _, target in self.edges[state]), default=0)
        return least, most[0]

    def _topological(self) -> list[int] | None:
        """Its states, each before those that it leads to; None where there is a cycle."""
        waiting = [0] * len(self.edges)
        for row in self.edges:
            for _, target in row:
                waiting[target] += 1
        order = [state for state, count in enumerate(waiting) if not count]
        for state in order:
            for _, target in self.edges[state]:
                waiting[target] -= 1
                if not waiting[target]:
                    order.append(target)
        return order if len(order) == len(self.edges) else None


def pattern_dfa(tree: Pattern, *, search: bool) -> CharDfa:
    """The automaton of the texts in which `tree` is found, or, if not `search`, which it matches in full.

    Raises:
        GrammarLimitError: it would be too large.
    """
    recognizer = Recognizer(tree, search=search)
    machine = recognizer.machine
    return _explored(recognizer.symbols, recognizer.start, machine.step, machine.accepts)


def words_dfa(words: Iterable[str]) -> CharDfa:
    """The automaton of exactly `words`."""
    words = list(words)
    symbols = Symbols(CodePoints.from_text(char) for char in dict.fromkeys("".join(words)))
    size = len(symbols)
    steps: list[list[int]] = [[1] * size, [1] * size]  # state 1 is the one from which nothing is accepted
    accepting = [False, False]
    for word in words:
        state = 0
        for char in word:
            symbol = symbols.symbol(char)
            if steps[state][symbol] == 1:
                steps[state][symbol] = len(steps)
                steps.append([1] * size)
                accepting.append(False)
            state = steps[state][symbol]
        accepting[state] = True
    return CharDfa(symbols, tuple(map(tuple, steps)), tuple(accepting))


def intersection(automata: Items[CharDfa]) -> CharDfa:
    """The texts that all of `automata` accept.

    Raises:
        GrammarLimitError: it would be too large.
    """
    if len(automata) == 1:
        return automata[0]
    live = [automaton.live() for automaton in automata]
    symbols = Symbols(chars for automaton in automata for chars in automaton.symbols.sets)
    own = [[automaton.symbols.symbol(chr(chars.ranges[0][0])) for chars in symbols.sets] for automaton in automata]
    columns = list(zip(*own, strict=True))
    dead = (-1,)

    def step(state: tuple[int, ...]) -> Items[tuple[int, ...]]:
        if state == dead:
            return [dead] * len(columns)
        rows = [automaton.steps[part] for automaton, part in zip(automata, state, strict=True)]
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        return [known.get(column) or known.setdefault(column, after(rows, column)) for column in columns]

    def after(rows: list[tuple[int, ...]], column: tuple[int, ...]) -> tuple[int, ...]:
        target = tuple(row[symbol] for row, symbol in zip(rows, column, strict=True))
        return target if all(alive[part] for alive, part in zip(live, target, strict=True)) else dead

    def accepts(state: tuple[int, ...]) -> bool:
        return state != dead and all(automaton.accepting[part] for automaton, part in zip(automata, state, strict=True))

    return _explored(symbols, (0,) * len(automata), step, accepts)


def _explored(
    symbols: Symbols, start: State, step: Callable[[State], Items[State]], accepts: Callable[[State], bool]
) -> CharDfa:
    """All states that can be reached from `start`."""
    numbers: dict[State, int] = {start: 0}
    order = [start]
    steps: list[tuple[int, ...]] = []
    for state in order:  # grows while it is walked
        row = step(state)
        for target in row:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        steps.append(tuple([numbers[target] for target in row]))
        if len(order) > _MAX_STATES or len(order) * len(row) > _MAX_TABLE:
            raise GrammarLimitError(
                f"the automaton of a set of strings needs more than {min(_MAX_STATES, _MAX_TABLE // len(row))} states"
            )
    return minimised(CharDfa(symbols, tuple(steps), tuple(accepts(state) for state in order)))


def minimised(automaton: CharDfa) -> CharDfa:
    """The smallest automaton of the same texts; one of very many states as it is. Source: Moore, 1956."""
    if len(automaton.steps) > _MINIMISED_STATES:
        return automaton
    classes = [int(end) for end in automaton.accepting]
    count = len(set(classes))
    while True:
        seen: dict[tuple[int, ...], int] = {}
        classes = [
            seen.setdefault((classes[state], *[classes[target] for target in row]), len(seen))
            for state, row in enumerate(automaton.steps)
        ]
        if len(seen) == count:
            break
        count = len(seen)
    if count == len(automaton.steps):
        return automaton
    firsts: dict[int, int] = {}  # of each class; the classes are numbered as their first states are
    for state, found in enumerate(classes):
        firsts.setdefault(found, state)
    steps = tuple(tuple(classes[target] for target in automaton.steps[state]) for state in firsts.values())
    return CharDfa(automaton.symbols, steps, tuple(automaton.accepting[state] for state in firsts.values()))


def trimmed(automaton: CharDfa) -> Trimmed:
    """The live part of `automaton`."""
    live = automaton.live()
    if not live[0]:
        return Trimmed((), ())
    numbers = {state: number for number, state in enumerate(state for state, alive in enumerate(live) if alive)}
    return Trimmed(
        tuple(_grouped(automaton, state, numbers) for state in numbers),
        tuple(automaton.accepting[state] for state in numbers),
    )


def _grouped(automaton: CharDfa, state: int, numbers: dict[int, int]) -> tuple[tuple[CodePoints, int], ...]:
    targets: dict[int, list[CodePoints]] = {}
    for symbol, target in enumerate(automaton.steps[state]):
        if target in numbers:
            targets.setdefault(numbers[target], []).append(automaton.symbols.sets[symbol])
    return tuple((union(frozenset(sets)), target) for target, sets in targets.items())
