"""Where the first match of a stop pattern is, in text that comes in pieces.

A search follows every place where a match may have begun and not ended yet, as the state of the pattern's automaton
there. Two places in one state go on alike, so the earlier one stands for both: the work for a character is bounded by
the states of the pattern, however long the text is, and no character is looked at twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from .automaton import DEAD, LazyAutomaton
from .code_points import utf8
from .errors import GrammarError, GrammarLimitError
from .limits import CompileLimits, Deadline
from .program import Program, build_program
from .regex import Branch, CharRules, anchored_branches, lower_pattern
from .regex_parser import parse_regex
from .regex_tree import Concat, length_range
from .rules import ALL_BYTES, Choice, Literal, Node, Rules, Sequence
from .simplify import simplify

_LIMITS = CompileLimits(seconds=5.0, source_chars=10_000, min_repeat=1_000, states=20_000, configurations=1_000)
_MAX_PLACES = 1_000

# Bytes that UTF-8 never uses stand for the two ends of the text, so that anchors are ordinary bytes of the automaton.
_TEXT_START = 0xFE
_TEXT_END = 0xFF


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a stop pattern.

    Attributes:
        start: its first character, counted from the beginning of everything pushed.
        end: one past its last character.
        pattern: which pattern matched.
    """

    start: int
    end: int
    pattern: str


class StopPatterns:
    """Compiled stop patterns; `stop_patterns` makes one and keeps it. Searches of several threads may share it.

    Patterns are those of `Grammar.regex`, but a match may stand anywhere in the text. ``^`` and ``\\A`` stand for the
    beginning of the whole text, ``$`` and ``\\Z`` for its end, which is known only at `StopSearch.finish`; ``$`` does
    not stand before a final newline. Anchors are refused in the middle of a pattern.

    Attributes:
        patterns: as given.
        lock: held while a search steps through its automata, which grow.
        first_bytes: one mask a pattern: bit b says whether a match inside the text may begin with byte b.
        any_first_byte: those masks together.
    """

    def __init__(self, patterns: Items[str]) -> None:
        """
        Raises:
            UnsupportedGrammarError: a pattern uses a feature that is refused by name.
            UnsatisfiableGrammarError: a pattern matches no text.
            GrammarLimitError: a pattern is too large.
            GrammarError: a pattern is not legal, or matches the empty string.
        """
        self.patterns = tuple(patterns)
        self.lock = threading.Lock()
        self._programs = tuple(_compile(pattern) for pattern in self.patterns)
        self._automata = tuple(map(_automaton, self._programs))
        self.first_bytes = tuple(automaton.next_bytes(automaton.start) for automaton in self._automata)
        self.any_first_byte = reduce(or_, self.first_bytes, 0)

    def __repr__(self) -> str:
        return f"StopPatterns({list(self.patterns)!r})"

    def search(self) -> StopSearch:
        """A search at the beginning of a text.

        Searches share automata until those have met half of the states that they may: a later search begins with new
        ones, so that it does not end because of what others met.
        """
        with self.lock:
            if max(map(len, self._automata), default=0) > _LIMITS.states // 2:
                self._automata = tuple(map(_automaton, self._programs))
            return StopSearch(self, self._automata)


@lru_cache(maxsize=256)
def stop_patterns(patterns: tuple[str, ...]) -> StopPatterns:
    """The `StopPatterns` of `patterns`, compiled once while it is among the 256 last used.

    Raises:
        GrammarError: see `StopPatterns`.
    """
    return StopPatterns(patterns)


