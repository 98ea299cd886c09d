"""Attention of rows of one token each over paged keys and values, the context of long rows split over many programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from palmette.runtime.batch import Int32Array

from .launch_sizes import block_count, power_of_two
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

LEAST_CHUNK = 64
"""Tokens that a program reads at least, where the row has them: fewer are not worth its start."""

_PROGRAMS_PER_SM = 4
_MERGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """How a program works: tokens a block, warps, and blocks on their way at once."""

    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Where a step's decode rows have their context, and how it is split; all int32 and on the device.

    Attributes:
        page_ids: pages of all rows.
        page_indptr: [R + 1], into page_ids.
        seq_lens: [R], tokens of context.
        item_rows: [I], row of each item, a part of its context; -1: none, a place held free in a recorded launch.
        split_indptr: [R + 1], items of each row; a row's items lie together.
    """

    page_ids: Tensor
    page_indptr: Tensor
    seq_lens: Tensor
    item_rows: Tensor
    split_indptr: Tensor


@triton.jit
def _range_of(item, row, seq_lens, split_indptr, window, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Positions start to stop that an item reads: an even share of what its row sees."""
    first = tl.load(split_indptr + row)
    splits = tl.load(split_indptr + row + 1) - first
    seq_len = tl.load(seq_lens + row)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(seq_len - window, 0)
    chunk = tl.cdiv(tl.cdiv(seq_len - begin, splits), BLOCK_N) * BLOCK_N
    start = begin + (item - first) * chunk
    return start, tl.minimum(start + chunk, seq_len), splits


@triton.jit(do_not_specialize=["scale", "softcap", "window"])
def _decode_items(
    q,
    keys,
    values,
    page_ids,
    page_indptr,
    seq_lens,
    item_rows,
    split_indptr,
    out,
    part_out,
    part_lse,
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
    """A program is an item and a KV head; the query heads of that head are the rows of its tile."""
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    row = tl.load(item_rows + item)
    if row < 0:
        return
    start, stop, splits = _range_of(item, row, seq_lens, split_indptr, window, HAS_WINDOW, BLOCK_N)
    pages = page_ids + tl.load(page_indptr + row)
    member = tl.arange(0, BLOCK_M)[:, None]
    column = tl.arange(0, PAD_D)[None, :]
    inside = (member < GROUP) & (column < D)
    head = kv_head * GROUP + member
    tile = tl.load(q + (row.to(tl.int64) * (KV * GROUP) + head) * D + column, mask=inside, other=0.0)
    acc = tl.zeros([BLOCK_M, PAD_D], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    for n in range(start, stop, BLOCK_N):
        position = n + tl.arange(0, BLOCK_N)
        real = position < stop
        slot = slots_of(pages, position, real, PAGE)
        k = load_tile(keys + kv_head * D, slot, real, KV * D, D, PAD_D, True)
        scores = capped(tl.dot(tile, tl.trans(k), input_precision=PRECISION), scale, softcap, HAS_CAP)
        scores = tl.where(real[None, :], scores, float("-inf"))
        v = load_tile(values + kv_head * D, slot, real, KV * D, D, PAD_D, True)
        acc, total, highest = softmax_step(acc, total, highest, scores, v, False, PRECISION)
    total = tl.where(total == 0.0, 1.0, total)  # a split may be empty: see _range_of
    acc = acc / total[:, None]
    if splits == 1:
        place = (row.to(tl.int64) * (KV * GROUP) + head) * D + column
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside)
    else:
        place = (item.to(tl.int64) * (KV * GROUP) + head) * D + column
        tl.store(part_out + place, acc, mask=inside)
        lse = (highest + tl.log2(total))[:, None]
        tl.store(part_lse + item * (KV * GROUP) + head, lse, mask=member < GROUP)


@triton.jit
def _merge_items(
    part_out,
    part_lse,
    split_indptr,
    out,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAD_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is a head of a row: the mean of its items' outputs, weighted by their sums of exponentials."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(split_indptr + row)
    stop = tl.load(split_indptr + row + 1)
    if stop - first <= 1:
        return
    column = tl.arange(0, PAD_D)
    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([PAD_D], dtype=tl.float32)
    for n in range(first, stop, BLOCK):
        item = n + tl.arange(0, BLOCK)
        lse = tl.load(part_lse + item * HEADS + head, mask=item < stop, other=float("-inf"))
        now_highest = tl.maximum(highest, tl.max(lse, 0))  # finite from the first block on: a row's first item is full
        weights = tl.exp2(lse - now_highest)
        kept = tl.exp2(highest - now_highest)
        place = (item.to(tl.int64) * HEADS + head)[:, None] * D + column[None, :]
        parts = tl.load(part_out + place, mask=(item < stop)[:, None] & (column < D)[None, :], other=0.0)
        acc = acc * kept + tl.sum(parts * weights[:, None], 0)
        total = total * kept + tl.sum(weights, 0)
        highest = now_highest
    place = (row.to(tl.int64) * HEADS + head) * D + column
    tl.store(out + place, (acc / total).to(out.dtype.element_ty), mask=column < D)


def most_splits(kv_heads: int, multiprocessors: int) -> int:
    """Items that may be added to a step's rows, so that all of the card is busy and no program far behind the rest."""
    return block_count(_PROGRAMS_PER_SM * multiprocessors, kv_heads)


def split_rows(seq_lens: Int32Array, more: int) -> Int32Array:
    """How many items [R] each row's context becomes: all of about one size, at most R + `more` together."""
    most = len(seq_lens) + more
    low, high = 1, max(1, -(-int(seq_lens.max(initial=1)) // LEAST_CHUNK))
    while low < high:  # the smallest chunk, in multiples of LEAST_CHUNK, that makes no more than `most`
        middle = (low + high) // 2
        if int((-(-seq_lens // (middle * LEAST_CHUNK))).sum()) > most:
            low = middle + 1
        else:
            high = middle
    return np.maximum(-(-seq_lens // (low * LEAST_CHUNK)), 1).astype(np.int32)


def item_lists(splits: Int32Array, size: int | None = None) -> tuple[Int32Array, Int32Array]:
    """item_rows [size], filled up with -1 (None: as many as there are), and split_indptr [R + 1] of `DecodeRows`."""
    indptr = np.zeros(len(splits) + 1, dtype=np.int32)
    np.cumsum(splits, out=indptr[1:])
    item_rows = np.full(int(indptr[-1]) if size is None else size, -1, dtype=np.int32)
    item_rows[: indptr[-1]] = np.repeat(np.arange(len(splits), dtype=np.int32), splits)
    return item_rows, indptr


def decode_tile(head_dim: int, dtype: torch.dtype) -> DecodeTile:
    """What suits heads of this size; two programs' blocks fit into a multiprocessor's memory."""
    row_bytes = padded_dim(head_dim) * dtype.itemsize
    block_n = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    return DecodeTile(block_n, 8 if dtype == torch.float32 else 4, 3)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: DecodeRows,
    out: Tensor,
    *,
    page_size: int,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    merge: bool = True,
    tile: DecodeTile | None = None,
) -> None:
    """Attention of R rows of one token.

    Args:
        q: [R, heads, head_dim], contiguous.
        keys, values: [all slots, kv_heads, head_dim], contiguous, of q's dtype.
        rows: see there.
        out: as q; written.
        scale, softcap, window: see `RadixAttention`.
        merge: False where no row has more than one item.

    The grid depends on the shapes alone, so that a recorded launch serves rows of any length.

    Source: splitting a long context, Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    count, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    items = len(rows.item_rows)
    tile = tile or decode_tile(head_dim, q.dtype)
    parts = items if merge else 0
    part_out = torch.empty((parts, heads, head_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((parts, heads), dtype=torch.float32, device=q.device)
    factor, cap = exponent_factors(scale, softcap)
    _decode_items[(kv_heads, items)](
        q,
        keys,
        values,
        rows.page_ids,
        rows.page_indptr,
        rows.seq_lens,
        rows.item_rows,
        rows.split_indptr,
        out,
        part_out,
        part_lse,
        factor,
        cap,
        window or 0,
        KV=kv_heads,
        GROUP=heads // kv_heads,
        D=head_dim,
        PAD_D=padded_dim(head_dim),
        PAGE=page_size,
        BLOCK_M=max(LEAST_TILE, power_of_two(heads // kv_heads)),
        BLOCK_N=tile.block_n,
        HAS_WINDOW=window is not None,
        HAS_CAP=softcap is not None,
        PRECISION=precision_of(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if merge:
        _merge_items[(count, heads)](
            part_out,
            part_lse,
            rows.split_indptr,
            out,
            HEADS=heads,
            D=head_dim,
            PAD_D=padded_dim(head_dim),
            BLOCK=_MERGED_AT_ONCE,
            num_warps=1 if head_dim <= 64 else 4,
        )
