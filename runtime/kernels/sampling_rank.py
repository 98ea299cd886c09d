"""Where top-k and top-p cut a row: the rank of the last token that is kept. Without a sort.

Ranks are in the order of the scores, and of equal scores the lower id comes first, so no two tokens of a row share one.
Three launches, each exact in counts and in sums of integer weights:

1. how many tokens lie in each of 2048 bins, which are equal parts of the way down from the row's peak;
2. from these the few bins where the cut may be, and the ranks of the tokens in them, written close together;
3. a bisection over those ranks, in registers.

Many programs share a row in the first two. A bin's count bounds the weight in it to within its width, at most 1.4 parts
in a hundred, so few tokens are left. Where more are than a program can hold (nearly all scores are equal, or top-k
keeps thousands and top-p cuts among them), the third walks the row until few enough remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sampling_scores import (
    is_finite,
    option_float,
    option_long,
    option_word,
    ranks_of,
    row_peak,
    row_scores,
    score_at,
    temperatures_of,
    weights_of,
)

EVERYTHING = -(2**63)
"""The threshold that every token passes."""

_BINS = 2048
_CANDIDATES = 2048
_BLOCK = 2048
_PROGRAMS = 1024
"""About so many share the rows: eight a processor of an H200."""

_REACH = tl.constexpr(27.75)
"""In temperatures: no token further below the peak has weight, since 2**-40 is at 27.73."""

_SLACK = tl.constexpr(0.02)
"""Of a bin: its edges are off by less, through the rounding of float32."""

_LOWEST = tl.constexpr(-9223372036854775808)

# int64 words of a row that its programs share
_WEIGHT, _OUTSIDE, _NUMBER, _NUMBER_ABOVE, _WEIGHT_ABOVE, _FOUND, _LAST = map(tl.constexpr, range(7))
_WORDS = tl.constexpr(8)


def rank_rows(
    scores: tuple[Any, ...],
    ranked: Tensor,
    slots: Tensor,
    slot_table: Tensor,
    peaks: Tensor,
    flags: Mapping[str, Any],
) -> Tensor:
    """Thresholds [S] int64: the rank of the last token that is kept; `EVERYTHING` for rows without top-k and top-p.

    Args:
        scores, flags: arguments of the kernels of `palmette.runtime.kernels.sampling`.
        ranked: [N] int32, the rows with top-k or top-p.
        slots: [S] int32.
        slot_table: [max_slots, 8] int32.
        peaks: [S, chunks] float32.
    """
    number, chunks = len(ranked), peaks.shape[1]
    thresholds = torch.full((len(slots),), EVERYTHING, dtype=torch.int64, device=slots.device)
    counts, shared = (
        torch.zeros(number * (_BINS // 2 + _WORDS.value), dtype=torch.int64, device=slots.device)
        .split((number * _BINS // 2, number * _WORDS.value))
    )  # fmt: skip
    candidates = torch.empty((number, _CANDIDATES), dtype=torch.int64, device=slots.device)
    blocks = triton.cdiv(flags["WIDTH"], _BLOCK)
    share = triton.cdiv(blocks, max(1, min(blocks, _PROGRAMS // number)))
    shares = triton.cdiv(blocks, share)
    rows = (*scores, slots, slot_table, peaks, chunks, ranked)
    fixed = {**flags, "BLOCK": _BLOCK}
    bins = {"BINS": _BINS, "num_warps": 8}
    _count[(number * shares,)](*rows, counts.view(torch.int32), shared, share, shares, **fixed, **bins)
    _gather[(number * shares,)](
        *rows, counts.view(torch.int32), shared, candidates, share, shares, **fixed, **bins, CANDIDATES=_CANDIDATES
    )
    _cut[(number,)](*rows, shared, candidates, thresholds, **fixed, **bins, CANDIDATES=_CANDIDATES)
    return thresholds


@triton.jit
def _scale_of(top_k, top_p, VALID: tl.constexpr, BINS: tl.constexpr):
    """Bins in a temperature: they reach as far down from the peak as the cut can be.

    What is further down than log(VALID / (1 - top_p)) temperatures weighs less, all together, than 1 - top_p times the
    likeliest token. A `top_k` of VALID is none.
    """
    reach = tl.log(VALID / tl.maximum(1 - top_p, 1e-12).to(tl.float32)) + 0.01
    return BINS / tl.where((top_k < VALID) | (top_p >= 1.0), _REACH, tl.minimum(reach, _REACH))


@triton.jit
def _bins_of(scores, peak, temperature, scale, BINS: tl.constexpr):
    """Equal parts of the way down from the peak, no higher score after a lower one; `BINS` for all that is beyond."""
    return tl.minimum(-temperatures_of(scores, peak, temperature) * scale, BINS).to(tl.int32)


@triton.jit
def _options_of(slots, slot_table, peaks, row, chunks, CHUNKS: tl.constexpr):
    """The row's peak, and its temperature, top-k and top-p."""
    slot = tl.load(slots + row)
    peak, _values = row_peak(peaks, row, chunks, CHUNKS)
    temperature, top_k = option_float(slot_table, slot, 4), option_word(slot_table, slot, 6)
    top_p = option_long(slot_table, slot, 2).to(tl.float64, bitcast=True)
    return peak, temperature, top_k, top_p


