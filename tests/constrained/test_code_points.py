"""Sets of characters and their UTF-8."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.constrained.reference import Derivatives

from palmette.constrained.char_classes import fold, unicode_class
from palmette.constrained.code_points import ANY, CodePoints, utf8
from palmette.constrained.rules import RuleRef, Rules

_POINTS = st.sampled_from([0, 0x41, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]) | st.integers(
    0, 0x10FFFF
)
_SETS = st.lists(st.tuples(_POINTS, _POINTS).map(lambda pair: (min(pair), max(pair))), max_size=4).map(CodePoints.of)


def is_character(code: int) -> bool:
    """Whether `code` is no surrogate."""
    return not 0xD800 <= code <= 0xDFFF


@given(_SETS, _SETS, _POINTS)
def test_set_operations(a: CodePoints, b: CodePoints, code: int) -> None:
    """Union, intersection, difference and complement are those of sets of characters without surrogates."""
    if is_character(code):
        assert (code in a | b) == (code in a or code in b)
        assert (code in a & b) == (code in a and code in b)
        assert (code in a - b) == (code in a and code not in b)
        assert (code in ~a) == (code not in a)
    assert ~~a == a
    assert 0xD800 not in ANY


@given(_SETS, _POINTS)
def test_utf8(chars: CodePoints, code: int) -> None:
    """The rule of a set accepts exactly the UTF-8 of its members."""
    for member in [code] + [end for low, high in chars.ranges for end in (low, high)]:
        if is_character(member):
            reference = Derivatives(Rules("start", {"start": utf8(chars)}))
            after = reference.after_all(RuleRef("start"), chr(member).encode())
            assert reference.accepts(after) == (member in chars)


def test_utf8_rejects_what_is_not_utf8() -> None:
    """No overlong forms, no surrogates, nothing past U+10FFFF."""
    reference = Derivatives(Rules("start", {"start": utf8(ANY)}))
    for wrong in (
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"\xff",
    ):
        assert not reference.accepts(reference.after_all(RuleRef("start"), wrong))


def test_named_classes_and_case() -> None:
    """Unicode classes and equality without case, at the places where they surprise."""
    assert ord("٣") in unicode_class("d")
    assert ord("²") not in unicode_class("d")
    assert ord("²") in unicode_class("w")
    assert ord("\u2028") in unicode_class("s")
    assert fold(CodePoints.from_text("s")) == CodePoints.from_text("sSſ")
    assert fold(CodePoints.from_text("K")) == CodePoints.from_text("kK\u212a")
    assert fold(CodePoints.from_text("1")) == CodePoints.from_text("1")
