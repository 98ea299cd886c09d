"""Kernels of gated activations against torch's own operators, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.runtime.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from palmette.runtime.layers.operators import TORCH, GateAndMul

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAIRS = {"silu": (silu_and_mul, TORCH.silu_and_mul), "gelu_tanh": (gelu_tanh_and_mul, TORCH.gelu_tanh_and_mul)}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[GateAndMul, GateAndMul]:
    """A kernel and its twin."""
    return PAIRS[request.param]


def run(kernel: GateAndMul, gate_up: torch.Tensor) -> torch.Tensor:
    """exp of much is infinity, and its inverse 0, as it should be; the interpreter's numpy would warn of it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return kernel(gate_up)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@given(rows=st.integers(0, 3), size=st.one_of(st.integers(1, 70), st.just(1025)), name=st.sampled_from(sorted(PAIRS)))
@settings(max_examples=20)
def test_activations_equal_torchs(rows: int, size: int, name: str) -> None:
    """Sizes that are no multiple of a block, and no rows at all."""
    kernel, twin = PAIRS[name]
    gate_up = random(rows, 2 * size) * 10
    torch.testing.assert_close(run(kernel, gate_up), twin(gate_up), atol=2e-6, rtol=4e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(pair: tuple[GateAndMul, GateAndMul], dtype: torch.dtype) -> None:
    """The nearest numbers to the float32 results, or their neighbours."""
    kernel, twin = pair
    gate_up = (random(3, 140) * 3).to(dtype)
    expected = twin(gate_up.float()).to(dtype)
    torch.testing.assert_close(run(kernel, gate_up), expected, atol=1e-6, rtol=torch.finfo(dtype).eps)


def test_extreme_numbers_stay_finite_and_broken_ones_broken(pair: tuple[GateAndMul, GateAndMul]) -> None:
    """Neither exp nor a cube overflows into NaN, and NaN is not lost."""
    kernel, twin = pair
    gates = [-1e30, -200.0, -0.0, 200.0, 1e30, torch.nan, torch.inf]
    gate_up = torch.tensor([gates + [1.0] * len(gates)], device=DEVICE)
    torch.testing.assert_close(run(kernel, gate_up), twin(gate_up), equal_nan=True)
