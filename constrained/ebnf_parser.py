r"""Reads grammars in the EBNF dialect of llama.cpp (GBNF) and XGrammar into rules over bytes.

    root   ::= greeting (", " name)? "!"      # the text starts here
    greeting ::= "hello" | 'good ' [a-z]+
    name   ::= [^ \n]{1,20}

A rule goes on until the next ``name ::=``, over any number of lines; ``:=`` and ``=`` do as well. Terminals are strings
in double or single quotes, classes in brackets, and ``.`` for any character, line ends included. All of them are
characters, not bytes. ``* + ? {m} {m,} {,n} {m,n}`` follow an element, ``#`` begins a comment, and an alternative may
be empty.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import NoReturn

from .char_classes import ASCII_DIGITS, ASCII_SPACE, ASCII_WORD
from .code_points import ANY, CodePoints, Range
from .errors import GrammarError, UnsupportedGrammarError
from .limits import CompileLimits
from .regex import CharRules
from .rules import EMPTY, Choice, Literal, Node, Repeat, RuleRef, Sequence
from .source_reader import SourceReader

_SPACE = re.compile(r"(?:[ \t\r\n\f]+|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DEFINES = re.compile(r"::=|:=|=(?![=>])")
_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_HEX = {"x": 2, "u": 4, "U": 8}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "0": "\0"}
_CLASSES = {"d": ASCII_DIGITS, "s": ASCII_SPACE, "w": ASCII_WORD}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED = {
    "/": "regular expressions between slashes, as Lark has them, are",
    ",": "a comma between elements, as ISO 14977 has it, is",
    ";": "a semicolon after a rule, as ISO 14977 has it, is",
    "!": "negation is",
    "&": "a lookahead is",
    "~": "the operator '~' is",
    "%": "directives such as Lark's %import are",
    "<": "names between angle brackets are",
    ":": "a rule with ':', as Lark has it, is",
}
_ALLOWED = "a string, a class in brackets, '.', a rule's name, a group, a quantifier, '|' or the next 'name ::='"


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule as written, and the line and column where."""

    node: Node
    place: str


def parse_ebnf(source: str, chars: CharRules, limits: CompileLimits) -> dict[str, Definition]:
    """The rules of `source` by name. They refer to the rules of `chars`, which get those of their character classes.

    Raises:
        UnsupportedGrammarError: a notation of another dialect, by name.
        GrammarError: not legal, with line and column; a rule that is defined twice or not at all.
        GrammarLimitError: groups nested too deeply, or out of time.
    """
    return _Parser(source, chars, limits).parse()


