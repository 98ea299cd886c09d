"""Root mean square normalisation: of rows, of the sum of two tensors, and of heads. One pass, statistics in float32."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty_like

from .dependent_launch import supported
from .launch_sizes import block_count, power_of_two

_HEADS_AT_ONCE = 16


@triton.jit
def _rms_norm_row(
    x,
    update,
    weight,
    out,
    eps,
    offset,
    scale,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A program is a row. With an `update`, x becomes x + scale * update, rounded, and that is what is normalised."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    row = tl.load(x + start + columns, mask=inside, other=0.0)
    if update is not None:
        added = tl.load(update + start + columns, mask=inside, other=0.0)
        row = (row.to(tl.float32) + scale * added.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + start + columns, row, mask=inside)
    exact = row.to(tl.float32)
    normal = exact * tl.rsqrt(tl.sum(exact * exact, axis=0) / SIZE + eps)
    tl.store(out + start + columns, normal * (factors.to(tl.float32) + offset), mask=inside)


@triton.jit
def _norm_some_heads(
    x,
    weight,
    eps,
    offset,
    HEADS: tl.constexpr,
    NORMED: tl.constexpr,
    TOTAL: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A program is BLOCK_HEADS heads of a token; the first HEADS of NORMED take the first weight."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    blocks: tl.constexpr = (NORMED + BLOCK_HEADS - 1) // BLOCK_HEADS
    token = (tl.program_id(0) // blocks).to(tl.int64)
    head = (tl.program_id(0) % blocks) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (head < NORMED) & (column < DIM)
    place = x + token * (TOTAL * DIM) + head * DIM + column
    factors = tl.load(weight + tl.where(head < HEADS, 0, DIM) + column, mask=inside, other=0.0)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    exact = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(exact * exact, axis=1) / DIM + eps)
    tl.store(place, exact * root[:, None] * (factors.to(tl.float32) + offset), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, /) -> Tensor:
    """x [T, size] / sqrt(mean(x ** 2) + eps) * (offset + weight [size]), in a new tensor.

    All contiguous, float32, bfloat16 or float16. Rounded once, from float32.
    """
    out = empty_like(x)
    _launch_rows(x, None, weight, out, eps, offset, 1.0)
    return out


def add_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, eps: float, offset: float = 0.0, scale: float = 1.0, /
) -> tuple[Tensor, Tensor]:
    """The sum x + scale * update of [T, size] each, and its `rms_norm`, in one pass.

    Both are written over the inputs: the sum, rounded to the dtype, over x and the normalised sum over `update`.
    """
    _launch_rows(x, update, weight, update, eps, offset, scale)
    return x, update


def norm_heads(x: Tensor, heads: int, kv_heads: int, weight: Tensor, eps: float, offset: float = 0.0, /) -> Tensor:
    """x [T, H, head_dim] with its first heads + kv_heads heads normalised in place, each by itself.

    Args:
        weight: [2, head_dim], of the first `heads` and of the `kv_heads` after them.
    """
    tokens, total, head_dim = x.shape
    normed = heads + kv_heads
    dependent = supported(x.device)
    block_heads = min(_HEADS_AT_ONCE, power_of_two(normed))
    _norm_some_heads[(tokens * block_count(normed, block_heads),)](
        x,
        weight,
        eps,
        offset,
        HEADS=heads,
        NORMED=normed,
        TOTAL=total,
        DIM=head_dim,
        BLOCK_HEADS=block_heads,
        BLOCK_DIM=power_of_two(head_dim),
        DEPENDENT=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )
    return x


def _launch_rows(
    x: Tensor, update: Tensor | None, weight: Tensor, out: Tensor, eps: float, offset: float, scale: float
) -> None:
    size = x.shape[1]
    block = power_of_two(size)
    dependent = supported(x.device)
    _rms_norm_row[(len(x),)](
        x,
        update,
        weight,
        out,
        eps,
        offset,
        scale,
        SIZE=size,
        BLOCK=block,
        DEPENDENT=dependent,
        num_warps=row_warps(block),
        launch_pdl=dependent,
    )


def row_warps(block: int) -> int:
    """Warps for a row of `block` numbers: 16 numbers a thread, which in bfloat16 are two accesses of 16 bytes."""
    return min(16, max(1, block // 512))
