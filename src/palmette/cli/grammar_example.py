"""A text that a grammar allows, to look at."""

from __future__ import annotations

import random

import numpy as np

from palmette.constrained import CompiledGrammar, Matcher

_MOST_SHORTEST = 100_000


def shortest_text(compiled: CompiledGrammar) -> str | None:
    """The shortest text; None where even that is very long.

    Args:
        compiled: for single bytes.
    """
    if compiled.ending_bytes(compiled.start) > _MOST_SHORTEST:
        return None
    return bytes(compiled.shortest_ending(compiled.start)).decode("utf-8", "replace")


def example_text(compiled: CompiledGrammar, room: int, seed: int = 0) -> str | None:
    """A text of at most `room` bytes that a coin makes, readable where the grammar lets it be; None where none fits.

    Args:
        compiled: for single bytes.
    """
    matcher = compiled.matcher()
    if matcher.ending_bytes() > room:
        return None
    coin = random.Random(seed)
    text = bytearray()
    while not matcher.finished:
        choices = _classes(matcher, room - len(text))
        if matcher.is_accepting and (not choices or coin.random() < 0.1):
            break
        byte = coin.choice(coin.choice(choices))
        matcher.accept(byte)
        text.append(byte)
    return text.decode("utf-8", "replace")


def _classes(matcher: Matcher, left: int) -> list[list[int]]:
    """The bytes after which the text can still end in time, in groups that are equally likely."""
    bits = np.unpackbits(matcher.mask_within(left).view(np.uint8), bitorder="little")[:256]
    groups: dict[str, list[int]] = {}
    for byte in np.flatnonzero(bits).tolist():
        groups.setdefault(_group(chr(byte)), []).append(byte)
    if len(groups.get("lower", ())) == 26:  # free text: no signs and no line ends, but for the quote that may end it
        groups = {name: members for name, members in groups.items() if name in ("lower", '"')}
        groups |= {"more": groups["lower"]}
    return list(groups.values())


def _group(char: str) -> str:
    if char.isascii() and char.isalnum():
        return "digit" if char.isdigit() else "lower" if char.islower() else "upper"
    return char if char.isascii() else "wide"
