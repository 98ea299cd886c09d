"""Kernels of rotary embeddings against torch's own operators, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.kernels.rotary import rotary_angles, rotate_and_write
from palmette.runtime.layers.operators import TORCH

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def caches(slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.full((slots, kv_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]


@given(
    tokens=st.integers(0, 3),
    heads=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    half=st.integers(0, 9),
    rest=st.integers(0, 9),
    slot_dtype=st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=25)
def test_turning_and_writing_equals_torchs(
    tokens: int, heads: int, kv_heads: int, half: int, rest: int, slot_dtype: torch.dtype
) -> None:
    """Any number of heads and components, of which some, all or none are turned; other slots are left alone."""
    head_dim = 2 * half + rest or 1
    qkv = random(tokens, heads + 2 * kv_heads, head_dim)
    angle = random(tokens, 1, half)
    cos, sin = (angle.cos(), angle.sin()) if half else (None, None)
    keys, values = caches(7, kv_heads, head_dim)
    slots = torch.tensor([6, 0, 3], dtype=slot_dtype, device=DEVICE)[:tokens]
    before = qkv.clone()
    q = rotate_and_write(qkv, heads, kv_heads, cos, sin, keys, values, slots)

    turned = qkv if cos is None or sin is None else TORCH.rotate(qkv, heads + kv_heads, cos, sin)
    torch.testing.assert_close(q, turned[:, :heads], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(keys[slots.long()], turned[:, heads : heads + kv_heads], atol=1e-6, rtol=1e-6)
    assert torch.equal(values[slots.long()], qkv[:, heads + kv_heads :])
    assert keys.isfinite().any(2).any(1).sum() == values.isfinite().any(2).any(1).sum() == tokens
    assert q.is_contiguous()
    assert torch.equal(qkv, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    """The nearest numbers to what float32 gives, or their neighbours; values are copied bit for bit."""
    qkv, angle = random(3, 12, 24).to(dtype), random(3, 1, 12)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    keys, values = caches(3, 2, 24, dtype)
    q = rotate_and_write(qkv, 8, 2, cos, sin, keys, values, torch.arange(3, device=DEVICE))
    turned = TORCH.rotate(qkv.float(), 10, cos.float(), sin.float()).to(dtype)
    torch.testing.assert_close(torch.cat((q, keys), 1), turned, atol=1e-6, rtol=torch.finfo(dtype).eps)
    assert torch.equal(values, qkv[:, 10:])


def test_broken_values_are_copied_as_they_are() -> None:
    """Infinity times the sine of no angle would be NaN."""
    qkv = random(1, 3, 8)
    qkv[0, 2, :2] = torch.tensor([torch.inf, torch.nan])
    keys, values = caches(1, 1, 8)
    angle = random(1, 1, 4)
    rotate_and_write(
        qkv, 1, 1, angle.cos(), angle.sin(), keys, values, torch.zeros(1, dtype=torch.int32, device=DEVICE)
    )
    torch.testing.assert_close(values, qkv[:, 2:], rtol=0, atol=0, equal_nan=True)


@given(half=st.integers(1, 40), factor=st.sampled_from([1.0, 1.2]))
@settings(max_examples=10)
def test_angles_equal_torchs(half: int, factor: float) -> None:
    """Of near and far positions, which are large numbers of turns."""
    positions = torch.tensor([0, 1, 77, 131_071, 1_000_003], dtype=torch.int32, device=DEVICE)
    frequencies = (10_000.0 ** -(torch.arange(half) / half)).to(DEVICE)
    expected = TORCH.rotary_angles(positions, frequencies, factor, torch.float32)
    torch.testing.assert_close(
        rotary_angles(positions, frequencies, factor, torch.float32), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_of_half_precision_are_computed_in_float32(dtype: torch.dtype) -> None:
    """Positions beyond what the dtype can count."""
    positions = torch.tensor([2049, 131_071], dtype=torch.int64, device=DEVICE)
    frequencies = torch.tensor([1.0, 0.3, 1e-3], device=DEVICE)
    expected = TORCH.rotary_angles(positions, frequencies, 1.0, dtype)
    found = rotary_angles(positions, frequencies, 1.0, dtype)
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
