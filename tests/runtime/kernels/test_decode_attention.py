"""The decode kernels against attention written out, and how contexts are split."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.kernels.attention_cases import Shape, expected, on, paged

from palmette.runtime.kernels.decode_attention import (
    LEAST_CHUNK,
    DecodeRows,
    DecodeTile,
    decode_attention,
    item_lists,
    split_rows,
)

TILE = DecodeTile(block_n=16, num_warps=4, num_stages=2)

SHAPES = {
    "one head": Shape(heads=1, kv_heads=1, head_dim=2, page_size=1),
    "groups of 8": Shape(heads=8, kv_heads=1, head_dim=8, page_size=3),
    "groups of 3": Shape(heads=6, kv_heads=2, head_dim=64),
    "groups of 20": Shape(heads=20, kv_heads=1, head_dim=16),
    "heads of 80": Shape(heads=2, kv_heads=2, head_dim=80, softcap=1.5),
    "small window": Shape(window=5),
    "window of blocks": Shape(window=33, softcap=2.0, page_size=3),
}


def check(lengths: list[int], splits: list[int], shape: Shape, *, room: int = 0, merge: bool = True) -> None:
    """The kernel over rows split so; NaN in slots never written and in the output before it."""
    rows = paged([(length - 1, 1) for length in lengths], shape)
    item_rows, split_indptr = item_lists(np.array(splits, dtype=np.int32), sum(splits) + room)
    where = DecodeRows(*on("cpu", rows.page_ids, rows.page_indptr, rows.seq_lens, item_rows, split_indptr))
    out = torch.full_like(rows.q, torch.nan)
    decode_attention(
        rows.q,
        rows.keys,
        rows.values,
        where,
        out,
        page_size=shape.page_size,
        scale=shape.scale,
        softcap=shape.softcap,
        window=shape.window,
        merge=merge,
        tile=TILE,
    )
    torch.testing.assert_close(out, expected(rows, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_rows_whole_and_split_equal_attention_written_out(shape: Shape) -> None:
    """Rows of one token, of a page's length, of several blocks; whole, in two and in three parts; with free places."""
    check([1, 16, 70, 40], [1, 1, 3, 2], shape, room=3)


def test_rows_that_are_never_split_need_no_merge() -> None:
    """One launch then."""
    check([1, 17, 33], [1, 1, 1], Shape(), merge=False)


def test_more_parts_than_blocks_leave_some_empty() -> None:
    """A split row under a window sees less than its length, and its last parts nothing."""
    check([50, 20], [5, 20], Shape(window=3))


@given(lengths=st.lists(st.integers(1, 200_000), min_size=1, max_size=40), more=st.integers(0, 200))
@settings(max_examples=200)
def test_splits_are_bounded_and_even(lengths: list[int], more: int) -> None:
    """At most `more` beyond the rows, one at least for each, and no part shorter than a chunk where it was split."""
    seq_lens = np.array(lengths, dtype=np.int32)
    splits = split_rows(seq_lens, more)
    assert splits.min() >= 1
    assert splits.sum() <= len(lengths) + more
    assert ((splits == 1) | (-(-seq_lens // splits) > LEAST_CHUNK // 2)).all()


def test_one_long_row_is_split_though_there_are_many() -> None:
    """The room goes to who needs it."""
    splits = split_rows(np.array([100] * 511 + [100_000], dtype=np.int32), 66)
    assert splits[-1] >= 50
    assert (splits[:-1] == 1).all()


def test_free_places_hold_no_row() -> None:
    """The rest of a fixed list is -1."""
    item_rows, split_indptr = item_lists(np.array([2, 1], dtype=np.int32), 5)
    assert item_rows.tolist() == [0, 0, 1, -1, -1]
    assert split_indptr.tolist() == [0, 2, 3]
