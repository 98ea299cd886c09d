r"""What ``\p{...}`` of ECMA-262 names: general categories and scripts of characters."""

from __future__ import annotations

import unicodedata
from functools import cache

from .code_points import ANY, CodePoints, Range
from .unicode_scripts import SCRIPT_RANGES

# PropertyValueAliases.txt of the Unicode Character Database, General_Category: short name, then the others.
_CATEGORY_NAMES = """
C Other; Cc Control cntrl; Cf Format; Cn Unassigned; Co Private_Use; Cs Surrogate;
L Letter; LC Cased_Letter; Ll Lowercase_Letter; Lm Modifier_Letter; Lo Other_Letter; Lt Titlecase_Letter;
Lu Uppercase_Letter; M Mark Combining_Mark; Mc Spacing_Mark; Me Enclosing_Mark; Mn Nonspacing_Mark; N Number;
Nd Decimal_Number digit; Nl Letter_Number; No Other_Number; P Punctuation punct; Pc Connector_Punctuation;
Pd Dash_Punctuation; Pe Close_Punctuation; Pf Final_Punctuation; Pi Initial_Punctuation; Po Other_Punctuation;
Ps Open_Punctuation; S Symbol; Sc Currency_Symbol; Sk Modifier_Symbol; Sm Math_Symbol; So Other_Symbol;
Z Separator; Zl Line_Separator; Zp Paragraph_Separator; Zs Space_Separator
"""
_SHORT_NAMES = {
    name: entry.split()[0] for entry in _CATEGORY_NAMES.replace("\n", " ").split(";") for name in entry.split()
}
_CASED = ("Ll", "Lt", "Lu")
# Nothing is assigned from the first to the second of these, and from the third on only the two private planes are.
_UNASSIGNED = (0x34000, 0xE0000, 0xE1000)


@cache
def unicode_property(text: str) -> CodePoints | None:
    r"""The characters of ``\p{text}``: a general category, or a script by ``Script=``; None where it is not known.

    A script's bare name is no legal ECMA-262, but other dialects know it and it has no other meaning.
    """
    name, equals, value = text.partition("=")
    if not equals:
        name, value = "", text
    if name in ("", "General_Category", "gc") and value in _SHORT_NAMES:
        return _category(_SHORT_NAMES[value])
    if name in ("", "Script", "sc") and value in SCRIPT_RANGES:
        return _script(value)
    known = {"Any": ANY, "ASCII": CodePoints.of([(0, 0x7F)])}
    if value == "Assigned" and not name:
        return ~_category("Cn")
    return None if name else known.get(value)


def _script(name: str) -> CodePoints:
    ends = (part.partition("-") for part in SCRIPT_RANGES[name].split())
    return CodePoints.of((int(low, 16), int(high or low, 16)) for low, _, high in ends)


@cache
def _category(short: str) -> CodePoints:
    ranges = _categories()
    if short == "LC":
        return CodePoints.of(each for name in _CASED for each in ranges[name])
    return CodePoints.of(each for name, found in ranges.items() if name.startswith(short) for each in found)


@cache
def _categories() -> dict[str, list[Range]]:
    """Ranges of every two-letter category; about 40 ms, once."""
    found: dict[str, list[Range]] = {}
    first, second, third = _UNASSIGNED
    for start, stop in ((0, first), (second, third)):
        begun, current = start, unicodedata.category(chr(start))
        for code in range(start + 1, stop):
            category = unicodedata.category(chr(code))
            if category != current:
                found.setdefault(current, []).append((begun, code - 1))
                begun, current = code, category
        found.setdefault(current, []).append((begun, stop - 1))
    found["Cn"] += [(first, second - 1), (third, 0xEFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, 0x10FFFF)]
    found["Co"] += [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
    return found
