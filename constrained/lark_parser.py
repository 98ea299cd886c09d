r"""Reads grammars in the notation of the Lark parsing toolkit into rules over bytes.

    start: "select"i columns "from"i NAME [where]      // rules are lower case, terminals upper case
    columns: "*" | NAME ("," NAME)*
    where: "where"i NAME ("=" | "<" ">") value
    value: NUMBER | STRING
    NAME: /[a-z_]+/
    STRING: "'" /[^']/* "'"
    %import common.NUMBER
    %import common.WS
    %ignore WS

A text is any sequence of terminals that the rules allow, with ignored terminals anywhere before, between and after
them. Every way to divide the text into terminals counts, as in Lark with ``lexer="dynamic_complete"``: priorities,
which only choose among those ways, say nothing, nor do ``?rule``, ``!rule`` and ``-> alias``, which only shape trees.
Unlike in Lark a rule may go on over line ends anywhere.
"""

from __future__ import annotations

import difflib
import re
from typing import NoReturn

from .code_points import CodePoints
from .ebnf_parser import Definition
from .errors import GrammarError, UnsupportedGrammarError
from .lark_terminals import COMMON_TERMINALS, Terminals, unescaped
from .limits import CompileLimits
from .rules import EMPTY, Choice, Literal, Node, Repeat, RuleRef, Sequence, optional
from .source_reader import SourceReader

IGNORED = "lark/ignored"
"""The rule of what may stand between terminals."""

_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*)*")
_BLANKS = re.compile(r"[ \t]*")
_NAME = re.compile(r"_?[a-z][_a-z0-9]*|_?[A-Z][_A-Z0-9]*")
_DEFINES = re.compile(r"[!?]*(?P<name>_?[a-z][_a-z0-9]*|_?[A-Z][_A-Z0-9]*)(?:\.-?\d+)?[ \t]*:")
_TEMPLATE = re.compile(r"[!?]*_?[a-z][_a-z0-9]*\{[^}\n]*\}(?:\.-?\d+)?[ \t]*:")
_DIRECTIVE = re.compile(r"%[a-z]*")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"(i?)')
_REGEXP = re.compile(r"/(?![/*])((?:\\.|[^/\\\n])+)/([a-z]*)")
_ALIAS = re.compile(r"->[ \t]*(?:_?[a-z][_a-z0-9]*|_?[A-Z][_A-Z0-9]*)")
_IMPORT = re.compile(r"common(?:[ \t]*\(([^)]*)\)|\.(\w+)(?:[ \t]*->[ \t]*(_?[A-Z][_A-Z0-9]*))?)")
_QUANTIFIER = re.compile(r"[*+]|\?(?![a-z_!?])|~[ \t]*(?P<low>\d+)(?:[ \t]*\.\.[ \t]*(?P<high>\d+))?")
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED_DIRECTIVES = {
    "%declare": "declares terminals whose texts only a program knows",
    "%override": "changes rules of another file",
    "%extend": "changes rules of another file",
}
_ALLOWED = "a string, a /regular expression/, a name, a group, '[', a quantifier, '|', '->' or the next definition"


def parse_lark(source: str, terminals: Terminals, limits: CompileLimits) -> dict[str, Definition]:
    """The rules and terminals of `source` by name, and `IGNORED`. They refer to rules that `terminals` makes.

    Raises:
        UnsupportedGrammarError: a part of Lark's notation that is refused, by name.
        GrammarError: not legal, with line and column; a name that is defined twice or not at all.
        GrammarLimitError: groups nested too deeply, or out of time.
    """
    return _Parser(source, terminals, limits).parse()


