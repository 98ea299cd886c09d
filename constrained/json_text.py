"""Rules for JSON text: characters inside strings, strings, literals, separators, any value. Source: RFC 8259.

Where space may stand is an option (`Spacing`). Strings of values may use every escape of JSON, or under
`escapes="short"` one spelling a character; keys, and the strings of `const` and `enum`, have one spelling each: that of
``json.dumps`` with ``ensure_ascii=False``, so that a grammar can force them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from .code_points import ANY, CodePoints, Range, by_leading_digit, merge_ranges, utf8, within
from .json_numbers import ANY_NUMBER
from .json_options import DEFAULT_JSON_OPTIONS, Escapes, JsonOptions, Whitespace
from .rules import (
    EMPTY,
    OPEN_KEY,
    OPEN_OBJECT,
    Choice,
    Except,
    Flagged,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Sequence,
    byte_set,
    optional,
)

QUOTE = Literal(b'"')

_CHAR = "json/char"
_KEY_CHAR = "json/key-char"
_KEY_WIDE = "json/key-wide"
_KEY_ESCAPE = "json/key-escape"
_STRING = "json/string"
_VALUE = "json/value"
_NUMBER = "json/number"
_OBJECT = "json/object"
_ARRAY = "json/array"

ANY_CHAR = RuleRef(_CHAR)
ANY_STRING = RuleRef(_STRING)
ANY_VALUE = RuleRef(_VALUE)
ANY_OBJECT = RuleRef(_OBJECT)
ANY_ARRAY = RuleRef(_ARRAY)
BOOLEAN = Choice((Literal(b"true"), Literal(b"false")))
NULL = Literal(b"null")

_MUST_ESCAPE = CodePoints.of([(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))])
_WIDE = CodePoints.of([(0x80, 0x10FFFF)])
_PLAIN_ASCII = ANY - _MUST_ESCAPE - _WIDE
_CONTROLS = Choice(
    (Sequence((Literal(b"0"), byte_set(b"01234567bef"))), Sequence((Literal(b"1"), byte_set(b"0123456789abcdef"))))
)
_EVERY_ESCAPE = Sequence((Literal(b"\\"), Choice((byte_set(b'"\\bfnrt'), Sequence((Literal(b"u00"), _CONTROLS))))))
"""The one spelling of each character of `_MUST_ESCAPE`."""
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


@lru_cache(maxsize=1024)
def characters(chars: CodePoints, escapes: Escapes = "all") -> Node:
    """One character of `chars` inside a JSON string, in every spelling: raw, short escape, ``\\u`` with either case.

    With "short" `escapes`, in its one spelling.
    """
    if escapes == "short":
        return _one_spelling(chars)
    options: list[Node] = []
    raw = chars - _MUST_ESCAPE
    if raw:
        options.append(utf8(raw))
    short = [ord(letter) for char, letter in _SHORT_ESCAPES.items() if ord(char) in chars]
    escaped: list[Node] = [byte_set(short)] if short else []
    basic = within(chars.ranges, 0, 0xFFFF)
    if basic:
        escaped.append(Sequence((Literal(b"u"), _hex(basic, 4))))
    escaped.extend(_surrogate_pairs(chars))
    if escaped:
        options.append(Sequence((Literal(b"\\"), Choice(tuple(escaped)))))
    return Choice(tuple(options))


def _surrogate_pairs(chars: CodePoints) -> list[Node]:
    """Escapes of the characters past U+FFFF, each as two UTF-16 surrogates."""
    supplementary = within(chars.ranges, 0x10000, 0x10FFFF)
    pairs: list[Node] = []
    for lows, highs in by_leading_digit(supplementary, 0x400).items():
        high = _hex(merge_ranges((0xD800 + digit, 0xD800 + digit) for digit in highs), 4)
        low = _hex(tuple((0xDC00 + a, 0xDC00 + b) for a, b in lows), 4)
        pairs.append(Sequence((Literal(b"u"), high, Literal(b"\\u"), low)))
    return pairs


@lru_cache(maxsize=4096)
def _hex(ranges: tuple[Range, ...], digits: int) -> Node:
    """`digits` hexadecimal digits, of either case, that spell a number in `ranges`. `digits` is at most 4."""
    options: list[Node] = []
    for rest, leading in by_leading_digit(ranges, 16 ** (digits - 1)).items():
        lead = byte_set(ord(char) for digit in leading for char in f"{digit:x}{digit:X}")
        options.append(lead if digits == 1 else Sequence((lead, _hex(rest, digits - 1))))
    return options[0] if len(options) == 1 else Choice(tuple(options))


@lru_cache(maxsize=1024)
def key_characters(chars: CodePoints) -> Node:
    """One character of `chars` inside a key, in its one spelling. The common large parts are shared rules."""
    options: list[Node] = []
    plain = chars & _PLAIN_ASCII
    if plain:
        options.append(utf8(plain))
    for part, name in ((_WIDE, _KEY_WIDE), (_MUST_ESCAPE, _KEY_ESCAPE)):
        members = chars & part
        if members:
            options.append(RuleRef(name) if members == part else _one_spelling(members))
    return Choice(tuple(options))


def _one_spelling(chars: CodePoints) -> Node:
    escaped = chars & _MUST_ESCAPE
    spelled: Iterable[Node] = (
        Literal(text_inside(chr(code))) for low, high in escaped.ranges for code in range(low, high + 1)
    )
    if escaped == _MUST_ESCAPE:
        spelled = (_EVERY_ESCAPE,)
    raw = chars - _MUST_ESCAPE
    return Choice((*spelled, utf8(raw)) if raw else tuple(spelled))


def text_inside(text: str) -> bytes:
    """`text` as it stands between the quotes of a string of one spelling."""
    try:
        return json.dumps(text, ensure_ascii=False)[1:-1].encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can spell
        return json.dumps(text)[1:-1].encode()


def string_literal(text: str) -> Literal:
    """The JSON string `text` in its one spelling."""
    return Literal(b'"' + text_inside(text) + b'"')


KEY_QUOTE = Flagged(QUOTE, OPEN_KEY)
"""A quote of a key that no rule names. Only quotes have the flag: places inside would hide that a name just ended."""
_KEY_TEXT = Repeat(_one_spelling(ANY), 0, None)
ANY_KEY = Sequence((KEY_QUOTE, _KEY_TEXT, KEY_QUOTE))
"""Any key with its quotes, in its one spelling."""


def key_except(words: Iterable[str]) -> Node:
    """Any key but `words`."""
    return Sequence((KEY_QUOTE, Except(_KEY_TEXT, frozenset(text_inside(word) for word in words)), KEY_QUOTE))


def string(low: int, high: int | None) -> Node:
    """A string of `low` to `high` characters (code points)."""
    return ANY_STRING if (low, high) == (0, None) else Sequence((QUOTE, Repeat(ANY_CHAR, low, high), QUOTE))


MAX_INDENT = 40
"""Spaces or tabs that may follow a line break under `whitespace="indented"`."""

_ONE_SPACE = optional(Literal(b" "))
_INDENT = Sequence((optional(Literal(b"\n")), Repeat(byte_set(b" \t"), 0, MAX_INDENT)))
_POINT_ZERO = optional(Literal(b".0"))
_ANY_SPACE = Repeat(byte_set(b" \t\r\n"), 0, None)


@dataclass(frozen=True, slots=True)
class Spacing:
    """Where space may stand in JSON text, and how much.

    Attributes:
        before: of a comma or a colon.
        after: a comma or a colon.
        inside: a bracket or brace, next to it.
    """

    before: Node = EMPTY
    after: Node = EMPTY
    inside: Node = EMPTY

    @property
    def comma(self) -> Node:
        """A comma between members or elements."""
        return _joined(self.before, Literal(b","), self.after)

    def member(self, key: Node, value: Node) -> Sequence:
        """A key with its quotes, and its value."""
        if isinstance(key, Literal) and self.before == EMPTY:
            return Sequence(_parts(Literal(key.value + b":"), self.after, value))
        return Sequence(_parts(key, self.before, Literal(b":"), self.after, value))

    def bracketed(self, opening: Node, inside: Node, closing: bytes, *, may_be_empty: bool = False) -> Sequence:
        """`inside` (not empty) between brackets, or, if it may be, nothing between them."""
        if self.inside == EMPTY:
            return Sequence((opening, optional(inside) if may_be_empty else inside, Literal(closing)))
        spaced: Node = Sequence((inside, self.inside))
        return Sequence((opening, self.inside, optional(spaced) if may_be_empty else spaced, Literal(closing)))


def _parts(*nodes: Node) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node != EMPTY)


def _joined(*nodes: Node) -> Node:
    parts = _parts(*nodes)
    return parts[0] if len(parts) == 1 else Sequence(parts)


_SPACINGS: Mapping[Whitespace, Spacing] = {
    "none": Spacing(),
    "single": Spacing(after=_ONE_SPACE),
    "indented": Spacing(after=_INDENT, inside=_INDENT),
    "any": Spacing(before=_ANY_SPACE, after=_ANY_SPACE, inside=_ANY_SPACE),
}


def spacing(options: JsonOptions) -> Spacing:
    """Where space may stand under `options`."""
    return _SPACINGS[options.whitespace]


def comma_list(element: Node, low: int, high: int | None, comma: Node) -> Node:
    """`low` to `high` times `element` with commas between; `low` is at least 1."""
    if high is not None and high < low:
        return Choice(())
    if high == 1:
        return element
    more = Repeat(Sequence((comma, element)), low - 1, None if high is None else high - 1)
    return Sequence((element, more))


@lru_cache(maxsize=16)
def shared_rules(options: JsonOptions = DEFAULT_JSON_OPTIONS) -> Mapping[str, Node]:
    """The rules that `ANY_CHAR`, `ANY_VALUE` and the other references of this module name. One mapping an `options`."""
    space = spacing(options)
    char = characters(ANY, options.escapes)
    member = space.member(ANY_KEY, ANY_VALUE)
    members = comma_list(member, 1, None, space.comma)
    elements = comma_list(ANY_VALUE, 1, None, space.comma)
    opening = Flagged(Literal(b"{"), OPEN_OBJECT)
    return {
        _CHAR: char,
        _KEY_CHAR: key_characters(ANY),
        _KEY_WIDE: _one_spelling(_WIDE),
        _KEY_ESCAPE: _one_spelling(_MUST_ESCAPE),
        _STRING: Sequence((QUOTE, Repeat(char, 0, None), QUOTE)),
        _OBJECT: space.bracketed(opening, members, b"}", may_be_empty=True),
        _ARRAY: space.bracketed(Literal(b"["), elements, b"]", may_be_empty=True),
        _NUMBER: ANY_NUMBER,
        _VALUE: Choice((ANY_OBJECT, ANY_ARRAY, ANY_STRING, RuleRef(_NUMBER), BOOLEAN, NULL)),
    }


def literal(value: Any, space: Spacing) -> Node:
    """Exactly the JSON `value`: its members in their order, numbers spelled without a needless fraction.

    Numbers may be `Decimal`. Iterative, since values may nest deeply.
    """
    if not isinstance(value, dict | list):
        return _scalar(value)
    parts: list[Node] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, _Raw):
            parts.append(item.node)
        elif isinstance(item, dict):
            todo.extend(reversed(_bracketed(b"{", [(key, member) for key, member in item.items()], b"}", space)))
        elif isinstance(item, list):
            todo.extend(reversed(_bracketed(b"[", [(None, element) for element in item], b"]", space)))
        else:
            parts.append(_scalar(item))
    return Sequence(tuple(part for part in parts if part != EMPTY))


@dataclass(frozen=True, slots=True)
class _Raw:
    """A node among values."""

    node: Node


def _bracketed(opening: bytes, items: Items[tuple[str | None, Any]], closing: bytes, space: Spacing) -> list[Any]:
    found: list[Any] = [_Raw(Literal(opening)), _Raw(space.inside)]
    for index, (key, value) in enumerate(items):
        if index:
            found.append(_Raw(space.comma))
        if key is not None:
            found.append(_Raw(space.member(string_literal(key), EMPTY)))
        found.append(value)
    if items:
        found.append(_Raw(space.inside))
    return [*found, _Raw(Literal(closing))]


def _scalar(value: Any) -> Node:
    if isinstance(value, str):
        return string_literal(value)
    if isinstance(value, bool) or value is None:
        return Literal(json.dumps(value).encode())
    text = number_text(value) if isinstance(value, Decimal) else str(value)
    digits = Literal(text.encode())
    return Sequence((digits, _POINT_ZERO)) if text.removeprefix("-").isdecimal() else digits


def number_text(value: Decimal) -> str:
    """The one spelling of a number: an integer where it is one and not huge, else as ``json.dumps`` of the float."""
    if value == value.to_integral_value() and -(10**16) < value < 10**16:
        return str(int(value))
    return repr(float(value)) if Decimal(repr(float(value))) == value else str(value)
