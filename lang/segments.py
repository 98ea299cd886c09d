"""A node's text in parts: what the program gave, what the cache had of it, what was forced, and what a model chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

SegmentKind = Literal["prompt", "reused", "generated", "forced", "chosen"]

SEGMENT_KINDS: dict[SegmentKind, str] = {
    "prompt": "given by the program, and computed",
    "reused": "given by the program, and found in the cache",
    "generated": "sampled by the model",
    "forced": "forced by the grammar",
    "chosen": "chosen by a select",
}
"""Every kind with what it means, in the order of a legend."""

_NEAR = 16  # characters within which a word begins


class Segment(NamedTuple):
    """A part of a node's text."""

    kind: SegmentKind
    text: str


def given_segments(text: str, reused_chars: int) -> tuple[Segment, ...]:
    """Text of the program's, whose first characters were found in the cache."""
    parts = (Segment("reused", text[:reused_chars]), Segment("prompt", text[reused_chars:]))
    return tuple(part for part in parts if part.text)


def answer_segments(text: str, forced_ranges: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
    """A generation's answer, with what its grammar forced."""
    parts, place = [], 0
    for begin, end in forced_ranges:
        parts += [Segment("generated", text[place:begin]), Segment("forced", text[begin:end])]
        place = end
    parts.append(Segment("generated", text[place:]))
    return tuple(part for part in parts if part.text)


def reused_length(text: str, reused: int, tokens: int) -> int:
    """How many of a text's characters its first `reused` of `tokens` tokens are: all, none, or about so many.

    Nobody knows here where the tokens end, so a part of a text ends where a word does.
    """
    if reused >= tokens or reused <= 0:
        return len(text) if 0 < tokens <= reused else 0
    place = round(len(text) * reused / tokens)
    near = [at for at in range(max(1, place - _NEAR), min(len(text), place + _NEAR)) if text[at].isspace()]
    return min(near, key=lambda at: abs(at - place)) if near else place


def cut(segments: Sequence[Segment], length: int) -> tuple[Segment, ...]:
    """The segments of a text's first `length` characters."""
    kept = []
    for kind, text in segments:
        if length <= 0:
            break
        kept.append(Segment(kind, text[:length]))
        length -= len(text)
    return tuple(kept)