class _Parser(SourceReader):
    def __init__(self, source: str, terminals: Terminals, limits: CompileLimits) -> None:
        super().__init__(source)
        self._terminals = terminals
        self._limits = limits
        self._depth = 0
        self._owner = ""  # the name that is being defined
        self._defined: dict[str, Definition] = {}
        self._ignored: list[Node] = []
        self._used: dict[str, int] = {}  # where each name was referred to first
        self._calls: dict[str, dict[str, int]] = {}  # of each terminal, those that it is made of, and where

    def parse(self) -> dict[str, Definition]:
        self._skip_space()
        while self._at < len(self._source):
            self._item()
        for name, offset in self._used.items():
            if name not in self._defined:
                self._fail_undefined(name, offset)
        self._check_terminals()
        between = Repeat(Choice(tuple(self._ignored)), 0, None) if self._ignored else EMPTY
        return self._defined | {IGNORED: Definition(between, "")}

    # Reading

    def _skip_space(self) -> None:
        found = _SPACE.match(self._source, self._at)
        self._at = found.end() if found else self._at

    def _take_match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._source, self._at)
        self._at = found.end() if found else self._at
        return found

    def _fail(self, problem: str, offset: int) -> NoReturn:
        raise GrammarError(f"bad Lark grammar: {problem}", pointer=self._place(offset))

    def _refuse(self, what: str, offset: int) -> NoReturn:
        raise UnsupportedGrammarError(f"{what} in a Lark grammar, which is not supported", pointer=self._place(offset))

    def _fail_undefined(self, name: str, offset: int) -> NoReturn:
        what = "rule" if name.islower() else "terminal"
        if name in COMMON_TERMINALS:
            self._fail(f"there is no terminal {name!r}; add: %import common.{name}", offset)
        close = difflib.get_close_matches(name, self._defined, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"defined are: {', '.join(self._defined)}"
        self._fail(f"there is no {what} {name!r}; {hint}", offset)

    # Items

    def _item(self) -> None:
        start = self._at
        if self._peek() == "%":
            self._directive(start)
        else:
            self._definition(start)
        self._skip_space()

    def _definition(self, start: int) -> None:
        if _TEMPLATE.match(self._source, start):
            self._refuse("a template, name{parameters},", start)
        found = self._take_match(_DEFINES)
        if found is None:
            self._fail(f"expected 'name: ...' or a directive, but found {self._found(start)}", start)
        self._owner = found["name"]
        self._skip_space()
        node = self._alternatives()
        if not self._starts_item():
            self._fail_element()
        self._define(self._owner, node, start)

    def _define(self, name: str, node: Node, start: int) -> None:
        known = self._defined.get(name)
        if known is not None and known.node != node:
            self._fail(f"{name!r} is defined twice; first at {known.place}", start)
        self._defined[name] = Definition(node, self._place(start))

    def _starts_item(self) -> bool:
        """Whether the grammar ends here, or a definition or directive begins."""
        if self._at >= len(self._source) or self._peek() == "%":
            return True
        return bool(_DEFINES.match(self._source, self._at) or _TEMPLATE.match(self._source, self._at))

    def _directive(self, start: int) -> None:
        found = self._take_match(_DIRECTIVE)
        name = found[0] if found else "%"
        if name in _REFUSED_DIRECTIVES:
            self._refuse(f"{name} {_REFUSED_DIRECTIVES[name]}", start)
        if name not in ("%ignore", "%import"):
            self._fail(f"unknown directive {name!r}; allowed: %import common.NAME and %ignore", start)
        self._take_match(_BLANKS)
        if name == "%import":
            self._import(start)
            return
        self._owner = "%IGNORE"
        self._ignored.append(self._alternatives())
        if not self._starts_item():
            self._fail_element()

    def _import(self, start: int) -> None:
        """``common.NAME``, ``common.NAME -> OTHER`` or ``common (NAME, OTHER)``."""
        found = self._take_match(_IMPORT)
        if found is None:
            self._refuse("%import of anything but 'common.NAME'", start)
        names = [name.strip() for name in found[1].split(",")] if found[1] is not None else [found[2]]
        for name in names:
            if name not in COMMON_TERMINALS:
                close = difflib.get_close_matches(name, COMMON_TERMINALS, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(COMMON_TERMINALS)}"
                self._fail(f"no terminal {name!r} to import from common; {hint}", start)
            self._define(found[3] or name, self._terminals.common(name), start)

    # Structure

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            self._skip_space()
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while not self._starts_item():
            element = self._element()
            if element is None:
                break
            parts.append(self._repeated(element))
            self._skip_space()
        if self._take_match(_ALIAS):
            self._skip_space()
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else EMPTY

    def _repeated(self, node: Node) -> Node:
        before = self._at
        self._skip_space()
        start = self._at
        found = self._take_match(_QUANTIFIER)
        if found is None:
            self._at = before
            return node
        if found["low"] is None:
            return Repeat(node, *_COUNTS[found[0]])
        if max(len(found["low"]), len(found["high"] or "")) > 9:
            self._fail("a repetition of a billion times or more", start)
        least, most = int(found["low"]), int(found["high"] or found["low"])
        if most < least:
            self._fail(f"the repetition {found[0]} is empty: {least} is more than {most}", start)
        return Repeat(node, least, most)

    def _element(self) -> Node | None:
        """One element without its quantifier, or None where none begins here."""
        start = self._at
        if self._take("("):
            return self._group(")", start)
        if self._take("["):
            return optional(self._group("]", start))
        string = self._take_match(_STRING)
        if string is not None:
            return self._terminal(self._string(string, start))
        regexp = self._take_match(_REGEXP)
        if regexp is not None:
            return self._terminal(self._regexp(regexp, start))
        name = self._take_match(_NAME)
        if name is None:
            return None
        if self._peek() == "{":
            self._refuse("a template, name{arguments},", start)
        return self._reference(name[0], start)

    def _group(self, closing: str, start: int) -> Node:
        self._depth += 1
        self._limits.check("nesting", self._depth, "groups inside groups", pointer=self._place(start))
        self._skip_space()
        node = self._alternatives()
        if not self._take(closing):
            if not self._starts_item():
                self._fail_element()
            self._fail(f"missing {closing!r} of the group that begins here", start)
        self._depth -= 1
        return node

    def _fail_element(self) -> NoReturn:
        char = self._peek()
        if char and char in "*+?~":
            self._fail(f"there is nothing to repeat before {char!r}", self._at)
        if char == '"':
            self._fail('the string that begins here has no closing "; a line end inside is \\n', self._at)
        if char == "/":
            self._fail("the regular expression that begins here has no closing /", self._at)
        if char == "'":
            self._fail("strings stand in double quotes", self._at)
        self._fail(f"found {self._found(self._at)}; allowed here: {_ALLOWED}", self._at)

    # Terminals

    def _in_terminal(self) -> bool:
        return self._owner.isupper()

    def _terminal(self, node: Node) -> Node:
        """A terminal as part of another one, or in a rule, where ignored ones may follow."""
        return node if self._in_terminal() else Sequence((node, RuleRef(IGNORED)))

    def _reference(self, name: str, start: int) -> Node:
        self._used.setdefault(name, start)
        if name.islower():
            if self._in_terminal():
                self._fail(f"the terminal {self._owner} is made of a rule, {name!r}; it may have terminals only", start)
            return RuleRef(name)
        if self._in_terminal():
            self._calls.setdefault(self._owner, {}).setdefault(name, start)
        return self._terminal(RuleRef(name))

    def _check_terminals(self) -> None:
        """Terminals must not be made of themselves."""
        done: set[str] = set()
        for root in self._calls:
            path: list[tuple[str, list[str]]] = [(root, list(self._calls[root]))] if root not in done else []
            open_names = {root}
            while path:
                name, rest = path[-1]
                if not rest:
                    done.add(name)
                    open_names.discard(name)
                    path.pop()
                    continue
                target = rest.pop()
                if target in open_names:
                    self._fail(f"the terminal {target} is made of itself; only rules may be", self._calls[name][target])
                if target not in done:
                    open_names.add(target)
                    path.append((target, list(self._calls.get(target, ()))))

    def _string(self, found: re.Match[str], start: int) -> Node:
        text = self._unescaped(found[1], start)
        if not text:
            self._fail("an empty string is no terminal; leave the alternative empty instead", start)
        if self._take(".."):
            end = self._take_match(_STRING)
            last = self._unescaped(end[1], start) if end else ""
            if len(text) != 1 or len(last) != 1 or found[2] or (end and end[2]) or last < text:
                self._fail('a range is "a".."z", from one character to a later one', start)
            return self._terminals.chars(CodePoints.of([(ord(text), ord(last))]))
        return self._terminals.without_case(text) if found[2] else Literal(text.encode())

    def _unescaped(self, text: str, start: int) -> str:
        try:
            return unescaped(text)
        except ValueError as error:
            self._fail(str(error), start)

    def _regexp(self, found: re.Match[str], start: int) -> Node:
        try:
            return self._terminals.regexp(found[1], found[2])
        except GrammarError as error:
            message = str(error).removesuffix(f" (at {error.pointer})")
            raise type(error)(message, pointer=self._place(start)) from error
