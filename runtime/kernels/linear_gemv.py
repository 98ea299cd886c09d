"""One row of x times the weights on the ordinary cores: each program streams a few rows of the weights."""

from __future__ import annotations

import triton
import triton.language as tl

from .linear_partials import add_partials


@triton.jit
def gemv(
    x,
    weight,
    bias,
    out,
    partials,
    arrivals,
    N,
    K,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [N] = weight [N, K] @ x [K] + bias [N]; programs (blocks of N, parts of K of STEPS blocks each).

    The next block of weights is on its way while one is multiplied. With DEPENDENT, the kernel starts before the one
    ahead of it in the stream has ended, and waits for it once its own first weights are on their way.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * (STEPS * BLOCK_K)
    inner = tl.arange(0, BLOCK_K)
    at = weight + rows.to(tl.int64)[:, None] * K + (first + inner)[None, :]
    block = _block(at, rows, first + inner, N, K, EVEN)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for step in tl.static_range(STEPS):
        columns = first + step * BLOCK_K + inner
        upcoming = block
        if step + 1 < STEPS:
            upcoming = _block(at + (step + 1) * BLOCK_K, rows, columns + BLOCK_K, N, K, EVEN)
        values = tl.load(x + columns) if EVEN else tl.load(x + columns, mask=columns < K, other=0.0)
        total += block.to(tl.float32) * values.to(tl.float32)[None, :]
        block = upcoming
    result = tl.sum(total, axis=1)
    row_mask = rows < N
    if SPLIT_K > 1:
        mine, result = add_partials(result, tl.arange(0, BLOCK_N), partials, arrivals, SPLIT_K, BLOCK_N)
        row_mask = row_mask & mine
    if bias is not None:
        result += tl.load(bias + rows, mask=row_mask, other=0.0).to(tl.float32)
    tl.store(out + rows, result.to(out.dtype.element_ty), mask=row_mask)


@triton.jit
def _block(at, rows, columns, N, K, EVEN: tl.constexpr):
    """A block of the weights, which nobody reads again soon."""
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=(rows < N)[:, None] & (columns < K)[None, :], other=0.0, eviction_policy="evict_first")
