"""Sets of tokens that many states allow as a whole: text without quotes, words.

Inside a free string nearly every token is allowed. To find that out by walking them all takes hundreds of microseconds,
so the tokens of a few sets of characters are put aside once a vocabulary; where a state surely allows all of a set
(`LazyAutomaton.cover`), only the others are walked. Source: the idea is llguidance's slicer; the test is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .code_points import LAST, CodePoints

if TYPE_CHECKING:
    from .vocabulary import TokenTrie

MOST_COVERED = 127
"""A cover of so many characters has no bound."""

_TEXT = tuple(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_WORD = tuple(byte for byte in range(0x80) if chr(byte).isalnum() or byte == ord("_"))
_LOWER = tuple(range(ord("a"), ord("z") + 1))


def _bytes(low: int, high: int) -> tuple[int, ...]:
    return tuple(range(low, high + 1))


_TAIL = _bytes(0x80, 0xBF)
# RFC 3629, section 4
_UTF8 = (
    (_bytes(0xC2, 0xDF), _TAIL),
    (_bytes(0xE0, 0xE0), _bytes(0xA0, 0xBF), _TAIL),
    ((*_bytes(0xE1, 0xEC), 0xEE, 0xEF), _TAIL, _TAIL),
    (_bytes(0xED, 0xED), _bytes(0x80, 0x9F), _TAIL),
    (_bytes(0xF0, 0xF0), _bytes(0x90, 0xBF), _TAIL, _TAIL),
    (_bytes(0xF1, 0xF3), _TAIL, _TAIL, _TAIL),
    (_bytes(0xF4, 0xF4), _bytes(0x80, 0x8F), _TAIL, _TAIL),
)

CHARACTER_SETS: Sequence[Sequence[Sequence[Sequence[int]]]] = (
    ((_TEXT,), *_UTF8),
    ((_TEXT,),),
    ((_WORD,),),
    ((_LOWER,),),
)
"""By lane of a cover: the spellings of one character, each a class of bytes a byte. The first holds all the others."""

LANE_CHARACTERS = tuple(
    CodePoints.of([(byte, byte) for byte in members] + wide)
    for members, wide in ((_TEXT, [(0x80, LAST)]), (_TEXT, []), (_WORD, []), (_LOWER, []))
)
"""`CHARACTER_SETS` as sets of characters."""


@lru_cache(maxsize=16)
def spellings(alphabet: int) -> NDArray[np.int64]:
    """`CHARACTER_SETS` over the bytes of `alphabet`, for machine.py: a row a spelling, its lane and four masks.

    A mask is four words, bit ``b % 64`` of word ``b // 64`` for byte b; masks past the end of a spelling are zero.
    Spellings with a byte that no token holds are left out: no token of a slice has them.
    """
    rows = []
    for lane, spelled in enumerate(CHARACTER_SETS):
        for spelling in spelled:
            masks = [sum(1 << byte for byte in bytes_) & alphabet for bytes_ in spelling]
            if all(masks):
                masks += [0] * (4 - len(masks))
                words = np.frombuffer(b"".join(mask.to_bytes(32, "little") for mask in masks), "<i8")
                rows.append(np.concatenate([[lane], words]))
    return np.array(rows, np.int64).reshape(-1, 17)


@dataclass(frozen=True)
class Slice:
    """The tokens of a vocabulary that are a few characters of one set, and the others.

    Attributes:
        lane: which of `CHARACTER_SETS`.
        characters: the most characters of a token.
        bits: [words] uint32, the tokens.
        make_rest: makes `rest`.
    """

    lane: int
    characters: int
    bits: NDArray[np.uint32]
    make_rest: Callable[[], TokenTrie]

    @cached_property
    def rest(self) -> TokenTrie:
        """The other tokens; made when it is first needed."""
        return self.make_rest()


MOST_CHARACTERS = (48, 24, 16, 11, 8, 5)
"""Slices of shorter tokens, for strings that are nearly full."""
FEWEST_TOKENS = 64  # a slice of fewer is not worth its trie


def tokens_by_lane(spelled: NDArray[np.uint8], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """[lanes][tokens] how many characters of the lane's set each token is, -1 where it is anything else.

    Args:
        spelled: [bytes] uint8, all tokens one after the other.
        lengths: [tokens] bytes of each, at least 1.
    """
    if not len(lengths):
        return [lengths for _ in CHARACTER_SETS]
    ends = np.cumsum(lengths)

    def consists_of(members: Sequence[int]) -> NDArray[np.bool_]:
        is_member = np.zeros(256, np.bool_)
        is_member[list(members)] = True
        whole: NDArray[np.bool_] = np.logical_and.reduceat(is_member[spelled], ends - lengths)
        return whole

    lanes = [np.where(consists_of(members), lengths, -1) for members in (_TEXT, _TEXT, _WORD, _LOWER)]
    every = spelled.tobytes()
    for index in np.flatnonzero(consists_of((*_TEXT, *_bytes(0x80, 0xFF))) & (lanes[0] < 0)).tolist():
        try:
            lanes[0][index] = len(every[ends[index] - lengths[index] : ends[index]].decode())
        except UnicodeDecodeError:  # begins or ends within a character
            continue
    return lanes