class _Parser(SourceReader):
    def __init__(self, source: str, chars: CharRules, limits: CompileLimits) -> None:
        super().__init__(source)
        self._chars = chars
        self._limits = limits
        self._depth = 0
        self._rules: dict[str, Definition] = {}
        self._used: dict[str, int] = {}  # where each name was referred to first

    def parse(self) -> dict[str, Definition]:
        self._skip_space()
        while self._at < len(self._source):
            self._rule()
        for name, offset in self._used.items():
            if name not in self._rules:
                self._fail_undefined(name, offset)
        return self._rules

    # Reading

    def _skip_space(self) -> None:
        found = _SPACE.match(self._source, self._at)
        self._at = found.end() if found else self._at

    def _fail(self, problem: str, offset: int) -> NoReturn:
        raise GrammarError(f"bad EBNF: {problem}", pointer=self._place(offset))

    def _refuse(self, what: str, offset: int) -> NoReturn:
        raise UnsupportedGrammarError(f"{what} not supported in EBNF; allowed: {_ALLOWED}", pointer=self._place(offset))

    def _fail_undefined(self, name: str, offset: int) -> NoReturn:
        close = difflib.get_close_matches(name, self._rules, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the rules are: {', '.join(self._rules)}"
        self._fail(f"there is no rule {name!r}; {hint}", offset)

    # Structure

    def _rule(self) -> None:
        start = self._at
        name = _NAME.match(self._source, start)
        if name is None:
            if self._peek() in _REFUSED:
                self._refuse(_REFUSED[self._peek()], start)
            self._fail(f"expected the name of a rule, as in 'root ::= ...', but found {self._found(start)}", start)
        if not self._take_definition():
            self._at = name.end()
            self._skip_space()
            if self._peek() == ":":
                self._refuse(_REFUSED[":"], self._at)
            self._fail(f"expected '::=' after the rule's name {name[0]!r}, but found {self._found(self._at)}", self._at)
        if name[0] in self._rules:
            self._fail(f"the rule {name[0]!r} is defined twice; first at {self._rules[name[0]].place}", start)
        self._rules[name[0]] = Definition(self._alternatives(), self._place(start))
        if self._at < len(self._source) and not self._starts_rule():
            self._fail_element()

    def _take_definition(self) -> bool:
        """Read ``name ::=`` if it is what follows."""
        name = _NAME.match(self._source, self._at)
        if name is None:
            return False
        space = _SPACE.match(self._source, name.end())
        defines = _DEFINES.match(self._source, space.end() if space else name.end())
        if defines is None:
            return False
        self._at = defines.end()
        self._skip_space()
        return True

    def _starts_rule(self) -> bool:
        before = self._at
        found = self._take_definition()
        self._at = before
        return found

    def _fail_element(self) -> NoReturn:
        char = self._peek()
        if char in _REFUSED:
            self._refuse(_REFUSED[char], self._at)
        if char and char in "*+?{":
            self._fail(f"there is nothing to repeat before {char!r}", self._at)
        self._fail(f"found {self._found(self._at)}; allowed here: {_ALLOWED}", self._at)

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            self._skip_space()
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while not self._starts_rule():
            element = self._element()
            if element is None:
                break
            self._skip_space()
            parts.append(self._repeated(element))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else EMPTY

    def _element(self) -> Node | None:
        """One element without its quantifiers, or None where none begins here."""
        start = self._at
        char = self._peek()
        if char and char in "\"'":
            self._at += 1
            return Literal(self._string(char, start).encode())
        if self._take("["):
            return self._class(start)
        if self._take("."):
            return self._chars.node(ANY)
        if self._take("("):
            return self._group(start)
        name = _NAME.match(self._source, start)
        if name is None:
            return None
        self._at = name.end()
        self._used.setdefault(name[0], start)
        return RuleRef(name[0])

    def _group(self, start: int) -> Node:
        if self._peek() == "=":
            self._refuse("a lookahead, (= ...), is", start)
        self._depth += 1
        self._limits.check("nesting", self._depth, "groups inside groups", pointer=self._place(start))
        self._skip_space()
        node = self._alternatives()
        if not self._take(")"):
            if self._at < len(self._source) and not self._starts_rule():
                self._fail_element()
            self._fail("missing ')' of the group that begins here", start)
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        while self._peek() and self._peek() in "*+?{":
            least, most = self._quantifier()
            node = Repeat(node, least, most)
            self._skip_space()
        return node

    def _quantifier(self) -> tuple[int, int | None]:
        start = self._at
        if self._peek() in _QUANTIFIERS:
            self._at += 1
            return _QUANTIFIERS[self._source[start]]
        bounds = _BOUNDS.match(self._source, start)
        if bounds is None or not (bounds[1] or bounds[3]):
            self._fail("a repetition is {m}, {m,}, {,n} or {m,n}, and here it is none of them", start)
        if max(len(bounds[1]), len(bounds[3])) > 9:
            self._fail("a repetition of a billion times or more", start)
        least = int(bounds[1] or 0)
        most = int(bounds[3]) if bounds[3] else None if bounds[2] else least
        if most is not None and most < least:
            self._fail(f"the repetition {bounds[0]} is empty: {least} is more than {most}", start)
        self._at = bounds.end()
        return least, most

    # Terminals

    def _string(self, quote: str, start: int) -> str:
        text: list[str] = []
        while not self._take(quote):
            char = self._peek()
            if char in ("", "\n"):
                self._fail(f"the string that begins here has no closing {quote}; a line end inside is \\n", start)
            text.append(chr(self._char()))
        return "".join(text)

    def _char(self) -> int:
        """One character of a string or a class, escaped or not."""
        start = self._at
        char = self._peek()
        self._at += 1
        if char != "\\":
            return self._no_surrogate(ord(char), start)
        letter = self._peek()
        self._at += 1
        if letter in _HEX:
            return self._hexadecimal(_HEX[letter], start)
        if letter in _CONTROL:
            return ord(_CONTROL[letter])
        if not letter or letter.isalnum() or letter.isspace():
            self._fail(
                f"unknown escape \\{letter}; allowed: \\n \\t \\r \\\\ \\\" \\' \\xHH \\uHHHH \\UHHHHHHHH, and "
                "\\a \\b \\e \\f \\v \\0 and punctuation",
                start,
            )
        return ord(letter)

    def _hexadecimal(self, count: int, start: int) -> int:
        digits = self._source[self._at : self._at + count]
        if len(digits) < count or digits.strip("0123456789abcdefABCDEF") or int(digits, 16) > 0x10FFFF:
            letter = self._source[start + 1]
            self._fail(f"\\{letter} needs {count} hexadecimal digits of a character, not {digits!r}", start)
        self._at += count
        code = int(digits, 16)
        if 0xD800 <= code <= 0xDBFF and re.match(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", self._source[self._at :][:6]):
            low = int(self._source[self._at + 2 : self._at + 6], 16)
            self._at += 6
            return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        return self._no_surrogate(code, start)

    def _no_surrogate(self, code: int, start: int) -> int:
        if 0xD800 <= code <= 0xDFFF:
            self._fail("a surrogate without its other half is no character", start)
        return code

    def _class(self, start: int) -> Node:
        negated = self._take("^")
        ranges: list[Range] = []
        while not self._take("]"):
            if self._peek() in ("", "\n"):
                self._fail("the class that begins here has no closing ]; a line end inside is \\n", start)
            ranges += self._class_item().ranges
        chars = ~CodePoints.of(ranges) if negated else CodePoints.of(ranges)
        if not chars:
            self._fail("the class that begins here holds no character", start)
        return self._chars.node(chars)

    def _class_item(self) -> CodePoints:
        start = self._at
        named = _CLASSES.get(self._source[start + 1 : start + 2].lower()) if self._peek() == "\\" else None
        if named is not None:
            self._at += 2
            return named if self._source[start + 1].islower() else ~named
        low = high = self._char()
        if self._peek() == "-" and self._source[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._char()
        if high < low:
            self._fail(f"the range {self._source[start : self._at]} is empty: its ends are the wrong way round", start)
        return CodePoints.of([(low, high)])
