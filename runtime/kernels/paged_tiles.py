"""What the attention kernels share: tiles of keys and values read through the pages, and one step of online softmax."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch_sizes import power_of_two

LEAST_TILE = 16
"""Rows and columns that a matrix product of Triton has at least."""

LOG2_E = 1.4426950408889634


def padded_dim(head_dim: int) -> int:
    """Columns of a tile that holds a head."""
    return max(LEAST_TILE, power_of_two(head_dim))


def precision_of(dtype: torch.dtype) -> str:
    """How products of this dtype are computed.

    Three products of tf32, which keeps 10 bits, make one of float32 to about 2e-7; exact ones ("ieee") would need every
    operand in registers, more than there are.
    """
    return "tf32x3" if dtype == torch.float32 else "tf32"


@triton.jit
def slots_of(page_ids, position, real, PAGE: tl.constexpr):
    """Slots of a row's positions: page_ids points to its first page."""
    page = tl.load(page_ids + position // PAGE, mask=real, other=0)
    return (page * PAGE + position % PAGE).to(tl.int64)


@triton.jit
def load_tile(heads, slot, real, stride: tl.constexpr, D: tl.constexpr, PAD_D: tl.constexpr, MASKED: tl.constexpr):
    """[slots, PAD_D] of keys or values, `heads` pointing to one KV head of slot 0; zeros where not real or past D.

    What was never written may be NaN, and 0 * NaN is NaN: it must not be read.
    """
    column = tl.arange(0, PAD_D)[None, :]
    places = heads + slot[:, None] * stride + column
    if MASKED:
        if PAD_D == D:
            return tl.load(places, mask=real[:, None], other=0.0)
        return tl.load(places, mask=real[:, None] & (column < D), other=0.0)
    if PAD_D == D:
        return tl.load(places)
    return tl.load(places, mask=column < D, other=0.0)


@triton.jit
def capped(scores, scale, softcap, HAS_CAP: tl.constexpr):
    """q . k in units of the softmax's exponent of 2; tanh(x) is 1 - 2 / (exp(2 x) + 1), which never overflows."""
    scores = scores * scale
    if HAS_CAP:  # scale is then 2 log2(e) scale / softcap, and softcap is times log2(e)
        scores = softcap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    return scores


@triton.jit
def softmax_step(acc, total, highest, scores, v, MAY_BE_EMPTY: tl.constexpr, PRECISION: tl.constexpr):
    """Add a block of scores [M, N] (-inf: not seen) and values [N, PAD_D] to the running sums of M rows.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023.
    """
    now_highest = tl.maximum(highest, tl.max(scores, 1))
    base = now_highest
    if MAY_BE_EMPTY:  # rows that saw nothing yet
        base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(highest - base)
    total = total * kept + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision=PRECISION)
    return acc, total, now_highest


def exponent_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """The `scale` and `softcap` that `capped` takes."""
    if softcap is None:
        return scale * LOG2_E, 0.0
    return 2 * LOG2_E * scale / softcap, softcap * LOG2_E
