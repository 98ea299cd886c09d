"""What the sampling kernels share: a row's scores and weights, its peak, and its random number.

Numbers are those of `palmette.runtime.token_choice`, whose integer weights make sums exact in any order. The one
difference is `exp`, which may differ from torch's in the last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORDS_A_SLOT: tl.constexpr = tl.constexpr(8)
"""int32 words of a slot in the table of `palmette.runtime.slot_options`: see there for their order."""

_COLUMNS: tl.constexpr = tl.constexpr(1 << 21)
_LN2_HIGH: tl.constexpr = tl.constexpr(0.693359375)
_LN2_LOW: tl.constexpr = tl.constexpr(-2.12194440e-4)
_ROUND: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def row_scores(
    source,
    columns,
    words,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    TILED: tl.constexpr,
):
    """float32 scores of these columns of a row: -inf past the vocabulary and where the row's mask does not allow.

    The source is (logits, stride, shaped, shaped_row, masks, mask_row, row). A row of `shaped` (penalties, mask and
    bias are in it) stands for the row of logits where `shaped_row` says so.
    `words` [n] are the words of a mask that say which columns [n] it allows; columns [n, 32] if TILED.
    """
    logits, stride, shaped, shaped_row, masks, mask_row, row = source
    # the padding is read and then dropped: a bound that is a multiple of 16 keeps the loads wide
    inside = columns < WIDTH
    lowest = float("-inf")
    if SHAPED:
        plain = inside & (shaped_row < 0)
        scores = tl.load(logits + row.to(tl.int64) * stride + columns, mask=plain, other=lowest).to(tl.float32)
        start = tl.maximum(shaped_row, 0).to(tl.int64) * WIDTH
        ready = tl.load(shaped + start + columns, mask=inside & (shaped_row >= 0), other=lowest)
        scores = tl.where(shaped_row >= 0, ready, scores)
    else:
        scores = tl.load(logits + row.to(tl.int64) * stride + columns, mask=inside, other=lowest).to(tl.float32)
    if MASKED:
        words_a_row: tl.constexpr = (WIDTH + 31) // 32
        start = tl.maximum(mask_row, 0).to(tl.int64) * words_a_row
        bits = tl.load(masks + start + words, mask=(words < words_a_row) & (mask_row >= 0), other=-1)
        if TILED:
            bits = bits[:, None]
        allowed = ((bits >> (columns % 32)) & 1) != 0
        scores = tl.where(allowed | (scores != scores), scores, lowest)  # NaN shows through every mask
    return tl.where(columns < VALID, scores, lowest)


@triton.jit
def option_word(slot_table, slot, word: tl.constexpr):
    """One int32 word of a slot's options."""
    return tl.load(slot_table + slot * WORDS_A_SLOT + word)


@triton.jit
def option_float(slot_table, slot, word: tl.constexpr):
    """One float32 of a slot's options."""
    return option_word(slot_table, slot, word).to(tl.float32, bitcast=True)


@triton.jit
def option_long(slot_table, slot, word: tl.constexpr):
    """64 bits of a slot's options, as int64."""
    low = option_word(slot_table, slot, word).to(tl.int64) & 0xFFFFFFFF
    return (option_word(slot_table, slot, word + 1).to(tl.int64) << 32) | low


@triton.jit
def row_peak(peaks, row, chunks, CHUNKS: tl.constexpr):
    """The largest score of a row from those of its chunks; and the chunks' own."""
    chunk = tl.arange(0, CHUNKS)
    values = tl.load(peaks + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    return tl.max(values, axis=0), values


@triton.jit
def is_finite(number):
    return tl.abs(number) < float("inf")


@triton.jit
def temperatures_of(scores, peak, temperature):
    """(scores - peak) / temperature; -60 where it is less, which is past the last weight."""
    relative = tl.div_rn(scores - peak, temperature)
    return tl.where(relative > -60.0, relative, -60.0)


@triton.jit
def weights_of(scores, peak, temperature):
    """exp((scores - peak) / temperature) in units of 2**-40, as int64."""
    relative = temperatures_of(scores, peak, temperature)
    # Cody and Waite's reduction, then Taylor's series up to degree 7: |rest| < 0.35, an error under half a unit
    rounded = relative * 1.4426950408889634 + _ROUND
    twos = rounded - _ROUND
    rest = relative - twos * _LN2_HIGH
    rest = rest - twos * _LN2_LOW
    series = rest * (1.0 / 5040) + (1.0 / 720)
    series = series * rest + (1.0 / 120)
    series = series * rest + (1.0 / 24)
    series = series * rest + (1.0 / 6)
    series = series * rest + 0.5
    series = series * rest + 1.0
    series = series * rest + 1.0
    # the last bits of `rounded` are the power of two: moved up, with 2**40 added, they are the exponent of a float
    power = ((rounded.to(tl.int32, bitcast=True) + (127 + 40)) << 23).to(tl.float32, bitcast=True)
    return (series * power).to(tl.int64)


@triton.jit
def ordered_keys(scores):
    """int32 in the order of the scores; equal scores, 0 and -0 among them, have equal keys."""
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def ranks_of(scores, columns):
    """int64, no two the same: in the order of the scores, and of equal ones the lower column has the higher rank."""
    return ordered_keys(scores).to(tl.int64) * _COLUMNS + (_COLUMNS - 1 - columns)


@triton.jit
def score_at(ranks):
    """The score of which `ranks_of` made these."""
    keys = (ranks >> 21).to(tl.int32)
    return tl.where(keys >= 0, keys, keys ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def kept_weights(scores, peak, temperature, min_p, threshold, columns, RANKED: tl.constexpr):
    """The row's weights; 0 for tokens that min-p drops, or top-k and top-p: those with ranks under the threshold."""
    weights = weights_of(scores, peak, temperature)
    least = (min_p.to(tl.float64) * 1099511627776.0).to(tl.int64)
    kept = weights >= least
    if RANKED:
        kept = kept & (ranks_of(scores, columns) >= threshold)
    return tl.where(kept, weights, 0)


@triton.jit
def uniform(seed, position):
    """A float64 in [0, 1): what `palmette.runtime.philox.uniform` gives for draw 0."""
    zero = tl.zeros_like(position).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, position.to(tl.uint32), zero, zero, zero)
    bits = ((first >> 5).to(tl.int64) << 26) | (second >> 6).to(tl.int64)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2**-53
