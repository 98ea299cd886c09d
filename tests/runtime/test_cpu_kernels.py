"""The CPU's kernels against torch's own operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from palmette.runtime import cpu_kernels
from palmette.runtime.cpu_kernels.elementwise import tanh32
from palmette.runtime.layers.operators import TORCH, operators_for
from palmette.runtime.layers.placement import Placement

sizes = st.integers(1, 130)
row_counts = st.sampled_from([1, 2, 4, 5, 15, 16, 17, 33, 64, 65, 130])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@given(rows=row_counts, inputs=sizes, outputs=sizes, bias=st.booleans())
@settings(max_examples=40)
def test_products_equal_torchs(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    """Whatever the rows, and sizes that are no multiple of a vector or a tile."""
    x, weight, offset = random(rows, inputs), random(outputs, inputs), random(outputs) if bias else None
    expected = functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(
        cpu_kernels.linear(x, weight, offset), expected.float(), atol=1e-4, rtol=1e-4, check_stride=False
    )


def test_no_rows_and_rows_with_gaps_are_products_too() -> None:
    """An empty step, and a view of every other row."""
    weight = random(5, 8)
    assert cpu_kernels.linear(random(0, 8), weight).shape == (0, 5)
    x = random(6, 8)[::2]
    torch.testing.assert_close(cpu_kernels.linear(x, weight), functional.linear(x, weight))


@given(rows=row_counts, size=sizes)
@settings(max_examples=30)
def test_norms_and_activations_equal_torchs(rows: int, size: int) -> None:
    """Within float32's rounding."""
    x, weight, gate_up = random(rows, size) * 3, random(size), random(rows, 2 * size) * 10
    torch.testing.assert_close(
        cpu_kernels.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        cpu_kernels.rms_norm(x, weight, 1e-5, 1.0), TORCH.rms_norm(x, weight, 1e-5, 1.0), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(cpu_kernels.silu_and_mul(gate_up), TORCH.silu_and_mul(gate_up), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        cpu_kernels.gelu_tanh_and_mul(gate_up), TORCH.gelu_tanh_and_mul(gate_up), atol=1e-5, rtol=1e-5
    )


@given(rows=row_counts, heads=st.integers(1, 4), kv_heads=st.integers(1, 3), size=st.integers(1, 40))
@settings(max_examples=20)
def test_norms_of_heads_equal_torchs(rows: int, heads: int, kv_heads: int, size: int) -> None:
    """Queries and keys each with their weight, in a row that holds values too, which stay; and torch's, written out."""
    x, weight = random(rows, heads + 2 * kv_heads, size) * 3, random(2, size)
    expected = [
        TORCH.rms_norm(x[:, start:stop], row, 1e-5, 0.5)
        for row, start, stop in ((weight[0], 0, heads), (weight[1], heads, heads + kv_heads))
    ]
    for operator in (cpu_kernels.norm_heads, TORCH.norm_heads):
        out = operator(x, heads, kv_heads, weight, 1e-5, 0.5)
        torch.testing.assert_close(out, torch.cat((*expected, x[:, heads + kv_heads :]), 1), atol=1e-5, rtol=1e-5)


def test_activations_of_extreme_numbers_are_finite() -> None:
    """exp neither overflows nor makes NaN."""
    gate_up = torch.tensor([[-1e30, -200.0, 200.0, 1e30, 1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(cpu_kernels.silu_and_mul(gate_up), TORCH.silu_and_mul(gate_up))
    torch.testing.assert_close(cpu_kernels.gelu_tanh_and_mul(gate_up), gate_up[:, :4].clamp(min=0))


def test_tanh_is_exact_to_a_few_units_in_the_last_place() -> None:
    """Near zero, on both sides of where the formula changes, and far out."""
    magnitudes = np.concatenate([np.geomspace(1e-20, 1e30, 997), np.linspace(0.6, 0.65, 101), [0.0]])
    numbers = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    ours = np.array([tanh32(number) for number in numbers])
    np.testing.assert_allclose(ours, np.tanh(numbers.astype(np.float64)), rtol=4e-7)


@given(rows=row_counts, heads=st.integers(1, 4), half=st.integers(1, 20))
@settings(max_examples=20)
def test_rotations_equal_torchs(rows: int, heads: int, half: int) -> None:
    """The heads that are turned, out of more."""
    x, angle = random(rows, heads + 2, 2 * half), random(rows, 1, half)
    turned = cpu_kernels.rotate(x, heads, angle.cos(), angle.sin())
    torch.testing.assert_close(turned, TORCH.rotate(x, heads, angle.cos(), angle.sin()))


@given(rows=row_counts, half=st.integers(1, 5), rest=st.integers(1, 9))
@settings(max_examples=20)
def test_components_past_the_angles_stay(rows: int, half: int, rest: int) -> None:
    """Rotary embeddings of a part of each head."""
    x, angle = random(rows, 3, 2 * half + rest), random(rows, 1, half)
    turned = TORCH.rotate(x[..., : 2 * half].contiguous(), 2, angle.cos(), angle.sin())
    for rotate in (cpu_kernels.rotate, TORCH.rotate):
        out = rotate(x, 2, angle.cos(), angle.sin())
        torch.testing.assert_close(out, torch.cat((turned, x[:, :2, 2 * half :]), dim=-1))


def test_capped_scores_are_those_of_tanh() -> None:
    """Decode attention with a soft cap, on scores far below and far above it."""
    q, keys, values = random(2, 6, 16) * 3, random(9, 2, 16) * 3, random(9, 2, 16)
    slots, lengths = np.arange(18, dtype=np.int32).reshape(2, 9) % 9, np.array([9, 5])
    out = cpu_kernels.decode_attention(q, keys, values, slots, lengths, scale=0.5, softcap=4.0)
    for m, length in enumerate(lengths):
        seen = torch.from_numpy(slots[m, :length]).long()
        k, v = (x[seen].repeat_interleave(3, 1) for x in (keys, values))
        scores = 4.0 * (torch.einsum("hd,thd->ht", q[m], k) * 0.5 / 4.0).tanh()
        torch.testing.assert_close(out[m], torch.einsum("ht,thd->hd", scores.softmax(-1), v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("head_dim", [8, 48, 128])
def test_decode_attention_equals_torchs(group: int, head_dim: int) -> None:
    """Groups and head sizes that divide into registers in different ways."""
    kv_heads, lengths = 2, np.array([1, 3, 4, 9])
    q, keys, values = (
        random(4, kv_heads * group, head_dim),
        random(40, kv_heads, head_dim),
        random(40, kv_heads, head_dim),
    )
    slots = np.random.default_rng(0).permutation(40)[:36].reshape(4, 9).astype(np.int32)
    out = cpu_kernels.decode_attention(q, keys, values, slots, lengths, scale=0.3)
    for m, length in enumerate(lengths):
        seen = torch.from_numpy(slots[m, :length]).long()
        k, v = (x[seen].repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values))
        expected = functional.scaled_dot_product_attention(q[m, :, None], k, v, scale=0.3)[:, 0]
        torch.testing.assert_close(out[m], expected, atol=1e-5, rtol=1e-5)


def test_not_a_number_is_not_lost() -> None:
    """Broken weights must reach the logits."""
    nan = torch.full((1, 8), torch.nan)
    assert cpu_kernels.linear(nan, random(3, 8)).isnan().all()
    assert cpu_kernels.rms_norm(nan, random(8), 1e-5).isnan().all()
    assert cpu_kernels.silu_and_mul(nan).isnan().all()
    assert cpu_kernels.gelu_tanh_and_mul(nan).isnan().all()
    assert cpu_kernels.norm_heads(nan.view(1, 4, 2), 1, 1, random(2, 2), 1e-5).isnan().all()


def test_other_dtypes_use_torchs_operators() -> None:
    """The kernels are for float32."""
    assert operators_for(Placement(dtype=torch.bfloat16)) is TORCH
    assert operators_for(Placement()) is not TORCH
