"""The prefill kernel against attention written out, and its work list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.kernels.attention_cases import Shape, expected, on, paged

from palmette.runtime.kernels.prefill_attention import (
    PrefillRows,
    PrefillTile,
    prefill_attention,
    prefill_tile,
    work_list,
)

TILE = PrefillTile(block_m=16, block_n=16, num_warps=4, num_stages=2)

SHAPES = {
    "one head": Shape(heads=1, kv_heads=1, head_dim=2, page_size=1),
    "groups of 8": Shape(heads=8, kv_heads=1, head_dim=8, page_size=3),
    "groups of 3": Shape(heads=6, kv_heads=2, head_dim=64),
    "groups of 20": Shape(heads=20, kv_heads=1, head_dim=16),
    "heads of 80": Shape(heads=2, kv_heads=2, head_dim=80, softcap=1.5),
    "window of one": Shape(window=1),
    "small window": Shape(window=5),
    "window of blocks": Shape(window=37, softcap=2.0, page_size=3),
}


def check(rows: list[tuple[int, int]], shape: Shape, tile: PrefillTile = TILE) -> None:
    """The kernel over rows (before, now); NaN in slots never written and in the output before it."""
    step = paged(rows, shape)
    items = work_list(step.query_lens, step.seq_lens, shape.heads // shape.kv_heads, tile.block_m)
    arrays = (step.page_ids, step.page_indptr, step.seq_lens, step.query_indptr, *items)
    out = torch.full_like(step.q, torch.nan)
    prefill_attention(
        step.q,
        step.keys,
        step.values,
        PrefillRows(*on("cpu", *arrays)),
        out,
        tile=tile,
        page_size=shape.page_size,
        scale=shape.scale,
        softcap=shape.softcap,
        window=shape.window,
    )
    torch.testing.assert_close(out, expected(step, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_rows_of_any_length_equal_attention_written_out(shape: Shape) -> None:
    """With and without a prefix, of one token, of less than a block and of several."""
    check([(0, 1), (0, 20), (50, 1), (33, 18), (16, 16)], shape)


@pytest.mark.parametrize("block_n", [16, 32])
def test_blocks_larger_than_rows(block_n: int) -> None:
    """The tile of real models on short rows."""
    check([(0, 3), (70, 2)], Shape(window=20), PrefillTile(64, block_n, 4, 2))


@given(
    rows=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=8),
    group=st.integers(1, 9),
    block_m=st.sampled_from([16, 64]),
)
def test_the_work_list_covers_every_row_once(rows: list[tuple[int, int]], group: int, block_m: int) -> None:
    """Every block of every row, the longest context first."""
    query_lens = np.array([now for _, now in rows], dtype=np.int32)
    seq_lens = query_lens + np.array([before for before, _ in rows], dtype=np.int32)
    item_rows, item_blocks = work_list(query_lens, seq_lens, group, block_m)
    wanted = {(r, b) for r, count in enumerate(query_lens.tolist()) for b in range(-(-count * group // block_m))}
    assert len(item_rows) == len(wanted)
    assert set(zip(item_rows.tolist(), item_blocks.tolist(), strict=True)) == wanted
    assert item_rows.dtype == item_blocks.dtype == np.int32
    contexts = [rows[r][0] + (b + 1) * block_m // group for r, b in zip(item_rows, item_blocks, strict=True)]
    assert contexts == sorted(contexts, reverse=True)


@pytest.mark.parametrize(("packed_len", "block_m"), [(1, 16), (16, 16), (17, 64), (65, 128), (10_000, 128)])
def test_short_rows_get_small_tiles(packed_len: int, block_m: int) -> None:
    """Most of a large one would be empty."""
    assert prefill_tile(128, torch.bfloat16, packed_len).block_m == block_m
