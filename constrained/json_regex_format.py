r"""Rules of the format "regex": patterns of ECMA-262 with Unicode, whose groups nest, which no regular expression says.

Left out are what no grammar decides, so that every text is a legal pattern: names of groups, which must differ, and
backreferences, which need their group; ranges ``a-b`` whose ends are not both printable ASCII, or both ``\uHHHH`` below
and above U+3000; and repetitions ``{m,n}`` with an `m` of 100 or more. A backslash may stand before any punctuation.

Source: ECMA-262, 15th edition, section 22.2.1.
"""

from __future__ import annotations

from collections.abc import Callable

from .code_points import ANY, CodePoints
from .rules import NOTHING, Choice, Node, Repeat, RuleRef, Rules, Sequence, optional

_ANY_PATTERN = "json/regex"
_SOME_PATTERN = "json/regex-some"
_TERM = "json/regex-term"
_CLASS = "json/regex-class"
_CHARS = "json/regex-chars-"

_PRINTABLE = range(0x20, 0x7F)
_SYNTAX = "^$\\.*+?()[]{}|"
_PUNCTUATION = "".join(chr(code) for code in _PRINTABLE if not chr(code).isalnum() and chr(code) not in " _")
_CATEGORIES: tuple[str, ...] = (
    "L",
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "M",
    "Mn",
    "Mc",
    "Me",
    "N",
    "Nd",
    "Nl",
    "No",
    "P",
    "Pc",
    "Pd",
    "Ps",
)
_CATEGORIES += ("Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cn")
_CATEGORIES += ("Letter", "Number", "Punctuation", "Symbol", "Mark", "Separator", "Alphabetic", "White_Space", "ASCII")


def regex_rules(spell: Callable[[CodePoints], Node], *, may_be_empty: bool = True) -> Rules:
    """Legal patterns; `spell` says how one character of a set is written inside a JSON string."""
    return Rules(_ANY_PATTERN if may_be_empty else _SOME_PATTERN, _Spelled(spell).rules())


class _Spelled:
    """The grammar of patterns in the characters of one spelling."""

    def __init__(self, spell: Callable[[CodePoints], Node]) -> None:
        self._spelling = spell
        self._sets: dict[CodePoints, str] = {}  # the rules of the sets of characters met so far

    def _spell(self, chars: CodePoints) -> Node:
        return RuleRef(self._sets.setdefault(chars, f"{_CHARS}{len(self._sets)}"))

    def rules(self) -> dict[str, Node]:
        term, text = RuleRef(_TERM), self._text
        alternative = Repeat(term, 0, None)
        group_opening = text("(", optional(text("?:")))
        look = Sequence((text("(?"), optional(text("<")), self._of("=!"), RuleRef(_ANY_PATTERN), text(")")))
        group = Sequence((group_opening, RuleRef(_ANY_PATTERN), text(")")))
        escape = Sequence((text("\\"), Choice((self._escapes(), self._of(_PUNCTUATION)))))
        atom = Choice((self._spell(ANY - CodePoints.from_text(_SYNTAX)), text("."), group, escape, RuleRef(_CLASS)))
        assertion = Choice((self._of("^$"), Sequence((text("\\"), self._of("bB"))), look))
        rules: dict[str, Node] = {
            _ANY_PATTERN: Sequence((alternative, Repeat(Sequence((text("|"), alternative)), 0, None))),
            _SOME_PATTERN: Sequence((Choice((term, text("|"))), RuleRef(_ANY_PATTERN))),
            _TERM: Choice((assertion, Sequence((atom, optional(self._quantifier()))))),
            _CLASS: self._class(),
        }
        return rules | {name: self._spelling(chars) for chars, name in self._sets.items()}

    def _text(self, text: str, *rest: Node) -> Node:
        return Sequence((*(self._of(char) for char in text), *rest))

    def _of(self, chars: str) -> Node:
        return self._spell(CodePoints.from_text(chars))

    def _span(self, low: str, high: str) -> Node:
        return self._spell(CodePoints.of([(ord(low), ord(high))])) if low <= high else NOTHING

    def _escapes(self) -> Node:
        """What may follow a backslash, inside a class too, punctuation apart."""
        digit = self._of("0123456789abcdefABCDEF")
        letters = self._spell(CodePoints.of([(ord("A"), ord("Z")), (ord("a"), ord("z"))]))
        code = Choice(
            (
                Repeat(digit, 4, 4),
                Sequence((self._text("{"), Repeat(digit, 1, 5), self._text("}"))),
                Sequence((self._text("{10"), Repeat(digit, 4, 4), self._text("}"))),
            )
        )
        names = Choice(tuple(self._text(name) for name in _CATEGORIES))
        return Choice(
            (
                self._of("dDsSwWfnrtv"),
                self._text("c", letters),
                self._text("x", Repeat(digit, 2, 2)),
                self._text("u", code),
                Sequence((self._of("pP"), self._text("{"), names, self._text("}"))),
            )
        )

    def _quantifier(self) -> Node:
        counts = Choice((self._any_count(), self._two_counts()))
        braces = Sequence((self._text("{"), counts, self._text("}")))
        return Sequence((Choice((self._of("*+?"), braces)), optional(self._text("?"))))

    def _any_count(self) -> Node:
        """``m`` or ``m,`` of up to four digits."""
        number = Choice((self._text("0"), Sequence((self._span("1", "9"), Repeat(self._span("0", "9"), 0, 3)))))
        return Sequence((number, optional(self._text(","))))

    def _two_counts(self) -> Node:
        """``m,n`` with `m` below 100 and `n` not less, of up to four digits."""
        digit, first = self._span("0", "9"), self._span("1", "9")
        options: list[Node] = []
        for low in "0123456789":
            longer = Sequence((first, Repeat(digit, 1, 3)))
            options.append(self._text(low + ",", Choice((self._span(low, "9"), longer))))
        for tens in "123456789":
            more = Sequence((self._span(chr(ord(tens) + 1), "9"), digit)) if tens < "9" else NOTHING
            for low in "0123456789":
                same = Sequence((self._text(tens), self._span(low, "9")))
                longer = Sequence((first, Repeat(digit, 2, 3)))
                options.append(self._text(tens + low + ",", Choice((same, more, longer))))
        return Choice(tuple(options))

    def _class(self) -> Node:
        """Members between brackets; a hyphen for itself stands first or last."""
        escape = Sequence((self._text("\\"), Choice((self._escapes(), self._of(_PUNCTUATION + "b")))))
        member = Choice((self._spell(ANY - CodePoints.from_text("\\]-")), escape, self._ranges()))
        hyphen = optional(self._text("-"))
        return self._text("[", optional(self._text("^")), hyphen, Repeat(member, 0, None), hyphen, self._text("]"))

    def _ranges(self) -> Node:
        """``a-b`` of printable ASCII, in order; or of four hexadecimal digits each, below 3000 and from there on."""
        plain = [chr(code) for code in _PRINTABLE if chr(code) not in "\\]-^["]
        options = [self._text(low + "-", self._high(low, plain)) for low in plain]
        digit = self._of("0123456789abcdefABCDEF")
        low = self._text("\\u", self._of("012"), Repeat(digit, 3, 3))
        high = self._text("\\u", self._of("3456789abcdefABCDEF"), Repeat(digit, 3, 3))
        return Choice((*options, Sequence((low, self._text("-"), high))))

    def _high(self, low: str, plain: list[str]) -> Node:
        return self._of("".join(char for char in plain if char >= low))
