"""Where top-k and top-p cut a row: a key and, of the tokens at it, the last id that is kept. Without a sort.

Bisection over keys in the order of the scores, with exact counts and sums of integer weights. The candidates between
the bounds are written close together in every pass, so that passes become short; the last ones run in registers.
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
    ordered_keys,
    row_peak,
    row_scores,
    scores_of_keys,
    weights_of,
)

_PROGRAMS = 132
_CANDIDATES = 2048

_LOWEST_KEY = tl.constexpr(-2147483648)
_LARGEST = tl.constexpr(2147483647)


class RankScratch:
    """Memory for the candidates of the rows that are ranked at a time: taken when first needed, then kept.

    Args:
        width: columns of the logits.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._width = width
        self._memory = torch.empty((0, width), dtype=torch.int32, device=device)

    def rows(self, count: int) -> Tensor:
        """[count or more, width] int32 that holds nothing of worth."""
        if len(self._memory) < count:
            self._memory = self._memory.new_empty((count, self._width))
        return self._memory


def rank_rows(
    scores: tuple[Any, ...],
    ranked: Tensor,
    slots: Tensor,
    slot_table: Tensor,
    peaks: Tensor,
    chunks: int,
    scratch: RankScratch,
    flags: Mapping[str, Any],
    parts: Mapping[str, Any],
) -> Tensor:
    """Thresholds [2, S] int32: keys, and last ids at them; what rows without top-k and top-p have keeps everything.

    Args:
        scores, flags, parts: arguments of the kernels of `palmette.runtime.kernels.sampling`.
        ranked: [N] int32, the rows with top-k or top-p.
        slots: [S] int32.
        slot_table: [max_slots, 8] int32.
        peaks: [S, chunks] float32.
    """
    count = len(slots)
    thresholds = torch.full((2, count), -(2**31), dtype=torch.int32, device=slots.device)
    programs = min(len(ranked), _PROGRAMS)
    _row_thresholds[(programs,)](
        *scores,
        slots,
        slot_table,
        peaks,
        ranked,
        scratch.rows(programs),
        thresholds,
        chunks,
        count,
        len(ranked),
        **{name: value for name, value in flags.items() if name != "BLOCK"},
        CHUNKS=parts["CHUNKS"],
        BLOCK=_CANDIDATES,
        num_warps=8,
    )
    return thresholds


