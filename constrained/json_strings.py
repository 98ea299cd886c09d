"""Sets of JSON strings as rules: patterns, formats, lengths and words that are left out, exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal as Kind

from .char_lengths import length_graph
from .code_points import ANY, CodePoints
from .errors import GrammarError, GrammarLimitError
from .json_formats import FORMATS, format_rules
from .json_options import JsonOptions
from .json_text import ANY_CHAR, ANY_KEY, ANY_STRING, KEY_QUOTE, QUOTE, characters, key_characters, key_except
from .limits import CompileLimits, Deadline
from .regex import Branch, CharRules, lower_automaton, lower_pattern
from .regex_tree import Concat, length_range
from .rules import NOTHING, Choice, Graph, Node, Repeat, RuleRef, Sequence
from .string_shapes import Bounded, Key, Plain, Shape, bounded_of, has, is_regular, longest, shape_of, tree_of

_MAX_WORD_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Test:
    """One property of a string: a pattern is found in it (ECMA-262), or it is of a known format.

    Attributes:
        kind: what `text` is.
        text: the pattern, or the name of the format.
        pointer: JSON pointer of the keyword, for errors.
    """

    __test__ = False  # for pytest, which takes it for a test by its name

    kind: Kind["pattern", "format"]
    text: str
    pointer: str


@dataclass(frozen=True, slots=True)
class StringSet:
    """Strings that pass all of `required` and none of `forbidden`, of `low` to `high` characters, less `excluded`."""

    required: tuple[Test, ...] = ()
    forbidden: tuple[Test, ...] = ()
    low: int = 0
    high: int | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Spelling:
    """How characters are written: `chars` makes the rules of sets of them; `once`, in one way only."""

    chars: CharRules
    any_char: Node
    any_string: Node
    once: bool

    @property
    def quote(self) -> Node:
        """Keys have flagged quotes: only those that rules do not name are spelled here."""
        return KEY_QUOTE if self.once else QUOTE


class Strings:
    """Makes the rules of the string sets of one grammar.

    Every method raises:
        GrammarError: a pattern that is malformed (`GrammarError`), uses a feature that is refused by name
            (`UnsupportedGrammarError`), or is too large together with what else holds (`GrammarLimitError`).
    """

    def __init__(self, rules: dict[str, Node], limits: CompileLimits, deadline: Deadline, options: JsonOptions) -> None:
        """Shared rules go into `rules`; those of `json_text.shared_rules` must be among them in the end."""
        self._rules = rules
        self._limits = limits
        self._deadline = deadline
        self._nodes: dict[tuple[int, bool], tuple[Shape, Node]] = {}  # by id() of the shape, which is kept
        self._automata = 0
        spelled: Callable[[CodePoints], Node] = partial(characters, escapes=options.escapes)
        self._values = _Spelling(
            CharRules(rules, "json/chars", spelled, deadline), ANY_CHAR, ANY_STRING, options.escapes == "short"
        )
        key_chars = CharRules(rules, "json/key-chars", key_characters, deadline)
        self._keys = _Spelling(key_chars, key_chars.node(ANY), ANY_KEY, once=True)

    def value(self, strings: StringSet) -> Node:
        """A JSON string of the set with its quotes, in every spelling that the options allow; NOTHING if none is."""
        return self._nodes_of(strings, self._values)

    def key(self, strings: StringSet) -> Node:
        """A key of the set with its quotes, each in its one spelling; NOTHING if none is."""
        return self._nodes_of(strings, self._keys)

    def words(self, strings: StringSet, most: int) -> list[str] | None:
        """All strings of the set, sorted, where there are at most `most`; else None.

        None also where it is not known, for strings that are very long or sets that are too large to tell.
        """
        if self.is_empty(strings):
            return []
        if strings.high == 0:
            return [""]
        parts = _parts(strings)
        if len(parts) > 1:
            found = [self.words(part, most) for part in parts]
            together = {word for words in found for word in words or ()}
            return None if None in found or len(together) > most else sorted(together)
        if _format_alone(strings) is not None or strings.low > _MAX_WORD_LENGTH or self._is_surely_infinite(strings):
            return None
        required, forbidden = self._tests(strings)
        bounds = strings.low, strings.high
        try:
            with self._blamed(strings):
                shape = bounded_of(required, forbidden, bounds, self._left_out(strings), self._limits)
                return length_graph(shape.automaton, shape.low, shape.high).words(most) if shape.automaton.edges else []
        except GrammarLimitError:
            return None

    def is_empty(self, strings: StringSet) -> bool:
        """Whether no string is in the set."""
        parts = _parts(strings)
        if len(parts) > 1:
            return all(self.is_empty(part) for part in parts)
        if strings.high is not None and strings.high < strings.low:
            return True
        if not strings.required and not strings.forbidden and strings.high != 0:
            return False  # no schema lists all strings of one character
        if _format_alone(strings) is not None:
            return False
        shape = self._shape(strings)
        return not shape.branches if isinstance(shape, Plain) else not shape.automaton.edges

    def admits(self, strings: StringSet, text: str) -> bool:
        """Whether `text` is in the set."""
        if len(text) < strings.low or (strings.high is not None and len(text) > strings.high):
            return False
        if text in strings.excluded:
            return False
        return self._passes(strings, text)

    def _passes(self, strings: StringSet, text: str) -> bool:
        required, forbidden = self._tests(strings)
        with self._blamed(strings):
            return all(has(key, text, self._limits) for key in required) and not any(
                has(key, text, self._limits) for key in forbidden
            )

    # Shapes

    def _tests(self, strings: StringSet) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Properties without where they come from, each once; all of them parsed."""
        for test in (*strings.required, *strings.forbidden):
            if is_regular((test.kind, test.text)):
                with _blamed(test):
                    tree_of((test.kind, test.text), self._limits)
        required = tuple(sorted({(test.kind, test.text) for test in strings.required}))
        forbidden = tuple(sorted({(test.kind, test.text) for test in strings.forbidden}))
        return required, forbidden

    @contextmanager
    def _blamed(self, strings: StringSet) -> Iterator[None]:
        """Errors are those of the first test."""
        tests = (*strings.required, *strings.forbidden)
        self._deadline.check()
        if not tests:
            yield
            return
        with _blamed(tests[0]):
            yield

    def _left_out(self, strings: StringSet) -> frozenset[str]:
        """The words that have to be left out, because they would be in the set."""
        low, high = strings.low, strings.high
        return frozenset(
            word
            for word in strings.excluded
            if len(word) >= low and (high is None or len(word) <= high) and self._passes(strings, word)
        )

    def _shape(self, strings: StringSet) -> Shape:
        required, forbidden = self._tests(strings)
        excluded = self._left_out(strings) if strings.excluded else strings.excluded
        with self._blamed(strings):
            return shape_of(required, forbidden, (strings.low, strings.high), excluded, self._limits)

    def _is_surely_infinite(self, strings: StringSet) -> bool:
        """Whether there are more words than anybody lists, as far as that is seen at once."""
        if not strings.required and not strings.forbidden:
            return True
        if not strings.required or strings.high is not None or len(strings.required) > 1 or strings.forbidden:
            return False
        key = strings.required[0].kind, strings.required[0].text
        if longest(key) is not None:
            return False
        shape = self._shape(strings)
        return isinstance(shape, Plain) and any(
            not (branch.at_start and branch.at_end) or length_range(Concat(branch.items))[1] is None
            for branch in shape.branches
        )

    # Rules

    def _nodes_of(self, strings: StringSet, spelling: _Spelling) -> Node:
        options = [self._node(part, spelling) for part in _parts(strings)]
        kept = tuple(option for option in options if option != NOTHING)
        return kept[0] if len(kept) == 1 else Choice(kept) if kept else NOTHING

    def _node(self, strings: StringSet, spelling: _Spelling) -> Node:
        if strings.high is not None and strings.high < strings.low:
            return NOTHING
        if not strings.required and not strings.forbidden:
            simple = self._untested(strings, spelling)
            if simple is not None:
                return simple
        alone = _format_alone(strings)
        if alone is not None and spelling is self._values:
            return self._format(alone, may_be_empty=not strings.low)
        shape = self._shape(strings)
        key = id(shape), spelling is self._keys
        if key not in self._nodes:
            self._nodes[key] = shape, self._written(shape, spelling)
        return self._nodes[key][1]

    def _untested(self, strings: StringSet, spelling: _Spelling) -> Node | None:
        """Strings of any kind: lengths alone, or words that are left out of a spelling which has one way for each."""
        unbounded = (strings.low, strings.high) == (0, None)
        if not strings.excluded:
            if unbounded:
                return spelling.any_string
            return Sequence((spelling.quote, Repeat(spelling.any_char, strings.low, strings.high), spelling.quote))
        if spelling.once and unbounded:
            return key_except(strings.excluded)
        return None

    def _format(self, name: str, *, may_be_empty: bool) -> Node:
        """Strings of a format that is not regular."""
        made = format_rules(name, self._values.chars.node, may_be_empty=may_be_empty)
        assert made is not None
        self._rules.update(made.rules)
        return Sequence((QUOTE, RuleRef(made.start), QUOTE))

    def _written(self, shape: Shape, spelling: _Spelling) -> Node:
        if isinstance(shape, Plain):
            options = tuple(self._branch(branch, spelling) for branch in shape.branches)
            return Sequence((spelling.quote, Choice(options), spelling.quote)) if options else NOTHING
        if not shape.automaton.edges:
            return NOTHING
        if (shape.low, shape.high) == (0, None):
            return self._states(shape, spelling)
        spec = length_graph(shape.automaton, shape.low, shape.high)
        bodies = tuple(self._chars(chars, spelling) for chars in spec.bodies)
        return Sequence((spelling.quote, Graph(spec, bodies, (0, 0)), spelling.quote))

    def _branch(self, branch: Branch, spelling: _Spelling) -> Node:
        anything = Repeat(spelling.any_char, 0, None)
        before = () if branch.at_start else (anything,)
        after = () if branch.at_end else (anything,)
        return Sequence((*before, lower_pattern(Concat(branch.items), spelling.chars), *after))

    def _states(self, shape: Bounded, spelling: _Spelling) -> Node:
        """The automaton's rules, which end with the closing quote."""
        self._automata += 1
        name = f"json/strings/{self._automata}"
        chars = partial(self._chars, spelling=spelling)
        return Sequence((spelling.quote, lower_automaton(shape.automaton, name, spelling.quote, chars, self._rules)))

    def _chars(self, chars: CodePoints, spelling: _Spelling) -> Node:
        return spelling.any_char if chars == ANY else spelling.chars.node(chars)


