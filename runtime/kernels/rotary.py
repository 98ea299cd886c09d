"""Rotary embeddings: the angles of a step's positions, and turning by them on the way into the KV cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dependent_launch import supported
from .launch_sizes import block_count, power_of_two

_HEADS_AT_ONCE = 16


@triton.jit(do_not_specialize_on_alignment=["positions"])
def _angles_of(positions, frequencies, cos, sin, factor, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """A program is a token."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < HALF
    position = tl.load(positions + token).to(tl.float32)
    angle = position * tl.load(frequencies + pair, mask=inside, other=0.0)
    tl.store(cos + token * HALF + pair, tl.cos(angle) * factor, mask=inside)
    tl.store(sin + token * HALF + pair, tl.sin(angle) * factor, mask=inside)


@triton.jit
def _put(
    numbers, head, column, inside, q, keys, values, token, slot, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr
):
    """Store parts of heads [heads, columns] where each head goes: to q, to the keys or to the values."""
    place = head * D + column
    key, value = (head >= H) & (head < H + KV), (head >= H + KV) & (head < H + 2 * KV)
    tl.store(q + token * (H * D) + place, numbers, mask=inside & (head < H))
    tl.store(keys + slot * (KV * D) + place - H * D, numbers, mask=inside & key)
    tl.store(values + slot * (KV * D) + place - (H + KV) * D, numbers, mask=inside & value)


@triton.jit(do_not_specialize_on_alignment=["kv_slots"])  # a part of one upload, wherever it begins
def _rotate_and_write_heads(
    qkv,
    cos,
    sin,
    q,
    keys,
    values,
    kv_slots,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A program is BLOCK_HEADS heads of a token: pairs of their first 2 * HALF components turned, the rest copied."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total: tl.constexpr = H + 2 * KV
    blocks: tl.constexpr = (total + BLOCK_HEADS - 1) // BLOCK_HEADS
    token = (tl.program_id(0) // blocks).to(tl.int64)
    head = (tl.program_id(0) % blocks) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    slot = tl.load(kv_slots + token).to(tl.int64)
    from_head = qkv + token * (total * D) + head * D
    if HALF > 0:
        pair = tl.arange(0, BLOCK_HALF)[None, :]
        inside = (head < total) & (pair < HALF)
        first = tl.load(from_head + pair, mask=inside, other=0.0)
        second = tl.load(from_head + HALF + pair, mask=inside, other=0.0)
        c = tl.load(cos + token * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
        s = tl.load(sin + token * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
        x, y = first.to(tl.float32), second.to(tl.float32)
        turned = head < H + KV  # values stay, bit for bit
        first = tl.where(turned, (x * c - y * s).to(first.dtype), first)
        second = tl.where(turned, (y * c + x * s).to(second.dtype), second)
        _put(first, head, pair, inside, q, keys, values, token, slot, H, KV, D)
        _put(second, head, HALF + pair, inside, q, keys, values, token, slot, H, KV, D)
    if D > 2 * HALF:
        column = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
        inside = (head < total) & (column < D)
        rest = tl.load(from_head + column, mask=inside, other=0.0)
        _put(rest, head, column, inside, q, keys, values, token, slot, H, KV, D)


def rotary_angles(
    positions: Tensor, inverse_frequencies: Tensor, factor: float, dtype: torch.dtype, /
) -> tuple[Tensor, Tensor]:
    """cos and sin, times `factor`, of positions [T] times inverse_frequencies [rotary_dim / 2].

    Args:
        positions: int32 or int64.
        inverse_frequencies: float32, in which angles are computed.

    Returns:
        Each [T, 1, rotary_dim / 2] of `dtype`.
    """
    half = len(inverse_frequencies)
    cos, sin = (torch.empty(len(positions), 1, half, dtype=dtype, device=positions.device) for _ in range(2))
    _angles_of[(len(positions),)](
        positions, inverse_frequencies, cos, sin, factor, HALF=half, BLOCK=power_of_two(half), num_warps=1
    )
    return cos, sin


def rotate_and_write(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    kv_slots: Tensor,
) -> Tensor:
    """Turn queries and keys by their positions' angles, and put keys and values at their places in the KV cache.

    Args:
        qkv: [T, heads + 2 * kv_heads, head_dim]: queries, keys, values. It stays as it is.
        cos, sin: [T, 1, rotary_dim / 2] of qkv's dtype, rotary_dim <= head_dim; None: nothing is turned.
        keys, values: [all slots, kv_heads, head_dim] of a layer.
        kv_slots: [T], int32 or int64, where each token's key and value go.

    Returns:
        The queries [T, heads, head_dim], in a tensor of their own. All tensors are contiguous and on one device.

    Source: Su et al., "RoFormer", 2021, section 3.4.2, with components i and i + rotary_dim / 2 as pairs. What is
    turned is rounded once, from float32.
    """
    tokens, total, head_dim = qkv.shape
    q = qkv.new_empty(tokens, heads, head_dim)
    half = 0 if cos is None else cos.shape[2]
    dependent = supported(qkv.device)
    block_heads = min(_HEADS_AT_ONCE, power_of_two(total))
    _rotate_and_write_heads[(tokens * block_count(total, block_heads),)](
        qkv,
        cos,
        sin,
        q,
        keys,
        values,
        kv_slots,
        H=heads,
        KV=kv_heads,
        D=head_dim,
        HALF=half,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=power_of_two(max(half, 1)),
        BLOCK_REST=power_of_two(max(head_dim - 2 * half, 1)),
        DEPENDENT=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )
    return q
