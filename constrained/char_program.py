"""A regular expression's tree as a program for `char_machine.Machine`: instructions that take characters or look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .char_classes import NEWLINE
from .code_points import ANY, CodePoints
from .errors import GrammarLimitError
from .regex_tree import Alternation, Anchor, Boundary, Chars, Concat, Look, Pattern, Repetition, parts

_MAX_INSTRUCTIONS = 30_000
_HARD_END = Anchor("end", 0)
_LAST_NEWLINE = Look(Concat((Chars(NEWLINE), _HARD_END)), ahead=True, negated=False, offset=0)
_SOFT_END = Alternation((_HARD_END, _LAST_NEWLINE))


class Op(IntEnum):
    """What an instruction does before it goes on."""

    CHARS = 0  # takes a character of a set
    SPLIT = 1  # goes on anywhere of several
    START = 2  # only at the start of the text
    END = 3  # only at its end
    BOUNDARY = 4  # only where a word begins or ends, or only elsewhere
    AHEAD = 5  # only where another program matches what follows, or only elsewhere
    BEHIND = 6  # only where another program matches what came before, or only elsewhere
    MATCH = 7


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        op: what it does.
        targets: indices of the instructions after it.
        chars: the characters of CHARS; those of words for BOUNDARY.
        program: the other program's index, for AHEAD and BEHIND.
        negated: whether the condition is turned round.
        sees_nothing: see `Boundary`.
    """

    op: Op
    targets: tuple[int, ...] = ()
    chars: CodePoints = ANY
    program: int = 0
    negated: bool = False
    sees_nothing: bool = True


@dataclass(slots=True)
class CharProgram:
    """Instructions, and where they begin.

    Attributes:
        instructions: instruction 0 is the only MATCH.
        entry: index of the first.
        behind: whether this is the program of a lookbehind.
    """

    instructions: list[Instruction]
    entry: int
    behind: bool = False


def char_programs(tree: Pattern, *, search: bool) -> list[CharProgram]:
    """The program of `tree`, first, and those of all that it looks at.

    Args:
        tree: what to match.
        search: whether a match may begin anywhere.

    Raises:
        GrammarLimitError: counts that multiply to too many instructions.
    """
    return _Builder(tree).build(search)


class _Builder:
    def __init__(self, tree: Pattern) -> None:
        self._tree = tree
        self._programs: list[CharProgram] = []
        self._indices: dict[int, int] = {}  # of the program of a Look, by its id()
        self._code: list[Instruction] = []
        self._size = 0

    def build(self, search: bool) -> list[CharProgram]:
        found = parts(self._tree)
        looks = [part for part in found if isinstance(part, Look)]
        if any(isinstance(part, Anchor) and part.soft for part in found):
            looks.append(_LAST_NEWLINE)
        self._indices = {id(look): index for index, look in enumerate(looks, 1)}
        self._add(self._tree, search, behind=False)
        for look in looks:
            self._add(look.item, not look.ahead, behind=not look.ahead)
        return self._programs

    def _add(self, tree: Pattern, search: bool, behind: bool) -> None:
        self._code = [Instruction(Op.MATCH)]
        entry = self._place(tree, 0)
        if search:
            loop = self._new(Instruction(Op.SPLIT))
            any_char = self._new(Instruction(Op.CHARS, (loop,)))
            self._code[loop] = Instruction(Op.SPLIT, (any_char, entry))
            entry = loop
        self._programs.append(CharProgram(self._code, entry, behind))

    def _new(self, instruction: Instruction) -> int:
        self._size += 1
        if self._size > _MAX_INSTRUCTIONS:
            raise GrammarLimitError(
                f"the repetitions of a regular expression need more than {_MAX_INSTRUCTIONS} states"
            )
        self._code.append(instruction)
        return len(self._code) - 1

    def _place(self, node: Pattern, then: int) -> int:
        """Where `node` begins, if `then` comes after it. Recursion is bounded by the parser's limit on nesting."""
        match node:
            case Chars(chars):
                return self._new(Instruction(Op.CHARS, (then,), chars))
            case Concat(items):
                for item in reversed(items):
                    then = self._place(item, then)
                return then
            case Alternation(branches):
                return self._new(Instruction(Op.SPLIT, tuple(self._place(branch, then) for branch in branches)))
            case Repetition(item, low, high):
                return self._repetition(item, low, high, then)
            case Anchor("start", _, _):
                return self._new(Instruction(Op.START, (then,)))
            case Anchor("end", _, soft):
                return self._place(_SOFT_END, then) if soft else self._new(Instruction(Op.END, (then,)))
            case Boundary(word, negated, _, sees_nothing):
                return self._new(Instruction(Op.BOUNDARY, (then,), word, negated=negated, sees_nothing=sees_nothing))
            case Look(_, ahead, negated, _):
                op = Op.AHEAD if ahead else Op.BEHIND
                return self._new(Instruction(op, (then,), program=self._indices[id(node)], negated=negated))
        raise AssertionError(node)

    def _repetition(self, item: Pattern, low: int, high: int | None, then: int) -> int:
        after = then
        if high is None:
            after = self._new(Instruction(Op.SPLIT))
            self._code[after] = Instruction(Op.SPLIT, (self._place(item, after), then))
        else:
            for _ in range(high - low):
                after = self._new(Instruction(Op.SPLIT, (self._place(item, after), then)))
        for _ in range(low):
            before = self._place(item, after)
            if before == after:  # nothing to repeat: the count may be huge
                break
            after = before
        return after
