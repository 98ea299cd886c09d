"""One token a row from logits on a GPU: the likeliest, or one drawn. The twin is `palmette.runtime.token_choice`.

A row is cut into blocks of `BLOCK` columns, and a program takes one chunk of them, so that few rows fill the device as
well. Greedy steps take two launches (the chunks' peaks; the rows' tokens), steps with random rows a third between them
(the blocks' weights), and steps with top-k or top-p a fourth (the rows' thresholds).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sampling_rank import rank_rows
from .sampling_scores import (
    is_finite,
    kept_weights,
    option_float,
    option_long,
    option_word,
    row_peak,
    row_scores,
    uniform,
)

BLOCK = 4096
_PROGRAMS = 2048
"""About so many programs read the logits: fifteen a processor of an H200."""

_LARGEST = tl.constexpr(2147483647)
_NOT_FINITE = tl.constexpr(-1)
_NOTHING_ALLOWED = tl.constexpr(-2)


class SamplingRows(NamedTuple):
    """The rows of a step, all int32 on the device.

    Attributes:
        slots: [S].
        positions: [S], counters of the random streams.
        mask_rows: [S], rows of the mask table; -1 for none.
        shaped_rows: [S], rows of the shaped scores, which stand for those of the logits; -1 for none.
        ranked: [N], rows with top-k or top-p.
    """

    slots: Tensor
    positions: Tensor
    mask_rows: Tensor
    shaped_rows: Tensor
    ranked: Tensor


def choose_tokens(
    logits: Tensor,
    rows: SamplingRows,
    slot_table: Tensor,
    masks: Tensor | None,
    shaped: Tensor | None,
    last_tokens: Tensor,
    token_ids: Tensor,
    *,
    valid_vocab: int,
    random: bool,
) -> None:
    """Choose a token for each row, and write it to `token_ids` and, by slot, to `last_tokens`.

    Args:
        logits: [S, V] float32, bfloat16 or float16, the columns of a row beside each other.
        slot_table: [max_slots, 8] int32, the table of `palmette.runtime.slot_options`.
        masks: [rows, ceil(V / 32)] int32, the mask table; None where no row is masked.
        shaped: [n, V] float32; None where there are none.
        last_tokens: [max_slots] int64, written; 0 where no token could be chosen.
        token_ids: [S] int32, written; -1 (NaN or infinity) and -2 (no token is possible) where there is none.
        valid_vocab: columns from here on are padding.
        random: whether some rows are not greedy.
    """
    count, width = logits.shape
    if not count:
        return
    blocks = triton.cdiv(width, BLOCK)
    a_chunk = max(1, triton.next_power_of_2(count * blocks // _PROGRAMS))
    chunks = triton.cdiv(blocks, a_chunk)
    flags = {
        "WIDTH": width,
        "VALID": valid_vocab,
        "SHAPED": shaped is not None,
        "MASKED": masks is not None,
        "BLOCK": BLOCK,
    }
    scores = (logits, logits.stride(0), shaped, rows.shaped_rows, masks, rows.mask_rows)
    # a piece of memory each, which begins at a multiple of 16 bytes: Triton compiles anew for any other address
    peaks = torch.empty((count, chunks), dtype=torch.float32, device=logits.device)
    places = torch.empty((count, chunks), dtype=torch.int32, device=logits.device)
    _chunk_peaks[(count * chunks,)](*scores, peaks, places, a_chunk, chunks, **flags, num_warps=4)
    parts = {"CHUNKS": triton.next_power_of_2(blocks), "RANKED": len(rows.ranked) > 0}
    sums: Tensor | None = None
    thresholds: Tensor | None = None
    if random:
        if len(rows.ranked):
            ranking = flags | {"CHUNKS": parts["CHUNKS"]}
            thresholds = rank_rows(scores, rows.ranked, rows.slots, slot_table, peaks, ranking)
        sums = torch.empty((count, blocks), dtype=torch.int64, device=logits.device)
        _block_weights[(count * chunks,)](
            *scores,
            rows.slots,
            slot_table,
            peaks,
            thresholds,
            sums,
            a_chunk,
            chunks,
            **flags,
            **parts,
            num_warps=8,
        )
    _row_tokens[(count,)](
        *scores,
        rows.slots,
        rows.positions,
        slot_table,
        peaks,
        places,
        thresholds,
        sums,
        token_ids,
        last_tokens,
        chunks,
        **flags,
        **parts,
        RANDOM=random,
        num_warps=8 if random else 1,
    )


@triton.jit(do_not_specialize=["a_chunk", "chunks"])
def _chunk_peaks(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    peaks,
    places,
    a_chunk,
    chunks,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is a chunk of a row: its largest score and that score's lowest id. NaN counts as infinity."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
    # 32 columns wide: a word of the mask is loaded once for all that it says
    word = tl.arange(0, BLOCK // 32)
    offsets = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    best = tl.full((BLOCK // 32, 32), float("-inf"), tl.float32)
    place = tl.full((BLOCK // 32, 32), _LARGEST, tl.int32)
    block = chunk * a_chunk
    end = tl.minimum(block + a_chunk, blocks)
    while block < end:
        columns, words = block * BLOCK + offsets, block * (BLOCK // 32) + word
        scores = row_scores(source, columns, words, WIDTH, VALID, SHAPED, MASKED, True)
        scores = tl.where(scores != scores, float("inf"), scores)
        place = tl.where(scores > best, columns, place)
        best = tl.where(scores > best, scores, best)
        block += 1
    peak = tl.max(tl.max(best, axis=1), axis=0)
    first = tl.min(tl.min(tl.where(best == peak, place, _LARGEST), axis=1), axis=0)
    tl.store(peaks + tl.program_id(0), peak)
    tl.store(places + tl.program_id(0), first)


@triton.jit(do_not_specialize=["a_chunk", "chunks"])
def _block_weights(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    slot_table,
    peaks,
    thresholds,
    sums,
    a_chunk,
    chunks,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    RANKED: tl.constexpr,
):
    """A program is a chunk of a row: the sum of the kept weights of each of its blocks. Greedy rows have none."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    slot = tl.load(slots + row)
    peak, _values = row_peak(peaks, row, chunks, CHUNKS)
    if (option_word(slot_table, slot, 7) != 0) & is_finite(peak):
        source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
        temperature, min_p = option_float(slot_table, slot, 4), option_float(slot_table, slot, 5)
        threshold = 0
        if RANKED:
            threshold = tl.load(thresholds + row)
        word = tl.arange(0, BLOCK // 32)
        offsets = word[:, None] * 32 + tl.arange(0, 32)[None, :]
        block = chunk * a_chunk
        end = tl.minimum(block + a_chunk, blocks)
        while block < end:
            columns, words = block * BLOCK + offsets, block * (BLOCK // 32) + word
            scores = row_scores(source, columns, words, WIDTH, VALID, SHAPED, MASKED, True)
            weights = kept_weights(scores, peak, temperature, min_p, threshold, columns, RANKED)
            tl.store(sums + row * blocks + block, tl.sum(tl.sum(weights, axis=1), axis=0))
            block += 1


@triton.jit(do_not_specialize=["chunks"])
def _row_tokens(
    logits,
    stride,
    shaped,
    shaped_rows,
    masks,
    mask_rows,
    slots,
    positions,
    slot_table,
    peaks,
    places,
    thresholds,
    sums,
    token_ids,
    last_tokens,
    chunks,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    SHAPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    RANKED: tl.constexpr,
    RANDOM: tl.constexpr,
):
    """A program is a row: its token, from what the programs before found."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    peak, values = row_peak(peaks, row, chunks, CHUNKS)
    chunk = tl.arange(0, CHUNKS)
    firsts = tl.load(places + row * chunks + chunk, mask=chunk < chunks, other=_LARGEST)
    token = tl.min(tl.where(values == peak, firsts, _LARGEST), axis=0)
    token = tl.where(peak == float("-inf"), _NOTHING_ALLOWED, tl.where(is_finite(peak), token, _NOT_FINITE))
    if RANDOM:  # noqa: SIM102  # this is decided when the kernel is compiled
        if (option_word(slot_table, slot, 7) != 0) & is_finite(peak):
            source = (logits, stride, shaped, tl.load(shaped_rows + row), masks, tl.load(mask_rows + row), row)
            temperature, min_p = option_float(slot_table, slot, 4), option_float(slot_table, slot, 5)
            threshold = 0
            if RANKED:
                threshold = tl.load(thresholds + row)
            # the block where the cumulative weight passes the random share, then the token in it
            parts = tl.load(sums + row * blocks + chunk, mask=chunk < blocks, other=0)
            number = uniform(option_long(slot_table, slot, 0), tl.load(positions + row))
            total = tl.sum(parts, axis=0)
            share = tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)
            passed = (tl.cumsum(parts, axis=0) <= share) & (chunk < blocks)
            block = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), blocks - 1)
            before = tl.sum(tl.where(passed, parts, 0), axis=0)
            columns = block * BLOCK + tl.arange(0, BLOCK)
            words = columns // 32
            scores = row_scores(source, columns, words, WIDTH, VALID, SHAPED, MASKED, False)
            weights = kept_weights(scores, peak, temperature, min_p, threshold, columns, RANKED)
            behind = (before + tl.cumsum(weights, axis=0) <= share).to(tl.int32)
            token = tl.minimum(block * BLOCK + tl.sum(behind, axis=0), VALID - 1)
    tl.store(token_ids + row, token)
    tl.store(last_tokens + slot, tl.maximum(token, 0).to(tl.int64))
