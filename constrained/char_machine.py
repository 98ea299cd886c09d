"""Regular expressions, lookaround and all, as deterministic machines over characters that are made as they are used.

A state is a set of threads, as in Thompson's simulation. A thread that passed a lookahead owes it: the lookahead's own
machine follows the text beside the thread, which dies once that machine decides against it. So conjunction and
complement need no automaton of their own. What came before a place (its start, the last character, whether a
lookbehind's machine has just matched) is the same for all threads: the state's context.

Source: Thompson, "Regular expression search algorithm", 1968; Chandra, Kozen and Stockmeyer, "Alternation", 1981.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .char_program import CharProgram, Instruction, Op, char_programs
from .char_symbols import Symbols
from .errors import GrammarLimitError
from .regex_tree import Pattern

DEAD = 0
"""The state from which nothing matches."""
DONE = 1
"""The state from which everything matches."""

_AT_END = -1
_MAX_WORK = 1_000_000

Debt = tuple[int, bool, int]  # program of a lookahead, whether it is negated, the state of its machine
Debts = frozenset[Debt]
Thread = tuple[int, Debts]  # an instruction, and what must come true
_FREE: Debts = frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the text before a place.

    Attributes:
        at_start: nothing came before; always False where no instruction asks.
        words: bit i says whether the last character is of the i-th set of word characters.
        behind: the states of the machines of the lookbehinds.
    """

    at_start: bool
    words: int
    behind: tuple[int, ...]


class Machine:
    """The deterministic machine of one program, over the symbols of all programs of its pattern.

    States are numbers: `DEAD`, `DONE`, and those that `initial` and `step` give.
    """

    def __init__(self, shared: Shared, program: CharProgram, whole: bool) -> None:
        """`whole`: a match ends with the text, or where it is asked for; else whatever follows is allowed."""
        self._shared = shared
        self._code = program.instructions
        self._entry = program.entry
        self._whole = whole
        self._states: list[tuple[Context, frozenset[Thread]]] = [(shared.blank, frozenset())] * 2
        self._ids: dict[tuple[Context, frozenset[Thread]], int] = {}
        self._steps: dict[int, tuple[int, ...]] = {DEAD: (DEAD,) * len(shared.symbols)}
        self._accepts: dict[int, bool] = {DEAD: False, DONE: True}
        self._steps[DONE] = (DONE,) * len(shared.symbols)

    def __len__(self) -> int:
        return len(self._states)

    def initial(self, context: Context) -> int:
        """The state before anything was taken, at a place of `context`."""
        return self._id(context, {(self._entry, _FREE)})

    def step(self, state: int) -> tuple[int, ...]:
        """The state after each symbol."""
        known = self._steps.get(state)
        if known is None:
            known = self._steps[state] = self._expanded(state)
        return known

    def accepts(self, state: int) -> bool:
        """Whether the text may end here."""
        known = self._accepts.get(state)
        if known is None:
            _, matches = self._closure(state, _AT_END)
            known = self._accepts[state] = any(self._shared.settled(debts) for debts in matches)
        return known

    def _id(self, context: Context, threads: set[Thread]) -> int:
        if not threads:
            return DEAD
        free = {place for place, debts in threads if not debts}
        if not self._whole and 0 in free:
            return DONE
        key = context, frozenset(each for each in threads if not each[1] or each[0] not in free)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._states)
            self._states.append(key)
        return known

    def _expanded(self, state: int) -> tuple[int, ...]:
        context, _ = self._states[state]
        after: list[int] = [DEAD] * len(self._shared.symbols)
        for kind, symbols in self._shared.kinds.items():
            takers, matches = self._closure(state, kind)
            if not self._whole:
                if _FREE in matches:
                    for symbol in symbols:
                        after[symbol] = DONE
                    continue
                takers += [(symbols, (0, debts)) for debts in matches]
            threads = self._moved(takers, set(symbols))
            for symbol, found in threads.items():
                after[symbol] = self._id(self._shared.following(context, symbol), found)
        return tuple(after)

    def _moved(self, takers: list[tuple[tuple[int, ...], Thread]], symbols: set[int]) -> dict[int, set[Thread]]:
        threads: dict[int, set[Thread]] = {}
        for taken, (place, debts) in takers:
            self._shared.work(len(taken))
            for symbol in taken:
                if symbol in symbols:
                    left = self._shared.owed(debts, symbol) if debts else debts
                    if left is not None:
                        threads.setdefault(symbol, set()).add((place, left))
        return threads

    def _closure(self, state: int, kind: int) -> tuple[list[tuple[tuple[int, ...], Thread]], list[Debts]]:
        """What may take a character of `kind` (symbols, the thread after it), and the debts of threads that match."""
        context, threads = self._states[state]
        todo = list(threads)
        seen = set(todo)
        takers: list[tuple[tuple[int, ...], Thread]] = []
        matches: list[Debts] = []
        while todo:
            place, debts = todo.pop()
            instruction = self._code[place]
            if instruction.op is Op.CHARS:
                takers.append((self._shared.symbols.of(instruction.chars), (instruction.targets[0], debts)))
                continue
            if instruction.op is Op.MATCH:
                matches.append(debts)
                continue
            if instruction.op is Op.AHEAD:
                debts |= {(instruction.program, instruction.negated, self._shared.begun(instruction, context))}
            elif instruction.op is not Op.SPLIT and not self._shared.holds(instruction, context, kind):
                continue
            for target in instruction.targets:
                if (target, debts) not in seen:
                    seen.add((target, debts))
                    todo.append((target, debts))
        self._shared.work(len(seen))
        return takers, matches