def _parts(strings: StringSet) -> tuple[StringSet, ...]:
    """Sets that are `strings` together, in none of which a format with a bound on its length is forbidden.

    An automaton of what is not of such a format would have to count characters.
    """
    for test in strings.forbidden:
        most = FORMATS[test.text].max_length if test.kind == "format" and test.text in FORMATS else None
        if most is not None:
            others = tuple(other for other in strings.forbidden if other != test)
            unbounded = replace(test, kind="pattern", text=f"^(?:{FORMATS[test.text].pattern})$")
            longer = replace(strings, forbidden=others, low=max(strings.low, most + 1))
            return (*_parts(replace(strings, forbidden=(*others, unbounded))), *_parts(longer))
    return (strings,)


def _format_alone(strings: StringSet) -> str | None:
    """The format that is not regular, where nothing else is said of the strings, save that they are not empty."""
    if len(strings.required) != 1 or is_regular((strings.required[0].kind, strings.required[0].text)):
        return None
    is_alone = not (strings.forbidden or strings.excluded or strings.low > 1 or strings.high is not None)
    return strings.required[0].text if is_alone else None


@contextmanager
def _blamed(test: Test) -> Iterator[None]:
    """Errors carry the pointer of `test`."""
    try:
        yield
    except GrammarError as error:
        if error.pointer.startswith("/"):
            raise
        raise type(error)(f"{test.kind} {test.text!r}: {error}", pointer=test.pointer) from error
