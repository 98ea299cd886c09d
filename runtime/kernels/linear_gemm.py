"""A few rows of x times the weights on the matrix units: the weights stream through shared memory once.

The product is computed transposed, weight @ x.T: the matrix units take 64 rows of their first operand at once, which
weights always have, and as few columns as 8 of the second. Programs are (blocks of N, parts of K); a part of K is STEPS
blocks. With DEPENDENT, a kernel starts before the one ahead of it in the stream has ended, and waits for it once the L2
cache has been asked for the first AHEAD columns of its weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .linear_partials import add_partials


@triton.jit(do_not_specialize=["M"])
def narrow_gemm(
    x,
    weight,
    bias,
    out,
    partials,
    arrivals,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """out [M, N] = x [M, K] @ weight [N, K].T + bias [N], M <= BLOCK_M; threads copy blocks 16 bytes at a time."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * (STEPS * BLOCK_K)
    if DEPENDENT:
        _come_up(weight, rows, first, N, K, AHEAD)
    tokens = tl.arange(0, BLOCK_M)
    row_mask, token_mask = rows < N, tokens < M
    inner = first + tl.arange(0, BLOCK_K)
    row_starts = weight + rows.to(tl.int64) * K
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        columns = step * BLOCK_K + inner
        at = row_starts[:, None] + columns[None, :]
        x_at = x + columns[:, None] + tokens[None, :] * K
        if EVEN_K:
            values = tl.load(x_at, mask=token_mask[None, :], other=0.0)
        else:
            values = tl.load(x_at, mask=token_mask[None, :] & (columns < K)[:, None], other=0.0)
        if EVEN_N and EVEN_K:
            block = tl.load(at, eviction_policy="evict_first")
        else:
            mask = row_mask[:, None] & (columns < K)[None, :]
            block = tl.load(at, mask=mask, other=0.0, eviction_policy="evict_first")
        total = tl.dot(block, values, total)
    _store(total, rows, tokens, bias, out, partials, arrivals, M, N, BLOCK_M, BLOCK_N, SPLIT_K)


@triton.jit
def _come_up(weight, rows, first, N, K, AHEAD: tl.constexpr):
    """Ask the L2 cache for AHEAD columns of some rows, lines of 128 bytes, then wait for the kernel ahead."""
    tl.extra.cuda.gdc_launch_dependents()
    ahead = tl.minimum(first + 64 * tl.arange(0, AHEAD // 64), K - 1)
    lines = weight + tl.minimum(rows, N - 1).to(tl.int64)[:, None] * K + ahead[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [lines.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.extra.cuda.gdc_wait()


@triton.jit
def _store(
    total,
    rows,
    tokens,
    bias,
    out,
    partials,
    arrivals,
    M,
    N,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    """Put a block [BLOCK_N, BLOCK_M] of the product in its place, after adding up the parts of K."""
    mask = (rows < N)[:, None] & (tokens < M)[None, :]
    if SPLIT_K > 1:
        place = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tokens[None, :]
        mine, total = add_partials(total, place, partials, arrivals, SPLIT_K, BLOCK_N * BLOCK_M)
        mask = mask & mine
    if bias is not None:
        total += tl.load(bias + rows, mask=rows < N, other=0.0).to(tl.float32)[:, None]
    at = out + tokens.to(tl.int64)[None, :] * N + rows[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)
