"""Rules for JSON text: characters inside strings, strings, literals, separators, any value. Source: RFC 8259.

Space is bounded: at most one space after a comma and after a colon, and nothing else. Strings of values may use every
escape of JSON; keys, and the strings of `const` and `enum`, have one spelling each, that of ``json.dumps`` with
``ensure_ascii=False``, so that a grammar can force them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from decimal import Decimal
from functools import lru_cache
from typing import Any

from .code_points import ANY, CodePoints, Range, by_leading_digit, merge_ranges, utf8, within
from .json_numbers import ANY_NUMBER
from .rules import EMPTY, Choice, Literal, Node, Repeat, RuleRef, Sequence, byte_set, optional

COMMA = Sequence((Literal(b","), optional(Literal(b" "))))
COLON = Sequence((Literal(b":"), optional(Literal(b" "))))
QUOTE = Literal(b'"')

_CHAR = "json/char"
_KEY_CHAR = "json/key-char"
_KEY_WIDE = "json/key-wide"
_KEY_ESCAPE = "json/key-escape"
_STRING = "json/string"
_KEY = "json/key"
_VALUE = "json/value"
_OBJECT = "json/object"
_ARRAY = "json/array"

ANY_CHAR = RuleRef(_CHAR)
ANY_STRING = RuleRef(_STRING)
ANY_VALUE = RuleRef(_VALUE)
ANY_OBJECT = RuleRef(_OBJECT)
ANY_ARRAY = RuleRef(_ARRAY)
KEY_REST = Sequence((Repeat(RuleRef(_KEY_CHAR), 0, None), QUOTE))
BOOLEAN = Choice((Literal(b"true"), Literal(b"false")))
NULL = Literal(b"null")

_MUST_ESCAPE = CodePoints.of([(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))])
_WIDE = CodePoints.of([(0x80, 0x10FFFF)])
_PLAIN_ASCII = ANY - _MUST_ESCAPE - _WIDE
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


@lru_cache(maxsize=1024)
def characters(chars: CodePoints) -> Node:
    """One character of `chars` inside a JSON string, in every spelling: raw, short escape, ``\\u`` with either case."""
    options: list[Node] = []
    raw = chars - _MUST_ESCAPE
    if raw:
        options.append(utf8(raw))
    short = [ord(letter) for char, letter in _SHORT_ESCAPES.items() if ord(char) in chars]
    escapes: list[Node] = [byte_set(short)] if short else []
    basic = within(chars.ranges, 0, 0xFFFF)
    if basic:
        escapes.append(Sequence((Literal(b"u"), _hex(basic, 4))))
    escapes.extend(_surrogate_pairs(chars))
    if escapes:
        options.append(Sequence((Literal(b"\\"), Choice(tuple(escapes)))))
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
    spelled = (Literal(text_inside(chr(code))) for low, high in escaped.ranges for code in range(low, high + 1))
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


def string(low: int, high: int | None) -> Node:
    """A string of `low` to `high` characters (code points)."""
    return ANY_STRING if (low, high) == (0, None) else Sequence((QUOTE, Repeat(ANY_CHAR, low, high), QUOTE))


def comma_list(element: Node, low: int, high: int | None) -> Node:
    """`low` to `high` times `element` with commas between."""
    if high is not None and high < max(low, 1):
        return EMPTY if low == 0 == high else Choice(())
    more = Repeat(Sequence((COMMA, element)), max(low - 1, 0), None if high is None else high - 1)
    some = Sequence((element, more))
    return optional(some) if low == 0 else some


def shared_rules() -> dict[str, Node]:
    """The rules that `ANY_CHAR`, `ANY_VALUE` and the other references of this module name."""
    member = Sequence((RuleRef(_KEY), COLON, ANY_VALUE))
    return {
        _CHAR: characters(ANY),
        _KEY_CHAR: key_characters(ANY),
        _KEY_WIDE: _one_spelling(_WIDE),
        _KEY_ESCAPE: _one_spelling(_MUST_ESCAPE),
        _STRING: Sequence((QUOTE, Repeat(ANY_CHAR, 0, None), QUOTE)),
        _KEY: Sequence((QUOTE, KEY_REST)),
        _OBJECT: Sequence((Literal(b"{"), comma_list(member, 0, None), Literal(b"}"))),
        _ARRAY: Sequence((Literal(b"["), comma_list(ANY_VALUE, 0, None), Literal(b"]"))),
        _VALUE: Choice((ANY_OBJECT, ANY_ARRAY, ANY_STRING, ANY_NUMBER, BOOLEAN, NULL)),
    }


def literal(value: Any) -> Node:
    """Exactly the JSON `value`: its members in their order, numbers spelled without a needless fraction.

    Numbers may be `Decimal`. Iterative, since values may nest deeply.
    """
    parts: list[Node] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Literal | Sequence):
            parts.append(item)
        elif isinstance(item, dict):
            members = [[string_literal(key), COLON, member] for key, member in item.items()]
            todo.extend(reversed(_bracketed(b"{", members, b"}")))
        elif isinstance(item, list):
            todo.extend(reversed(_bracketed(b"[", [[element] for element in item], b"]")))
        else:
            parts.append(_scalar(item))
    return Sequence(tuple(parts))


def _bracketed(opening: bytes, groups: Items[list[Any]], closing: bytes) -> list[Any]:
    inside = [item for index, group in enumerate(groups) for item in ([COMMA] if index else []) + group]
    return [Literal(opening), *inside, Literal(closing)]


def _scalar(value: Any) -> Literal:
    if isinstance(value, str):
        return string_literal(value)
    if isinstance(value, Decimal):
        return Literal(number_text(value).encode())
    return Literal(json.dumps(value).encode())


def number_text(value: Decimal) -> str:
    """The one spelling of a number: an integer where it is one and not huge, else as ``json.dumps`` of the float."""
    if value == value.to_integral_value() and -(10**16) < value < 10**16:
        return str(int(value))
    return repr(float(value)) if Decimal(repr(float(value))) == value else str(value)
