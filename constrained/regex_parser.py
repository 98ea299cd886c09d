"""Reads regular expressions in two dialects: Python's ``re``, and ECMA-262 as JSON Schema uses it.

Groups keep no captures and quantifiers no greed: only the set of matched texts matters. What is not regular, or not
done yet, is refused by name.
"""

from __future__ import annotations

import unicodedata
from typing import Literal, NoReturn

from .char_classes import (
    ASCII_DIGITS,
    ASCII_SPACE,
    ASCII_WORD,
    ECMA_NEWLINE,
    ECMA_SPACE,
    NEWLINE,
    SEES_NOTHING,
    fold,
    unicode_class,
)
from .code_points import ANY, CodePoints, Range
from .errors import GrammarError, UnsupportedGrammarError
from .limits import CompileLimits
from .regex_tree import (
    Alternation,
    Anchor,
    Boundary,
    Chars,
    Concat,
    Look,
    Pattern,
    Repetition,
    find_context,
    length_range,
    parts,
)
from .unicode_properties import unicode_property

Dialect = Literal["python", "ecma"]

_CONTROL_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ASCII_CLASSES = {"d": ASCII_DIGITS, "s": ASCII_SPACE, "w": ASCII_WORD}
_ECMA_CLASSES = {"d": ASCII_DIGITS, "s": ECMA_SPACE, "w": ASCII_WORD}
_REFUSED_GROUPS = {
    "?>": "an atomic group",
    "?P=": "a backreference",
    "?(": "a conditional",
}
_LOOKS = {"?=": (True, False), "?!": (True, True), "?<=": (False, False), "?<!": (False, True)}
_MAX_BOUND = 2**31 - 1