class Shared:
    """What the machines of one pattern have in common.

    Attributes:
        symbols: what the pattern tells apart.
        kinds: symbols by the mask of the sets of word characters that they are in.
        blank: the context of nothing.
    """

    def __init__(self, programs: list[CharProgram], whole: bool) -> None:
        """`whole` is of the first program; the others match in front of, or behind, any place."""
        code = [each for program in programs for each in program.instructions]
        self._words = tuple(dict.fromkeys(each.chars for each in code if each.op is Op.BOUNDARY))
        self.symbols = Symbols([*(each.chars for each in code if each.op is Op.CHARS), *self._words])
        members = [set(self.symbols.of(word)) for word in self._words]
        self._kinds = [
            sum((symbol in found) << index for index, found in enumerate(members))
            for symbol in range(len(self.symbols))
        ]
        self.kinds: dict[int, tuple[int, ...]] = {}
        for symbol, kind in enumerate(self._kinds):
            self.kinds[kind] = (*self.kinds.get(kind, ()), symbol)
        self._asks_start = any(
            each.op is Op.START or (each.op is Op.BOUNDARY and not each.sees_nothing) for each in code
        )
        self.blank = Context(at_start=False, words=0, behind=())
        self._owed: dict[tuple[Debts, int], Debts | None] = {}
        self._contexts: dict[int, Context] = {}  # by kind, where nothing looks behind
        self._work = 0
        self.machines = [
            Machine(self, program, whole if index == 0 else program.behind) for index, program in enumerate(programs)
        ]
        self._behind = tuple(index for index, program in enumerate(programs) if program.behind)
        self._first = Context(self._asks_start, 0, ())

    def start(self) -> Context:
        """The context of the beginning of the text."""
        behind = tuple(self.machines[index].initial(self._first) for index in self._behind)
        return Context(self._asks_start, 0, behind)

    def following(self, context: Context, symbol: int) -> Context:
        """The context after one more character. The machines of lookbehinds know no lookbehinds themselves."""
        kind = self._kinds[symbol]
        if not self._behind:
            known = self._contexts.get(kind)
            if known is None:
                known = self._contexts[kind] = Context(at_start=False, words=kind, behind=())
            return known
        behind = tuple(
            self.machines[index].step(state)[symbol] for index, state in zip(self._behind, context.behind, strict=False)
        )
        return Context(at_start=False, words=kind, behind=behind)

    def begun(self, instruction: Instruction, context: Context) -> int:
        """The state of a lookahead's machine at a place of `context`."""
        return self.machines[instruction.program].initial(context)

    def holds(self, instruction: Instruction, context: Context, kind: int) -> bool:
        """Whether a condition is true at a place of `context` before a character of `kind`."""
        match instruction.op:
            case Op.START:
                return context.at_start
            case Op.END:
                return kind == _AT_END
            case Op.BOUNDARY:
                return self._is_boundary(instruction, context, kind)
            case _:
                state = context.behind[self._behind.index(instruction.program)]
                return self.machines[instruction.program].accepts(state) != instruction.negated

    def _is_boundary(self, instruction: Instruction, context: Context, kind: int) -> bool:
        index = self._words.index(instruction.chars)
        after = 0 if kind == _AT_END else kind >> index & 1
        if instruction.negated and not instruction.sees_nothing and context.at_start and kind == _AT_END:
            return False
        return (context.words >> index & 1 != after) != instruction.negated

    def owed(self, debts: Debts, symbol: int) -> Debts | None:
        """What is left of `debts` after a character; None where one of them cannot come true any more."""
        key = debts, symbol
        if key not in self._owed:
            self._owed[key] = self._left(debts, symbol)
        return self._owed[key]

    def _left(self, debts: Debts, symbol: int) -> Debts | None:
        left: set[Debt] = set()
        for program, negated, state in debts:
            following = self.machines[program].step(state)[symbol]
            if following == (DONE if negated else DEAD):
                return None
            if following not in (DEAD, DONE):
                left.add((program, negated, following))
        return frozenset(left)

    def settled(self, debts: Debts) -> bool:
        """Whether all of `debts` are true where the text ends."""
        return all(self.machines[program].accepts(state) != negated for program, negated, state in debts)

    def work(self, amount: int) -> None:
        """Count steps, and raise `GrammarLimitError` once they are too many."""
        self._work += amount
        if self._work > _MAX_WORK:
            raise GrammarLimitError(f"a regular expression needs more than {_MAX_WORK} steps to be made deterministic")


class Recognizer:
    """Says of one text after another whether a pattern matches it. Threads may share it."""

    def __init__(self, tree: Pattern, *, search: bool) -> None:
        """`search`: it may match anywhere in the text; else the whole text must match.

        Raises:
            GrammarLimitError: counts that multiply to too much.
        """
        self._shared = Shared(char_programs(tree, search=search), whole=not search)
        self.machine = self._shared.machines[0]
        self.start = self.machine.initial(self._shared.start())
        self.symbols = self._shared.symbols
        self._lock = threading.Lock()  # the machine grows while it is followed

    def matches(self, text: str) -> bool:
        """Whether the pattern matches `text`.

        Raises:
            GrammarLimitError: after too many different texts.
        """
        with self._lock:
            state = self.start
            for char in text:
                state = self.machine.step(state)[self.symbols.symbol(char)]
                if state in (DEAD, DONE):
                    break
            return self.machine.accepts(state)
