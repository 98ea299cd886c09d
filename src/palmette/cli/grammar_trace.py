"""Where a text leaves a grammar, byte by byte, and what was allowed there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from palmette.constrained import CompiledGrammar, Grammar, Matcher, TokenRejectedError, Vocabulary, compile_grammar

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])
"""A vocabulary of the 256 bytes, for grammars without a model."""

_PRINTABLE = range(0x20, 0x7F)
_NAMES = {" ": "space", "\n": "line feed", "\r": "carriage return", "\t": "tab"}
_FORCED_SHOWN = 40


def compile_for_bytes(grammar: Grammar) -> CompiledGrammar:
    """`grammar` over single bytes. Raises what `compile_grammar` raises."""
    return compile_grammar(grammar, BYTES)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The first place where no text of the grammar goes on as this one does.

    Attributes:
        offset: in bytes, of the character that is wrong; the length of the text where it ends too early.
        line, column: from 1, in characters.
        expected: what could stand there, for people.
        at_end: the text ends too early.
    """

    offset: int
    line: int
    column: int
    expected: str
    at_end: bool


def find_rejection(compiled: CompiledGrammar, text: str) -> Rejection | None:
    """Where `text` is wrong; None where it matches in full.

    Raises:
        GrammarLimitError: the grammar meets one of its limits on the way.
    """
    data = text.encode("utf-8", "surrogatepass")
    matcher = compiled.matcher()
    taken = _follow(matcher, data)
    if taken == len(data) and matcher.is_accepting:
        return None
    start = taken
    while start < len(data) and data[start] & 0xC0 == 0x80:  # the first byte of the character that is wrong
        start -= 1
    matcher.rollback(taken - start)
    before = data[:start].decode("utf-8", "surrogatepass")
    line_start = before.rfind("\n") + 1
    return Rejection(
        start, before.count("\n") + 1, len(before) - line_start + 1, expected_here(matcher), taken == len(data)
    )


def _follow(matcher: Matcher, data: bytes) -> int:
    """Accept bytes as far as the grammar goes; returns how many."""
    for taken, byte in enumerate(data):
        try:
            matcher.accept(byte)
        except TokenRejectedError:
            return taken
    return len(data)


def expected_here(matcher: Matcher) -> str:
    """What may come next, in words: the text that is forced, or classes of characters."""
    forced = matcher.forced_bytes().decode("utf-8", "ignore")
    if len(forced) > 1:
        return repr(forced if len(forced) <= _FORCED_SHOWN else forced[:_FORCED_SHOWN] + "…")
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:256]
    allowed = set(np.flatnonzero(bits).tolist())
    parts = _ascii(allowed)
    wide = len([byte for byte in allowed if byte >= 0x80])
    if wide:
        parts.append("any non-ASCII character" if wide >= 50 else "some non-ASCII characters")
    if matcher.is_accepting:
        parts.append("the end of the text")
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "nothing"


def _ascii(allowed: set[int]) -> list[str]:
    """Classes of the ASCII characters among `allowed`."""
    left_out = [byte for byte in _PRINTABLE if byte not in allowed]
    if len(left_out) <= 12:
        shown = " ".join(_shown(byte) for byte in left_out)
        return [f"any printable ASCII character but {shown}" if shown else "any printable ASCII character"] + [
            _shown(byte) for byte in sorted(allowed) if byte < 0x20 and chr(byte) in _NAMES
        ]
    return [
        _shown(low)
        if low == high
        else f"{_shown(low)}-{_shown(high)}"
        if high > low + 1
        else f"{_shown(low)}, {_shown(high)}"
        for low, high in _runs(sorted(byte for byte in allowed if byte < 0x80))
    ]


def _runs(members: list[int]) -> list[tuple[int, int]]:
    """Ranges of neighbours that are all digits, or letters of one case; others stand alone."""
    runs: list[tuple[int, int]] = []
    for byte in members:
        if runs and runs[-1][1] == byte - 1 and _kind(byte) == _kind(byte - 1) != "other":
            runs[-1] = runs[-1][0], byte
        else:
            runs.append((byte, byte))
    return runs


def _kind(byte: int) -> str:
    char = chr(byte)
    return "digit" if char.isdigit() else "lower" if char.islower() else "upper" if char.isupper() else "other"


def _shown(byte: int) -> str:
    char = chr(byte)
    return _NAMES.get(char, char if byte in _PRINTABLE else f"\\x{byte:02x}")