def parse_regex(pattern: str, dialect: Dialect, limits: CompileLimits) -> Pattern:
    """The tree of `pattern`.

    Raises:
        UnsupportedGrammarError: a feature that is refused by name, at ``@offset``.
        GrammarError: not a legal pattern.
        GrammarLimitError: too long, or groups nested too deeply.
    """
    limits.check("source_chars", len(pattern), "characters of the pattern")
    return _Parser(pattern, dialect, limits).parse()


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect, limits: CompileLimits) -> None:
        self._pattern = pattern
        self._python = dialect == "python"
        self._limits = limits
        self._at = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()

    def parse(self) -> Pattern:
        tree = self._alternation()
        if self._at < len(self._pattern):
            self._fail("unbalanced parenthesis", self._at)
        return tree

    # Reading

    def _peek(self, count: int = 1) -> str:
        return self._pattern[self._at : self._at + count]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            self._fail("the pattern ends too early", len(self._pattern))
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _until(self, closing: str, what: str) -> str:
        end = self._pattern.find(closing, self._at)
        if end < 0:
            self._fail(f"missing {closing!r} after {what}", self._at)
        text = self._pattern[self._at : end]
        self._at = end + len(closing)
        return text

    def _fail(self, problem: str, offset: int) -> NoReturn:
        raise GrammarError(f"bad regular expression {self._pattern!r}: {problem}", pointer=f"@{offset}")

    def _refuse(self, feature: str, offset: int) -> NoReturn:
        raise UnsupportedGrammarError(
            f"the regular expression {self._pattern!r} uses {feature}, which is not supported", pointer=f"@{offset}"
        )

    # Structure

    def _alternation(self) -> Pattern:
        branches = [self._concat()]
        while self._skip("|"):
            branches.append(self._concat())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _concat(self) -> Pattern:
        items: list[Pattern] = []
        while self._at < len(self._pattern) and self._peek() not in "|)":
            offset = self._at
            item = self._atom()
            if item is not None:
                items.append(self._quantified(item, offset))
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def _quantified(self, item: Pattern, offset: int) -> Pattern:
        quantifier = self._quantifier()
        if quantifier is None:
            return item
        if self._pattern[offset] != "(" and find_context(item) is not None:
            self._fail("nothing to repeat", offset)
        low, high = quantifier
        if self._skip("+"):
            self._refuse("a possessive quantifier", self._at - 1)
        self._skip("?")  # lazy: the same texts match
        again = self._at
        if self._quantifier() is not None:
            self._fail("multiple repeat", again)
        return Repetition(item, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(symbol):
                return bounds
        return self._braces() if self._peek() == "{" else None

    def _braces(self) -> tuple[int, int | None] | None:
        """``{m}``, ``{m,}``, ``{,n}`` or ``{m,n}``; anything else is a literal brace, as in Python."""
        start = self._at
        end = self._pattern.find("}", start)
        low, comma, high = self._pattern[start + 1 : end].partition(",") if end > 0 else ("", "", "")
        numbers = [part for part in (low, high) if part]
        # ECMA has no {,n}: there the brace is a literal.
        is_literal = not all(part.isascii() and part.isdigit() for part in numbers) or not (
            low or (comma and self._python)
        )
        if is_literal:
            return None
        bounds = [min(int(part[:11]), _MAX_BOUND + 1) for part in numbers]
        if any(bound > _MAX_BOUND for bound in bounds):
            self._fail(f"a repetition above {_MAX_BOUND}", start)
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            self._fail("the lower bound of a repetition is above its upper bound", start)
        self._at = end + 1
        return least, most

    def _atom(self) -> Pattern | None:
        """One item, or None for what matches nothing by itself: a comment or a flag setting."""
        offset = self._at
        char = self._take()
        if char == "(":
            return self._group(offset)
        if char == "[":
            return Chars(self._folded(self._class(offset)))
        if char == "\\":
            return self._escape(offset)
        if char == ".":
            return Chars(ANY if "s" in self._flags else ~self._newline)
        if char in "^$":
            return self._line_start(offset) if char == "^" else self._line_end(offset)
        if char in "*+?":
            self._fail("nothing to repeat", offset)
        if char == "{":
            self._at = offset
            if self._braces() is not None:
                self._fail("nothing to repeat", offset)
            self._at = offset + 1
        return Chars(self._folded(CodePoints.from_text(char)))

    def _folded(self, chars: CodePoints) -> CodePoints:
        if "i" not in self._flags:
            return chars
        return fold(chars & _ASCII) & _ASCII | chars if "a" in self._flags else fold(chars)

    def _line_start(self, offset: int) -> Pattern:
        start = Anchor("start", offset)
        if "m" not in self._flags:
            return start
        return Alternation((start, Look(Chars(self._newline), ahead=False, negated=False, offset=offset)))

    def _line_end(self, offset: int) -> Pattern:
        end = Anchor("end", offset, soft=self._python)
        if "m" not in self._flags:
            return end
        return Alternation((end, Look(Chars(self._newline), ahead=True, negated=False, offset=offset)))

    @property
    def _newline(self) -> CodePoints:
        return NEWLINE if self._python else ECMA_NEWLINE

    # Groups

    def _group(self, offset: int) -> Pattern | None:
        for mark, feature in _REFUSED_GROUPS.items():
            if self._peek(len(mark)) == mark:
                self._refuse(feature, offset)
        if self._skip("?#"):
            self._until(")", "a comment")
            return None
        for mark, (ahead, negated) in _LOOKS.items():
            if self._skip(mark):
                return self._look(ahead, negated, offset)
        flags = self._flags
        if self._skip("?P<") or (not self._python and self._skip("?<")):
            self._name(offset)
        elif self._skip("?") and self._flag_group(offset):
            return None
        tree = self._inside_group(offset)
        self._flags = flags
        return tree

    def _look(self, ahead: bool, negated: bool, offset: int) -> Pattern:
        flags = self._flags
        item = self._inside_group(offset)
        self._flags = flags
        if not ahead:
            self._check_behind(item, offset)
        return Look(item, ahead, negated, offset)

    def _check_behind(self, item: Pattern, offset: int) -> None:
        low, high = length_range(item)
        if self._python and low != high:
            self._fail("a lookbehind needs a fixed width", offset)
        for part in parts(item):
            if isinstance(part, Look | Boundary) or (isinstance(part, Anchor) and part.side == "end"):
                self._refuse("an assertion inside a lookbehind", part.offset)

    def _name(self, offset: int) -> None:
        name = self._until(">", "the name of a group")
        if not name.isidentifier() or name in self._names:
            self._fail(f"{name!r} is not a new name for a group", offset)
        self._names.add(name)

    def _inside_group(self, offset: int) -> Pattern:
        self._depth += 1
        self._limits.check("nesting", self._depth, "groups inside groups", pointer=f"@{offset}")
        tree = self._alternation()
        if not self._skip(")"):
            self._fail("missing ')'", offset)
        self._depth -= 1
        return tree

    def _flag_group(self, offset: int) -> bool:
        """Read the flags of ``(?:``, ``(?i:`` or ``(?i)``; True for the last, which is a setting and no group."""
        letters = ""
        while self._peek() not in (":", ")", ""):
            letters += self._take()
        closing = self._take()
        on, minus, off = letters.partition("-")
        if (on + off).strip("aimsuxL") or (minus and not off) or (closing == ")" and (not on or minus)):
            self._fail(f"unknown extension '?{letters}{closing}'", offset)
        for letter in (letter for letter in "xL" if letter in on):
            self._refuse(f"the flag {letter!r}", offset)
        if closing == ")" and offset != 0:
            self._fail("global flags not at the start", offset)
        self._flags = (self._flags | set(on)) - set(off)
        if "u" in on:
            self._flags -= {"a"}
        return closing == ")"

    # Escapes

    def _escape(self, offset: int) -> Pattern:
        char = self._peek()
        if self._skip("b") or self._skip("B"):
            word = self._named_set("w")
            assert word is not None
            return Boundary(word, char == "B", offset, sees_nothing=not self._python or SEES_NOTHING)
        if self._skip("A"):
            return Anchor("start", offset)
        if self._skip("Z") or (not self._python and self._skip("z")):
            return Anchor("end", offset)
        if char and char in "123456789" and not self._is_octal():
            self._refuse("a backreference", offset)
        if char == "k" and not self._python:
            self._refuse("a backreference", offset)
        member = self._escaped_set(offset)
        return Chars(self._folded(CodePoints.single(member) if isinstance(member, int) else member))

    def _is_octal(self) -> bool:
        """Three octal digits are a character in Python, even where the first is not zero."""
        digits = self._peek(3)
        return self._python and len(digits) == 3 and all(digit in "01234567" for digit in digits)

    def _escaped_set(self, offset: int) -> CodePoints | int:
        """After a backslash, inside a class or outside: a named set, or one character, maybe a surrogate."""
        char = self._take()
        named = self._named_set(char)
        if named is not None:
            return named
        if char in ("p", "P") and not self._python:
            return self._property(char == "P", offset)
        return self._escaped_char(char, offset)

    def _property(self, is_negated: bool, offset: int) -> CodePoints:
        if not self._skip("{"):
            self._fail("missing '{' after \\p", offset)
        name = self._until("}", "\\p{")
        chars = unicode_property(name)
        if chars is None:
            self._refuse(f"the Unicode property {name!r}", offset)
        return ~chars if is_negated else chars

    def _named_set(self, char: str) -> CodePoints | None:
        letter = char.lower()
        if letter not in ("d", "s", "w"):
            return None
        if not self._python:
            chars = _ECMA_CLASSES[letter]
        else:
            chars = _ASCII_CLASSES[letter] if "a" in self._flags else unicode_class(letter)
        return chars if char == letter else ~chars

    def _escaped_char(self, char: str, offset: int) -> int:
        if char in _HEX_DIGITS and (self._python or char != "U"):
            return self._hexadecimal(_HEX_DIGITS[char], offset)
        if char == "N" and self._python:
            return self._named_char(offset)
        if char in "01234567":
            return self._octal(char, offset)
        if char == "c" and not self._python and self._peek().isascii() and self._peek().isalpha():
            return ord(self._take()) % 32
        if char in _CONTROL_ESCAPES and (self._python or char != "a"):
            return ord(_CONTROL_ESCAPES[char])
        if char.isascii() and char.isalnum():
            self._fail(f"bad escape \\{char}", offset)
        return ord(char)

    def _hexadecimal(self, count: int, offset: int) -> int:
        if not self._python and self._skip("{"):
            digits = self._until("}", "\\u{")
        else:
            digits = self._peek(count)
            self._at += count
            if len(digits) < count:
                self._fail("incomplete escape", offset)
        if not digits or digits.strip("0123456789abcdefABCDEF") or int(digits, 16) > 0x10FFFF:
            self._fail(f"{digits!r} is no hexadecimal code point", offset)
        return self._joined_surrogates(int(digits, 16))

    def _joined_surrogates(self, high: int) -> int:
        """In ECMA, two escapes may spell one character as UTF-16."""
        following = self._peek(6)
        if self._python or not 0xD800 <= high <= 0xDBFF or not following.startswith("\\u"):
            return high
        digits = following[2:]
        if len(digits) < 4 or digits.strip("0123456789abcdefABCDEF") or not 0xDC00 <= int(digits, 16) <= 0xDFFF:
            return high
        self._at += 6
        return 0x10000 + ((high - 0xD800) << 10) + int(digits, 16) - 0xDC00

    def _named_char(self, offset: int) -> int:
        if not self._skip("{"):
            self._fail("missing '{' after \\N", offset)
        name = self._until("}", "\\N{")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self._fail(f"undefined character name {name!r}", offset)

    def _octal(self, first: str, offset: int) -> int:
        digits = first
        while len(digits) < 3 and self._peek() and self._peek() in "01234567":
            digits += self._take()
        if int(digits, 8) > 0o377:
            self._fail(f"octal escape \\{digits} is above \\377", offset)
        return int(digits, 8)

    # Classes

    def _class(self, offset: int) -> CodePoints:
        is_negated = self._skip("^")
        ranges: list[Range] = []
        first = True
        while (first and self._python) or self._peek() != "]":
            if not self._peek():
                self._fail("unterminated character set", offset)
            ranges += self._class_item()
            first = False
        self._at += 1
        chars = CodePoints.of(ranges)
        if is_negated and "i" in self._flags:
            chars = self._folded(chars)
        return ~chars if is_negated else chars

    def _class_item(self) -> list[Range]:
        """One character, one named set, or a range."""
        offset = self._at
        low = self._class_member()
        if self._peek() != "-" or self._peek(2) in ("-]", "-"):
            return _ranges(low)
        self._at += 1
        high = self._class_member()
        if isinstance(low, int) and isinstance(high, int):
            if low > high:
                self._fail(f"bad character range {self._pattern[offset : self._at]}", offset)
            return [(low, high)]
        if self._python:
            self._fail(f"bad character range {self._pattern[offset : self._at]}", offset)
        return [*_ranges(low), (ord("-"), ord("-")), *_ranges(high)]  # ECMA-262 B.1.2: [\w-.] is no range

    def _class_member(self) -> CodePoints | int:
        offset = self._at
        char = self._take()
        if char != "\\":
            return ord(char)
        if self._skip("b"):
            return ord("\b")
        return self._escaped_set(offset)


def _ranges(member: CodePoints | int) -> list[Range]:
    return [(member, member)] if isinstance(member, int) else list(member.ranges)


_ASCII = CodePoints.of([(0, 0x7F)])
