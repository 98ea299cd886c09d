"""Kernels of norms against torch's own operators, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.kernels.rms_norm import add_rms_norm, norm_heads, rms_norm
from palmette.runtime.layers.operators import TORCH

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@given(rows=st.integers(0, 3), size=st.integers(1, 130), offset=st.sampled_from([0.0, 1.0]))
@settings(max_examples=12)
def test_norms_equal_torchs(rows: int, size: int, offset: float) -> None:
    """Sizes that are no power of two, and no rows at all."""
    x, weight = random(rows, size) * 3, random(size)
    out = rms_norm(x, weight, 1e-5, offset)
    torch.testing.assert_close(out, TORCH.rms_norm(x, weight, 1e-5, offset), atol=2e-6, rtol=2e-6)


@given(rows=st.integers(0, 3), size=st.integers(1, 130), scale=st.sampled_from([1.0, 0.22]))
@settings(max_examples=12)
def test_sums_and_their_norms_equal_torchs(rows: int, size: int, scale: float) -> None:
    """Both go where the inputs were."""
    x, update, weight = random(rows, size) * 3, random(rows, size) + 1, random(size)
    expected = TORCH.add_rms_norm(x, update, weight, 1e-5, 1.0, scale)
    out = add_rms_norm(x, update, weight, 1e-5, 1.0, scale)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=2e-6)
    assert (out[0].data_ptr(), out[1].data_ptr()) == (x.data_ptr(), update.data_ptr())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_normalised_is_the_rounded_sum(dtype: torch.dtype) -> None:
    """As in torch, where the residual stream is a tensor of the model's dtype between the two operators."""
    x, update, weight = (random(*shape).to(dtype) for shape in ((3, 96), (3, 96), (96,)))
    total = torch.add(x, update, alpha=0.5)
    expected = TORCH.rms_norm(total.float(), weight.float(), 1e-5).to(dtype)
    got_total, got = add_rms_norm(x, update, weight, 1e-5, 0.0, 0.5)
    one_unit = torch.finfo(dtype).eps
    torch.testing.assert_close(got_total, total, atol=0, rtol=one_unit)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=2 * one_unit)


@given(heads=st.integers(1, 19), kv_heads=st.integers(1, 3), size=st.integers(1, 40))
@settings(max_examples=12)
def test_norms_of_heads_equal_torchs(heads: int, kv_heads: int, size: int) -> None:
    """Queries and keys each with their weight, in place; values stay."""
    x, weight = random(2, heads + 2 * kv_heads, size) * 3, random(2, size)
    expected = TORCH.norm_heads(x, heads, kv_heads, weight, 1e-5, 0.5)
    assert norm_heads(x, heads, kv_heads, weight, 1e-5, 0.5) is x
    torch.testing.assert_close(x, expected, atol=2e-6, rtol=2e-6)


def test_not_a_number_is_not_lost() -> None:
    """Broken weights must reach the logits, and no row but their own."""
    x = random(2, 40)
    x[0, 3] = torch.nan
    out = rms_norm(x, random(40), 1e-5)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