@triton.jit(do_not_specialize=["chunks", "count", "number"])
def _row_thresholds(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    slot_table,
    peaks,
    ranked,
    scratch,
    thresholds,
    chunks,
    count,
    number,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is some of the ranked rows, one after the other."""
    candidates = scratch + tl.program_id(0).to(tl.int64) * WIDTH
    turn = tl.program_id(0)
    while turn < number:
        row = tl.load(ranked + turn)
        slot = tl.load(slots + row)
        peak, _values = row_peak(peaks, row, chunks, CHUNKS)
        if is_finite(peak):
            shaped_row, mask_row = tl.load(shaped_rows + row), tl.load(mask_rows + row)
            temperature, top_k = option_float(slot_table, slot, 4), option_word(slot_table, slot, 6)
            top_p = option_long(slot_table, slot, 2).to(tl.float64, bitcast=True)
            top = ordered_keys(peak).to(tl.int64) + 1
            low = tl.full((), _LOWEST_KEY, tl.int64)
            spare = tl.full((), _LARGEST, tl.int64)
            found, lowest, total = _gather(
                candidates, logits, stride, shaped, shaped_row, masks, mask_row, row, peak, temperature, low,
                WIDTH, VALID, SHAPED, MASKED, BLOCK,
            )  # fmt: skip
            ties = tl.full((), 0, tl.int32)
            if top_k < found:
                low, over, heavier, ties = _bisect(
                    candidates, found, lowest, top, top_k, 0.0, peak, temperature, False, BLOCK
                )
                spare = top_k.to(tl.int64) - over
                total = heavier + spare * _weight_at(low, peak, temperature)
                found, lowest, _weight = _gather(
                    candidates, logits, stride, shaped, shaped_row, masks, mask_row, row, peak, temperature, low,
                    WIDTH, VALID, SHAPED, MASKED, BLOCK,
                )  # fmt: skip
            if top_p < 1.0:
                needed = top_p * total.to(tl.float64)
                key, _over, heavier, ties = _bisect(
                    candidates, found, lowest, top, 0, needed, peak, temperature, True, BLOCK
                )
                enough = _ties_needed(heavier, _weight_at(key, peak, temperature), needed)
                spare = tl.where(key == low, tl.minimum(spare, enough), enough)
                low = key
            last_id = tl.full((), _LARGEST, tl.int32)
            if spare < ties:
                last_id = _id_of_tie(
                    logits, stride, shaped, shaped_row, masks, mask_row, row, low, spare,
                    WIDTH, VALID, SHAPED, MASKED, BLOCK,
                )  # fmt: skip
            tl.store(thresholds + row, low.to(tl.int32))
            tl.store(thresholds + count + row, last_id)
        turn += tl.num_programs(0)


@triton.jit
def _weight_at(key, peak, temperature):
    return weights_of(scores_of_keys(key.to(tl.int32)), peak, temperature)


@triton.jit
def _gather(
    candidates,
    logits,
    stride,
    shaped,
    shaped_row,
    masks,
    mask_row,
    row,
    peak,
    temperature,
    low,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the keys from `low` on of tokens that have weight; how many, the smallest, and the sum of their weights."""
    tl.debug_barrier()  # what is written over has been read
    found = tl.full((), 0, tl.int32)
    lowest = tl.full((), _LARGEST, tl.int32)
    total = tl.full((), 0, tl.int64)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = row_scores(
            logits,
            stride,
            shaped,
            shaped_row,
            masks,
            mask_row,
            row,
            columns,
            columns // 32,
            WIDTH,
            VALID,
            SHAPED,
            MASKED,
            False,
        )
        weights = weights_of(scores, peak, temperature)
        keys = ordered_keys(scores)
        taken = (weights > 0) & (keys >= low)
        places = found + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(candidates + places, keys, mask=taken)
        found += tl.sum(taken.to(tl.int32), axis=0)
        lowest = tl.minimum(lowest, tl.min(tl.where(taken, keys, _LARGEST), axis=0))
        total += tl.sum(tl.where(taken, weights, 0), axis=0)
    tl.debug_barrier()
    return found, lowest.to(tl.int64), total


@triton.jit
def _bisect(
    candidates,
    found,
    low,
    high,
    top_k,
    needed,
    peak,
    temperature,
    BY_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key with `top_k` tokens (or the weight `needed`) at it or above it; number and weight above it.

    Last comes how many tokens are at the key, or more than that.

    Args:
        candidates: keys, `found` of them, in any order; those left over are written over them.
        low, high: int64 bounds; what is asked for is true of all keys from `low` on and false of those from `high` on.
    """
    over, heavier = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    turn = tl.full((), 0, tl.int32)
    while (found > BLOCK) & (high - low > 1):
        middle = _middle(low, high, turn)
        left = tl.full((), 0, tl.int32)
        many, weight = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
        start = tl.full((), 0, tl.int32)
        while start < found:
            place = start + tl.arange(0, BLOCK)
            keys = tl.load(candidates + place, mask=place < found, other=_LOWEST_KEY)
            between = (place < found) & (keys >= low) & (keys < high)
            upper = between & (keys >= middle)
            places = left + tl.cumsum(between.to(tl.int32), axis=0) - 1
            tl.debug_barrier()  # the block was read: places lie in it or before it
            tl.store(candidates + places, keys, mask=between)
            left += tl.sum(between.to(tl.int32), axis=0)
            many += tl.sum(upper.to(tl.int64), axis=0)
            weight += tl.sum(tl.where(upper, _weight_at(keys, peak, temperature), 0), axis=0)
            start += BLOCK
        tl.debug_barrier()
        found = left
        reached = _is_reached(over + many, heavier + weight, top_k, needed, BY_WEIGHT)
        low, high = tl.where(reached, middle, low), tl.where(reached, high, middle)
        over += tl.where(reached, 0, many)
        heavier += tl.where(reached, 0, weight)
        turn += 1
    place = tl.arange(0, BLOCK)
    keys = tl.load(candidates + place, mask=place < found, other=_LOWEST_KEY)
    weights = tl.where(place < found, _weight_at(keys, peak, temperature), 0)
    while high - low > 1:
        middle = low + (high - low) // 2
        upper = (place < found) & (keys >= middle) & (keys < high)
        many = tl.sum(upper.to(tl.int64), axis=0)
        weight = tl.sum(tl.where(upper, weights, 0), axis=0)
        reached = _is_reached(over + many, heavier + weight, top_k, needed, BY_WEIGHT)
        low, high = tl.where(reached, middle, low), tl.where(reached, high, middle)
        over += tl.where(reached, 0, many)
        heavier += tl.where(reached, 0, weight)
    ties = tl.sum(((place < found) & (keys == low)).to(tl.int32), axis=0)
    return low, over, heavier, tl.where(found > BLOCK, found, ties)


@triton.jit
def _is_reached(many, weight, top_k, needed, BY_WEIGHT: tl.constexpr):
    if BY_WEIGHT:  # noqa: SIM108  # this is decided when the kernel is compiled
        reached = weight.to(tl.float64) >= needed
    else:
        reached = many >= top_k
    return reached


@triton.jit
def _middle(low, high, turn):
    """Between two keys: where the scores' middle is, every other time that of the keys, which bounds the turns."""
    scores = scores_of_keys(low.to(tl.int32)) * 0.5 + scores_of_keys((high - 1).to(tl.int32)) * 0.5
    by_score = tl.minimum(tl.maximum(ordered_keys(scores).to(tl.int64), low + 1), high - 1)
    return tl.where(turn % 2 == 0, by_score, low + (high - low) // 2)


@triton.jit
def _ties_needed(heavier, weight, needed):
    """How many tokens of this weight bring the weight above them to `needed`; at least one."""
    few, enough = tl.full((), 0, tl.int64), tl.full((), 2097152, tl.int64)
    for _ in range(21):  # 2**21 are more than any vocabulary has, and their weight is within int64
        middle = (few + enough) // 2
        reached = (heavier + middle * weight).to(tl.float64) >= needed
        enough = tl.where(reached, middle, enough)
        few = tl.where(reached, few, middle)
    return enough


@triton.jit
def _id_of_tie(
    logits,
    stride,
    shaped,
    shaped_row,
    masks,
    mask_row,
    row,
    key,
    number,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The id of the token that is the `number`th of those at a key; the largest of all where there are fewer."""
    seen = tl.full((), 0, tl.int32)
    last_id = tl.full((), _LARGEST, tl.int32)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = row_scores(
            logits,
            stride,
            shaped,
            shaped_row,
            masks,
            mask_row,
            row,
            columns,
            columns // 32,
            WIDTH,
            VALID,
            SHAPED,
            MASKED,
            False,
        )
        equal = ordered_keys(scores) == key
        rank = seen + tl.cumsum(equal.to(tl.int32), axis=0)
        last_id = tl.minimum(last_id, tl.min(tl.where(equal & (rank == number), columns, _LARGEST), axis=0))
        seen += tl.sum(equal.to(tl.int32), axis=0)
    return last_id