class StopSearch:
    """The search for the first match in one text.

    The first match is the one that is complete first. Of those that are complete at the same character it is the one
    that begins first; of those that begin there too, the one whose pattern is first in the list.

    Attributes:
        match: the first match, once it was found.
        chars: characters taken so far; none are taken after a match.
        safe: how many of the characters may be shown now, because no match can begin before; never decreases.
    """

    def __init__(self, patterns: StopPatterns, automata: tuple[LazyAutomaton, ...]) -> None:
        """A search at the beginning of a text; `StopPatterns.search` makes one."""
        self.match: Match | None = None
        self.chars = 0
        self.safe = 0
        self._patterns = patterns
        self._automata = automata  # one a pattern
        self._places = [_first_places(automaton) for automaton in automata]

    def copy(self) -> StopSearch:
        """A search that goes on from here by itself."""
        copied = StopSearch(self._patterns, self._automata)
        copied.match, copied.chars, copied.safe = self.match, self.chars, self.safe
        copied._places = [dict(places) for places in self._places]
        return copied

    def push(self, text: str, *, may_match: bool = True) -> Match | None:
        """Take whole characters and return the first match, if one is complete within them or was before.

        Args:
            text: what follows in the text.
            may_match: False where the text must not end yet: matches that are complete within `text` are then no
                matches. One that began there and is complete later is.

        Raises:
            GrammarLimitError: a pattern follows too many places of this text at once, or met too many states.
        """
        with self._patterns.lock:
            for char in text:
                if self.match is not None:
                    break
                self._take(char.encode("utf-8", "surrogatepass"), may_match)
        self.safe = self._first_open() if self.match is None else self.match.start
        return self.match

    def finish(self) -> Match | None:
        """End the text: the first match, which one that needs the end of the text may be; else all of it is safe."""
        if self.match is None:
            with self._patterns.lock:
                self._step(_TEXT_END)
                self.match = self._complete()
        self.safe = self.chars if self.match is None else self.match.start
        return self.match

    def _take(self, char: bytes, may_match: bool) -> None:
        if self._patterns.any_first_byte >> char[0] & 1:
            self._begin(char[0])
        self.chars += 1
        if not any(self._places):  # most characters of most texts
            return
        for byte in char:
            self._step(byte)
        if may_match:
            self.match = self._complete()

    def _begin(self, byte: int) -> None:
        """Open a place here in every pattern that `byte` may begin."""
        for index, automaton in enumerate(self._automata):
            if self._patterns.first_bytes[index] >> byte & 1:
                self._places[index].setdefault(automaton.start, self.chars)

    def _step(self, byte: int) -> None:
        """Move every place on; those of one pattern stay in the order in which they began."""
        for index, automaton in enumerate(self._automata):
            moved: dict[int, int] = {}
            for state, start in self._places[index].items():
                following = automaton.step(state, byte)
                if following != DEAD:
                    moved.setdefault(following, start)
            self._places[index] = moved
            if len(moved) > _MAX_PLACES:
                raise GrammarLimitError(
                    f"the stop pattern {self._patterns.patterns[index]!r} may have begun at more than {_MAX_PLACES} "
                    "places of this text that end differently; lower its repetitions"
                )

    def _complete(self) -> Match | None:
        found: Match | None = None
        for pattern, automaton, places in zip(self._patterns.patterns, self._automata, self._places, strict=True):
            start = next((start for state, start in places.items() if automaton.is_accepting(state)), None)
            if start is not None and (found is None or start < found.start):
                found = Match(start, self.chars, pattern)
        return found

    def _first_open(self) -> int:
        return min((next(iter(places.values())) for places in self._places if places), default=self.chars)


def _first_places(automaton: LazyAutomaton) -> dict[int, int]:
    """Places before the first character: those of patterns that must begin there."""
    state = automaton.step(automaton.start, _TEXT_START)
    return {} if state == DEAD else {state: 0}


def _compile(pattern: str) -> Program:
    if not isinstance(pattern, str):
        raise GrammarError(f"a stop pattern must be a string, not {type(pattern).__name__}: {pattern!r}")
    deadline = Deadline(_LIMITS)
    branches = anchored_branches(parse_regex(pattern, "python", _LIMITS), pattern)
    if any(length_range(Concat(branch.items))[0] == 0 for branch in branches):
        raise GrammarError(
            f"the stop pattern {pattern!r} matches the empty string, so it would end every text at once; "
            "write '+' for '*', or make a part that must be there"
        )
    rules: dict[str, Node] = {}
    chars = CharRules(rules, "utf8", utf8, deadline)
    rules["start"] = Choice(tuple(_lower_branch(branch, chars) for branch in branches))
    simple = simplify(Rules("start", rules), ALL_BYTES, _LIMITS)
    simple.verify()
    deadline.check()
    return build_program(simple, _LIMITS, deadline)


def _automaton(program: Program) -> LazyAutomaton:
    return LazyAutomaton(program, _LIMITS, range(256))


def _lower_branch(branch: Branch, chars: CharRules) -> Node:
    before = (Literal(bytes([_TEXT_START])),) if branch.at_start else ()
    after = (Literal(bytes([_TEXT_END])),) if branch.at_end else ()
    return Sequence((*before, lower_pattern(Concat(branch.items), chars), *after))