@triton.jit(do_not_specialize=["chunks", "share", "shares"])
def _count(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    slot_table,
    peaks,
    chunks,
    ranked,
    counts,
    shared,
    share,
    shares,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """A program is some blocks of a ranked row: how many tokens each bin has; the weight of all, and outside."""
    turn, first = tl.program_id(0) // shares, tl.program_id(0) % shares * share
    row = tl.load(ranked + turn)
    source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
    peak, temperature, top_k, top_p = _options_of(slots, slot_table, peaks, row, chunks, CHUNKS)
    if is_finite(peak):
        scale = _scale_of(top_k, top_p, VALID, BINS)
        total, outside = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
        start = first * BLOCK
        end = tl.minimum(start + share * BLOCK, WIDTH)
        while start < end:
            # a thread has columns that are not beside each other, as atomics want it: else all is computed twice
            columns = tl.max_contiguous(start + tl.arange(0, BLOCK), 1)
            scores = row_scores(source, columns, columns // 32, WIDTH, VALID, SHAPED, MASKED, False)
            weights = weights_of(scores, peak, temperature)
            bins = _bins_of(scores, peak, temperature, scale, BINS)
            inside = bins < BINS
            tl.atomic_add(counts + turn * BINS + bins, tl.full([BLOCK], 1, tl.int32), mask=inside, sem="relaxed")
            total += weights
            outside += tl.where(inside, 0, weights)
            start += BLOCK
        tl.atomic_add(shared + turn * _WORDS + _WEIGHT, tl.sum(total, axis=0), sem="relaxed")
        tl.atomic_add(shared + turn * _WORDS + _OUTSIDE, tl.sum(outside, axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["chunks", "share", "shares"])
def _gather(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    slot_table,
    peaks,
    chunks,
    ranked,
    counts,
    shared,
    candidates,
    share,
    shares,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """A program is some blocks of a ranked row: the ranks in the bins where the cut may be, and what is above these."""
    turn, part = tl.program_id(0) // shares, tl.program_id(0) % shares
    row = tl.load(ranked + turn)
    source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
    peak, temperature, top_k, top_p = _options_of(slots, slot_table, peaks, row, chunks, CHUNKS)
    words = shared + turn * _WORDS
    tokens = tl.load(counts + turn * BINS + tl.max_contiguous(tl.arange(0, BINS), 1))
    number = tl.sum(tokens, axis=0)
    if is_finite(peak) & ((top_k < number) | (top_p < 1.0)):
        scale = _scale_of(top_k, top_p, VALID, BINS)
        low, high = _bins_of_the_cut(
            tokens, number, tl.load(words + _WEIGHT), tl.load(words + _OUTSIDE), top_k, top_p, 1 / scale, BINS
        )
        if part == 0:
            tl.store(words + _NUMBER, number.to(tl.int64))
            number_above = tl.sum(tl.where(tl.arange(0, BINS) < low, tokens, 0), axis=0)
            tl.store(words + _NUMBER_ABOVE, number_above.to(tl.int64))
            tl.store(words + _LAST, high.to(tl.int64))
        weight_above = tl.zeros([BLOCK], tl.int64)
        found = words + _FOUND + tl.zeros([BLOCK], tl.int32)
        one = tl.full([BLOCK], 1, tl.int64)
        start = part * share * BLOCK
        end = tl.minimum(start + share * BLOCK, WIDTH)
        while start < end:
            columns = tl.max_contiguous(start + tl.arange(0, BLOCK), 1)
            scores = row_scores(source, columns, columns // 32, WIDTH, VALID, SHAPED, MASKED, False)
            weights = weights_of(scores, peak, temperature)
            bins = _bins_of(scores, peak, temperature, scale, BINS)
            taken = (bins >= low) & (bins <= high)
            places = tl.atomic_add(found, one, mask=taken, sem="relaxed")
            ranks = ranks_of(scores, columns)
            tl.store(candidates + turn * CANDIDATES + places, ranks, mask=taken & (places < CANDIDATES))
            weight_above += tl.where(bins < low, weights, 0)
            start += BLOCK
        tl.atomic_add(words + _WEIGHT_ABOVE, tl.sum(weight_above, axis=0), sem="relaxed")


@triton.jit
def _bins_of_the_cut(tokens, number, weight, outside, top_k, top_p, step, BINS: tl.constexpr):
    """The first and the last bin where the cut may be, from how many `tokens` each has [BINS]; what is above is kept.

    With top-k and top-p: the bins that hold the `top_k` likeliest, since the weight of those is not known yet.
    `step`: how many temperatures a bin is wide.
    """
    bins = tl.arange(0, BINS)
    if top_k < number:
        first = 0
        last = tl.sum((tl.cumsum(tokens, axis=0) < top_k).to(tl.int32), axis=0)
        if top_p >= 1.0:
            first = last
    else:
        # a token weighs at least and at most what one at its bin's edges does. What is not after a bin is in it or
        # before it: near the end little is after, which bounds the rest more closely
        least = tokens * tl.maximum(tl.exp((-1 - _SLACK - bins) * step).to(tl.float64) * 1099511627776.0 - 1, 0.0)
        most = tokens * (tl.exp((_SLACK - bins) * step).to(tl.float64) * 1099511627776.0 + 1)
        total, rounding = weight.to(tl.float64), weight.to(tl.float64) * 1e-10
        reached_by_least, reached_by_most = tl.cumsum(least, axis=0), tl.cumsum(most, axis=0)
        after_least, after_most = tl.sum(least, axis=0) - reached_by_least, tl.sum(most, axis=0) - reached_by_most
        lower = tl.maximum(reached_by_least, total - outside - after_most) - rounding
        upper = tl.minimum(reached_by_most, total - outside - after_least) + rounding
        first = tl.sum((upper < top_p * total).to(tl.int32), axis=0)
        last = tl.sum((lower < top_p * total).to(tl.int32), axis=0)
    return tl.minimum(first, BINS - 1), tl.minimum(last, BINS - 1)


@triton.jit(do_not_specialize=["chunks"])
def _cut(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    slot_table,
    peaks,
    chunks,
    ranked,
    shared,
    candidates,
    thresholds,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """A program is a ranked row: its threshold."""
    turn = tl.program_id(0)
    row = tl.load(ranked + turn)
    source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
    peak, temperature, top_k, top_p = _options_of(slots, slot_table, peaks, row, chunks, CHUNKS)
    words = shared + turn * _WORDS
    found = tl.load(words + _FOUND)
    if found > 0:
        mine = candidates + turn * CANDIDATES
        number, weight = tl.load(words + _NUMBER), tl.load(words + _WEIGHT)
        number_above, weight_above = tl.load(words + _NUMBER_ABOVE), tl.load(words + _WEIGHT_ABOVE)
        crowded = found > CANDIDATES
        low = tl.full((), _LOWEST, tl.int64)
        if crowded:
            last = tl.load(words + _LAST)
            scale = _scale_of(top_k, top_p, VALID, BINS)
            low = _lowest_rank(source, last, peak, temperature, scale, WIDTH, VALID, SHAPED, MASKED, BLOCK, BINS)
            found += number_above
        if top_k < number:
            needed = top_k.to(tl.float64)
            if crowded:
                found, number_above = _narrow(
                    source, mine, low, found, needed, peak, temperature,
                    False, WIDTH, VALID, SHAPED, MASKED, BLOCK, CANDIDATES,
                )  # fmt: skip
            ranks = _ranks_from(mine, found, low, CANDIDATES)
            low = _bisect(ranks, (ranks > _LOWEST).to(tl.int64), number_above, needed)
            if crowded:
                top = ranks_of(peak, 0) + 1
                found, weight = _between(source, low, top, peak, temperature, WIDTH, VALID, SHAPED, MASKED, BLOCK)
            else:
                kept = tl.where(ranks >= low, _weights_at(ranks, peak, temperature), 0)
                weight = weight_above + tl.sum(kept, axis=0)
        if top_p < 1.0:
            needed = top_p * weight.to(tl.float64)
            if crowded:
                found, weight_above = _narrow(
                    source, mine, low, found, needed, peak, temperature,
                    True, WIDTH, VALID, SHAPED, MASKED, BLOCK, CANDIDATES,
                )  # fmt: skip
            ranks = _ranks_from(mine, found, low, CANDIDATES)
            low = _bisect(ranks, _weights_at(ranks, peak, temperature), weight_above, needed)
        tl.store(thresholds + row, low)


@triton.jit
def _ranks_from(candidates, found, low, CANDIDATES: tl.constexpr):
    """[CANDIDATES], in any order: the ranks from `low` on; the lowest number where there are fewer."""
    place = tl.arange(0, CANDIDATES)
    ranks = tl.load(candidates + place, mask=place < found, other=_LOWEST)
    return tl.where(ranks >= low, ranks, _LOWEST)


@triton.jit
def _weights_at(ranks, peak, temperature):
    return tl.where(ranks > _LOWEST, weights_of(score_at(ranks), peak, temperature), 0)


@triton.jit
def _bisect(ranks, amounts, beyond, needed):
    """The largest rank for which those from it on have the amount `needed`, `beyond` included."""
    low = tl.min(tl.where(ranks > _LOWEST, ranks, -(_LOWEST + 1)), axis=0)
    high = tl.max(ranks, axis=0) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        amount = beyond + tl.sum(tl.where(ranks >= middle, amounts, 0), axis=0)
        reached = amount.to(tl.float64) >= needed
        low, high = tl.where(reached, middle, low), tl.where(reached, high, middle)
    return low


@triton.jit
def _lowest_rank(
    source,
    last,
    peak,
    temperature,
    scale,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Of the tokens in the bins up to `last`."""
    lowest = tl.full([BLOCK], -(_LOWEST + 1), tl.int64)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = row_scores(source, columns, columns // 32, WIDTH, VALID, SHAPED, MASKED, False)
        inside = _bins_of(scores, peak, temperature, scale, BINS) <= last
        lowest = tl.where(inside, tl.minimum(lowest, ranks_of(scores, columns)), lowest)
    return tl.min(lowest, axis=0)


@triton.jit
def _between(
    source,
    low,
    high,
    peak,
    temperature,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many tokens have ranks from `low` on and below `high`, and their weight."""
    number, weight = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = row_scores(source, columns, columns // 32, WIDTH, VALID, SHAPED, MASKED, False)
        ranks = ranks_of(scores, columns)
        inside = (ranks >= low) & (ranks < high)
        number += tl.sum(inside.to(tl.int64), axis=0)
        weight += tl.sum(tl.where(inside, weights_of(scores, peak, temperature), 0), axis=0)
    return number, weight


@triton.jit
def _narrow(
    source,
    candidates,
    low,
    found,
    needed,
    peak,
    temperature,
    BY_WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Of the `found` tokens from `low` on, write the ranks of so few that they fit, among which the cut is.

    Returns how many those are, and the amount above them.
    """
    high = ranks_of(peak, 0) + 1
    beyond = tl.full((), 0, tl.int64)
    while found > CANDIDATES:
        middle = low + (high - low) // 2
        number, amount = _between(source, middle, high, peak, temperature, WIDTH, VALID, SHAPED, MASKED, BLOCK)
        if not BY_WEIGHT:
            amount = number
        reached = (beyond + amount).to(tl.float64) >= needed
        low, high = tl.where(reached, middle, low), tl.where(reached, high, middle)
        found = tl.where(reached, number, found - number)
        beyond = tl.where(reached, beyond, beyond + amount)
    tl.debug_barrier()  # what is written over has been read
    place = tl.full((), 0, tl.int64)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = row_scores(source, columns, columns // 32, WIDTH, VALID, SHAPED, MASKED, False)
        ranks = ranks_of(scores, columns)
        taken = ((ranks >= low) & (ranks < high)).to(tl.int32)
        tl.store(candidates + place + tl.cumsum(taken, axis=0) - 1, ranks, mask=taken != 0)
        place += tl.sum(taken, axis=0)
    tl.debug_barrier()
    return place, beyond
