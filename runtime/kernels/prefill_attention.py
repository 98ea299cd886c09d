"""Causal attention of rows of any number of tokens over paged keys and values, all rows in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from palmette.runtime.batch import Int32Array

from .paged_tiles import (
    LEAST_TILE,
    capped,
    exponent_factors,
    load_tile,
    padded_dim,
    precision_of,
    slots_of,
    softmax_step,
)

BLOCKS_M = (16, 64, 128)
"""Query rows of a block, for rows of few tokens to many. Few, since each is compiled."""


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """How a program works: query rows (a token's heads of one KV head lie together), tokens of context that it reads at
    once, warps, and blocks on their way.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Where a step's rows have their tokens and context, and the work on them; all int32 and on the device.

    Attributes:
        page_ids: pages of all rows.
        page_indptr: [R + 1], into page_ids.
        seq_lens: [R], tokens of context, the step's included.
        query_indptr: [R + 1], tokens of row r are query_indptr[r] to query_indptr[r + 1] of q.
        item_rows: [I], row of each item.
        item_blocks: [I], which block of block_m query rows of it.
    """

    page_ids: Tensor
    page_indptr: Tensor
    seq_lens: Tensor
    query_indptr: Tensor
    item_rows: Tensor
    item_blocks: Tensor


@triton.jit
def _attend_blocks(
    acc,
    total,
    highest,
    tile,
    query_position,
    start,
    stop,
    pages,
    keys,
    values,
    scale,
    softcap,
    window,
    KV: tl.constexpr,
    D: tl.constexpr,
    PAD_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Context from start to stop; without a mask every query sees all of it, a multiple of BLOCK_N tokens."""
    for n in range(start, stop, BLOCK_N):
        position = n + tl.arange(0, BLOCK_N)
        real = position < stop
        slot = slots_of(pages, position, real, PAGE)
        k = load_tile(keys, slot, real, KV * D, D, PAD_D, MASKED)
        scores = capped(tl.dot(tile, tl.trans(k), input_precision=PRECISION), scale, softcap, HAS_CAP)
        if MASKED:
            seen = (position[None, :] <= query_position[:, None]) & real[None, :]
            if HAS_WINDOW:
                seen = seen & (position[None, :] > query_position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        v = load_tile(values, slot, real, KV * D, D, PAD_D, MASKED)
        acc, total, highest = softmax_step(acc, total, highest, scores, v, MASKED, PRECISION)
    return acc, total, highest


@triton.jit(do_not_specialize=["scale", "softcap", "window"])
def _prefill_items(
    q,
    keys,
    values,
    page_ids,
    page_indptr,
    seq_lens,
    query_indptr,
    item_rows,
    item_blocks,
    out,
    scale,
    softcap,
    window,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PAD_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program is a block of a row's query rows and a KV head. Query row m is head m % GROUP of token m // GROUP."""
    kv_head = tl.program_id(0) % KV
    item = tl.program_id(0) // KV  # in one dimension, as the others of a grid end at 65535
    row = tl.load(item_rows + item)
    start_m = tl.load(item_blocks + item) * BLOCK_M
    first_token = tl.load(query_indptr + row)
    query_len = tl.load(query_indptr + row + 1) - first_token
    prefix = tl.load(seq_lens + row) - query_len
    pages = page_ids + tl.load(page_indptr + row)
    packed = start_m + tl.arange(0, BLOCK_M)
    token = packed // GROUP
    column = tl.arange(0, PAD_D)[None, :]
    inside = (token < query_len)[:, None] & (column < D)
    line = (first_token + token).to(tl.int64) * (KV * GROUP) + kv_head * GROUP + packed % GROUP
    tile = tl.load(q + line[:, None] * D + column, mask=inside, other=0.0)
    query_position = prefix + token
    first = prefix + start_m // GROUP
    stop = prefix + tl.minimum((start_m + BLOCK_M - 1) // GROUP + 1, query_len)
    whole = (first + 1) // BLOCK_N * BLOCK_N  # up to here every query of the block sees everything but for the window
    keys += kv_head * D
    values += kv_head * D
    acc = tl.zeros([BLOCK_M, PAD_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first - window + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.minimum(tl.cdiv(tl.maximum(stop - window, 0), BLOCK_N) * BLOCK_N, whole)
        acc, total, highest = _attend_blocks(
            acc, total, highest, tile, query_position, begin, inner, pages, keys, values, scale, softcap, window,
            KV, D, PAD_D, PAGE, BLOCK_N, True, True, HAS_CAP, PRECISION,
        )  # fmt: skip
        begin = inner
    acc, total, highest = _attend_blocks(
        acc, total, highest, tile, query_position, begin, whole, pages, keys, values, scale, softcap, window,
        KV, D, PAD_D, PAGE, BLOCK_N, False, HAS_WINDOW, HAS_CAP, PRECISION,
    )  # fmt: skip
    acc, total, highest = _attend_blocks(
        acc, total, highest, tile, query_position, whole, stop, pages, keys, values, scale, softcap, window,
        KV, D, PAD_D, PAGE, BLOCK_N, True, HAS_WINDOW, HAS_CAP, PRECISION,
    )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # query rows past the last token may see nothing
    tl.store(out + line[:, None] * D + column, acc.to(out.dtype.element_ty), mask=inside)


def prefill_tile(head_dim: int, dtype: torch.dtype, packed_len: int) -> PrefillTile:
    """What suits heads of this size and rows of at most `packed_len` query rows (tokens times heads a KV head)."""
    row_bytes = padded_dim(head_dim) * dtype.itemsize
    if dtype == torch.float32:  # as much as registers allow
        return PrefillTile(LEAST_TILE, LEAST_TILE, 8, 2)
    most_m, block_n, warps = (128, 64, 8) if row_bytes <= 256 else (64, 32, 4) if row_bytes <= 512 else (32, 16, 8)
    block_m = min(next((m for m in BLOCKS_M if m >= packed_len), most_m), most_m)
    return PrefillTile(block_m, block_n, warps if block_m == most_m else 4, 3)


def work_list(query_lens: Int32Array, seq_lens: Int32Array, group: int, block_m: int) -> tuple[Int32Array, Int32Array]:
    """item_rows and item_blocks of `PrefillRows`, those with the longest context first, so that no long one is last.

    Args:
        query_lens, seq_lens: [R], tokens of the step and of the whole context.
        group: query heads a KV head.
    """
    blocks = -(-query_lens * group // block_m)
    rows = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
    ends = np.cumsum(blocks)
    within = (np.arange(len(rows)) - np.repeat(ends - blocks, blocks)).astype(np.int32)
    context = (seq_lens - query_lens)[rows] + (within + 1) * block_m // group
    order = np.argsort(-context, kind="stable")
    return rows[order], within[order]


def prefill_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PrefillRows,
    out: Tensor,
    *,
    tile: PrefillTile,
    page_size: int,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
) -> None:
    """Causal attention of the tokens of R rows over their whole contexts.

    Args:
        q: [T, heads, head_dim], contiguous.
        keys, values: [all slots, kv_heads, head_dim], contiguous, of q's dtype; the step's own are written already.
        rows: see there; its work is in blocks of tile.block_m.
        out: as q; the rows' tokens are written.
        scale, softcap, window: see `RadixAttention`.

    Source: Dao, "FlashAttention-2", 2023, with the query heads of a KV head in one tile.
    """
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    factor, cap = exponent_factors(scale, softcap)
    _prefill_items[(kv_heads * len(rows.item_rows),)](
        q,
        keys,
        values,
        rows.page_ids,
        rows.page_indptr,
        rows.seq_lens,
        rows.query_indptr,
        rows.item_rows,
        rows.item_blocks,
        out,
        factor,
        cap,
        window or 0,
        KV=kv_heads,
        GROUP=heads // kv_heads,
        D=head_dim,
        PAD_D=padded_dim(head_dim),
        PAGE=page_size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        HAS_WINDOW=window is not None,
        HAS_CAP=softcap is not None,
        PRECISION=precision_of(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
