"""Deterministic finite automata over characters: made from patterns and words, intersected, complemented, listed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .char_machine import Recognizer
from .char_symbols import Symbols, union
from .code_points import CodePoints
from .errors import GrammarLimitError
from .regex_tree import Pattern

_MAX_STATES = 20_000
_MAX_TABLE = 500_000
_MINIMISED_STATES = 2048
_MAX_CODE = 1 << 62
_DEAD = -1

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
    first, *others = automata
    while others:
        together, size = [first], len(first.steps)
        while others and size * len(others[0].steps) < _MAX_CODE:
            size *= len(others[0].steps)
            together.append(others.pop(0))
        first = _product(together)
    return first


def _product(automata: Items[CharDfa]) -> CharDfa:
    """The intersection of few automata: each of its states is a number, made of those of theirs."""
    symbols = Symbols(chars for automaton in automata for chars in automaton.symbols.sets)
    tables = []
    for automaton in automata:
        own = [automaton.symbols.symbol(chr(chars.ranges[0][0])) for chars in symbols.sets]
        tables.append(np.array(automaton.steps, np.int64)[:, own])
    live = [np.array(automaton.live()) for automaton in automata]
    sizes = [len(table) for table in tables]
    numbers: dict[int, int] = {0: 0}  # by code of a state; `_DEAD` for all from which nothing is accepted
    rows: list[NDArray[np.int64]] = []
    front = np.zeros(1, np.int64)
    codes = [front]
    while len(front):
        parts = np.unravel_index(front, sizes)
        after = [table[part] for table, part in zip(tables, parts, strict=True)]
        targets = np.ravel_multi_index(after, sizes)
        for alive, part in zip(live, after, strict=True):
            targets[~alive[part]] = _DEAD
        found, places = np.unique(targets, return_inverse=True)
        fresh = [code for code in found.tolist() if code not in numbers and code != _DEAD]
        numbers.update(zip(fresh, range(len(numbers), len(numbers) + len(fresh)), strict=True))
        own_numbers = np.array([numbers.get(code, _DEAD) for code in found.tolist()], np.int64)
        rows.append(own_numbers[places].reshape(targets.shape))
        front = np.array(fresh, np.int64)
        codes.append(front)
        _check_size(len(numbers), len(symbols))
    return minimised(_with_dead(symbols, rows, np.concatenate(codes), sizes, automata))


def _with_dead(
    symbols: Symbols,
    rows: list[NDArray[np.int64]],
    codes: NDArray[np.int64],
    sizes: list[int],
    automata: Items[CharDfa],
) -> CharDfa:
    """The automaton of these rows, with one state more for `_DEAD`."""
    steps = np.concatenate([*rows, np.full((1, len(symbols)), _DEAD, np.int64)])
    steps[steps == _DEAD] = len(codes)
    ends = np.ones(len(codes), np.bool_)
    for automaton, part in zip(automata, np.unravel_index(codes, sizes), strict=True):
        ends &= np.array(automaton.accepting)[part]
    return CharDfa(symbols, tuple(map(tuple, steps.tolist())), (*ends.tolist(), False))


def _check_size(states: int, symbols: int) -> None:
    if states > _MAX_STATES or states * symbols > _MAX_TABLE:
        raise GrammarLimitError(
            f"the automaton of a set of strings needs more than {min(_MAX_STATES, _MAX_TABLE // symbols)} states"
        )


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
        _check_size(len(order), len(row))
    return minimised(CharDfa(symbols, tuple(steps), tuple(accepts(state) for state in order)))


def minimised(automaton: CharDfa) -> CharDfa:
    """The smallest automaton of the same texts; one of very many states as it is. Source: Moore, 1956."""
    if len(automaton.steps) > _MINIMISED_STATES:
        return automaton
    table = np.array(automaton.steps, np.int64)
    classes, firsts = _classes(table, np.array(automaton.accepting, np.int64))
    if len(firsts) == len(table):
        return automaton
    order = np.argsort(firsts)  # the classes are numbered as their first states are
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    kept = firsts[order]
    steps = numbers[classes[table[kept]]].tolist()
    return CharDfa(automaton.symbols, tuple(map(tuple, steps)), tuple(automaton.accepting[state] for state in kept))


def _classes(table: NDArray[np.int64], classes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The coarsest refinement of `classes` that no step of `table` tells apart, and the first state of each class.

    Rows are compared by sums with random factors. Two that differ may be taken for the same, so the result is checked,
    and in that case found with other factors.
    """
    random = np.random.default_rng(0)
    while True:
        factors = random.integers(1, 2**63, table.shape[1] + 1, np.uint64)
        found = classes
        count = 0
        while True:
            sums = found[table].astype(np.uint64) @ factors[1:] + found.astype(np.uint64) * factors[0]
            _, firsts, found = np.unique(sums, return_index=True, return_inverse=True)
            if len(firsts) == count:
                break
            count = len(firsts)
        rows = found[table]
        if (rows == rows[firsts[found]]).all() and (classes == classes[firsts[found]]).all():
            return found, firsts


def trimmed(automaton: CharDfa) -> Trimmed:
    """The live part of `automaton`."""
    live = automaton.live()
    if not live[0]:
        return Trimmed((), ())
    numbers = {state: number for number, state in enumerate(state for state, alive in enumerate(live) if alive)}
    unions: dict[tuple[int, ...], CodePoints] = {}
    return Trimmed(
        tuple(_grouped(automaton, state, numbers, unions) for state in numbers),
        tuple(automaton.accepting[state] for state in numbers),
    )


def _grouped(
    automaton: CharDfa, state: int, numbers: dict[int, int], unions: dict[tuple[int, ...], CodePoints]
) -> tuple[tuple[CodePoints, int], ...]:
    targets: dict[int, list[int]] = {}
    for symbol, target in enumerate(automaton.steps[state]):
        targets.setdefault(target, []).append(symbol)
    edges = []
    for target, symbols in targets.items():
        if target in numbers:
            key = tuple(symbols)
            chars = unions.get(key)
            if chars is None:
                chars = unions[key] = union(frozenset(automaton.symbols.sets[symbol] for symbol in symbols))
            edges.append((chars, numbers[target]))
    return tuple(edges)
