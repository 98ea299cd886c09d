"""Sums over parts of K, a program each in one launch: the last to arrive adds them up, in fixed order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_partials(result, place, partials, arrivals, SPLIT_K: tl.constexpr, SIZE: tl.constexpr):
    """The sum of SPLIT_K programs' results, and whether this program has it (the others' is theirs alone).

    Programs (tile, part of K). partials float32 [tiles, SPLIT_K, SIZE] holds whatever; arrivals int32 [tiles] is zero
    before and after. `place` says where in 0 ... SIZE - 1 each element of a result lies.
    """
    tile = tl.program_id(0)
    base = partials + tile.to(tl.int64) * (SPLIT_K * SIZE)
    tl.store(base + tl.program_id(1) * SIZE + place, result)
    tl.debug_barrier()  # all threads' stores come before the arrival, which releases them to the whole GPU
    mine = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
    if mine:
        result = tl.load(base + place, cache_modifier=".cg")
        for part in tl.static_range(1, SPLIT_K):
            result += tl.load(base + part * SIZE + place, cache_modifier=".cg")
        tl.store(arrivals + tile, 0)
    return mine, result
