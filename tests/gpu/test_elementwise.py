"""The kernels between matrix products on a GPU: against float64, in graphs, and past 2 ** 31 numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from palmette.runtime.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from palmette.runtime.kernels.rms_norm import add_rms_norm, norm_heads, rms_norm
from palmette.runtime.kernels.rotary import rotary_angles, rotate_and_write
from palmette.runtime.layers.operators import TORCH, operators_for
from palmette.runtime.layers.placement import Placement

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ROUNDING = {torch.float32: 2e-6, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}
"""Error of MANY numbers that are rounded once, relative to their norm: 0.43 of eps / 2 is usual (1.7e-3 in bfloat16),
two roundings leave 0.59 of it. Of few numbers all may be unlucky: none is off by more than eps / 2 of itself."""
MANY = 1 << 16

dtypes = pytest.mark.parametrize("dtype", list(ROUNDING))
row_counts = pytest.mark.parametrize("rows", [1, 3, 64, 513, 8192])


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def poison(*shape: int, dtype: torch.dtype) -> None:
    """Fill what the next answer's memory will be with NaN: the allocator gives freed memory of one size out again."""
    torch.full(shape, torch.nan, device="cuda", dtype=dtype)


def check(found: Tensor, expected: Tensor) -> None:
    """expected: float64."""
    error = torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected)
    limit = ROUNDING[found.dtype]
    if found.numel() < MANY:
        limit = max(limit, torch.finfo(found.dtype).eps / 2)
    assert float(error) < limit


def normal(x: Tensor, weight: Tensor) -> Tensor:
    """The norm of x along its last dimension, in float64."""
    exact = x.double()
    return exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-5) * weight.double()


@dtypes
@row_counts
@pytest.mark.parametrize("size", [64, 2560, 4096, 5120, 16384])
def test_norms(rows: int, size: int, dtype: torch.dtype) -> None:
    """Of rows, and of sums with an update."""
    x, update, weight = random(rows, size, dtype=dtype), random(rows, size, dtype=dtype), random(size, dtype=dtype)
    poison(rows, size, dtype=dtype)
    check(rms_norm(x, weight, 1e-5), normal(x, weight))
    check(rms_norm(x, weight, 1e-5, 1.0), normal(x, weight.double() + 1))
    exact_total = x.double() + 0.22 * update.double()
    total, normed = add_rms_norm(x, update, weight, 1e-5, 0.0, 0.22)
    check(total, exact_total)
    check(normed, normal(total, weight))


@dtypes
@row_counts
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 4, 256), (9, 3, 80)])
def test_norms_of_heads(rows: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Queries and keys; values stay."""
    qkv, weight = random(rows, heads + 2 * kv_heads, head_dim, dtype=dtype), random(2, head_dim, dtype=dtype)
    before = qkv.clone()
    norm_heads(qkv, heads, kv_heads, weight, 1e-5)
    check(qkv[:, :heads], normal(before[:, :heads], weight[0]))
    check(qkv[:, heads : heads + kv_heads], normal(before[:, heads : heads + kv_heads], weight[1]))
    assert torch.equal(qkv[:, heads + kv_heads :], before[:, heads + kv_heads :])


@dtypes
@row_counts
@pytest.mark.parametrize("size", [128, 4864, 14336])
def test_activations(rows: int, size: int, dtype: torch.dtype) -> None:
    """Both, over gates from where they are nothing to where they are everything."""
    gate_up = random(rows, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=1)
    poison(rows, size, dtype=dtype)
    check(silu_and_mul(gate_up), torch.nn.functional.silu(gate) * up)
    poison(rows, size, dtype=dtype)
    check(gelu_tanh_and_mul(gate_up), torch.nn.functional.gelu(gate, approximate="tanh") * up)


@dtypes
@row_counts
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(32, 8, 128, 128), (32, 8, 64, 64), (8, 4, 256, 256), (24, 8, 96, 72), (32, 32, 80, 32), (4, 1, 128, 0)],
)
def test_turning_and_writing(
    rows: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, dtype: torch.dtype
) -> None:
    """Into slots in no order, by 32-bit and 64-bit numbers; all other slots stay."""
    qkv = random(rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    angle = torch.rand(rows, 1, rotary_dim // 2, device="cuda") * 6.3
    cos, sin = (angle.cos().to(dtype), angle.sin().to(dtype)) if rotary_dim else (None, None)
    keys, values = (torch.full((2 * rows, kv_heads, head_dim), torch.nan, device="cuda", dtype=dtype) for _ in "kv")
    slots = torch.randperm(2 * rows, device="cuda")[:rows].to(torch.int32 if rows % 2 else torch.int64)
    poison(rows, heads, head_dim, dtype=dtype)
    q = rotate_and_write(qkv, heads, kv_heads, cos, sin, keys, values, slots)

    exact = qkv.double()
    turned = exact if cos is None or sin is None else TORCH.rotate(exact, heads + kv_heads, cos.double(), sin.double())
    check(q, turned[:, :heads])
    check(keys[slots.long()], turned[:, heads : heads + kv_heads])
    assert torch.equal(values[slots.long()], qkv[:, heads + kv_heads :])
    assert int(keys.isfinite().sum()) == int(values.isfinite().sum()) == rows * kv_heads * head_dim


@dtypes
def test_angles(dtype: torch.dtype) -> None:
    """As torch computes them on the same device, over a whole context."""
    positions = torch.arange(131_072, device="cuda", dtype=torch.int32)
    frequencies = 500_000.0 ** -(torch.arange(64, device="cuda") / 64)
    expected = TORCH.rotary_angles(positions, frequencies, 1.0, dtype)
    for found, twin in zip(rotary_angles(positions, frequencies, 1.0, dtype), expected, strict=True):
        torch.testing.assert_close(found, twin, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_numbers_past_two_to_the_31() -> None:
    """Rows that begin, and slots that lie, beyond what 32 bits count."""
    gate_up = torch.empty(76_000, 28_672, device="cuda", dtype=torch.bfloat16)
    gate_up[-2:] = random(2, 28_672)
    torch.testing.assert_close(silu_and_mul(gate_up)[-2:], silu_and_mul(gate_up[-2:].contiguous()), rtol=0, atol=0)
    del gate_up
    keys, values = (torch.empty(2_200_000, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    qkv, slots = random(3, 48, 128), torch.tensor([2_199_999, 0, 2_100_000], device="cuda", dtype=torch.int32)
    rotate_and_write(qkv, 32, 8, None, None, keys, values, slots)
    assert torch.equal(keys[slots.long()], qkv[:, 32:40])
    assert torch.equal(values[slots.long()], qkv[:, 40:])


def chain(x: Tensor, update: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Kernels that each wait for the one before, some of them launched while it runs: a few layers' worth."""
    linear = operators_for(Placement(dtype=torch.bfloat16, device=x.device)).linear
    gain, wide, narrow = weights
    for _ in range(6):
        x, normed = add_rms_norm(x, update, gain, 1e-5)
        update = linear(silu_and_mul(linear(normed, wide)), narrow)
    return add_rms_norm(x, update, gain, 1e-5)[1]


def twin_chain(x: Tensor, update: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    gain, wide, narrow = weights
    for _ in range(6):
        x, normed = TORCH.add_rms_norm(x, update, gain, 1e-5)
        update = TORCH.linear(TORCH.silu_and_mul(TORCH.linear(normed, wide)), narrow)
    return TORCH.add_rms_norm(x, update, gain, 1e-5)[1]


@pytest.mark.parametrize("rows", [1, 64, 512])
def test_chains_of_kernels_in_a_graph_wait_for_one_another(rows: int) -> None:
    """Fresh inputs for every replay; the same numbers every time."""
    weights = (random(4096), random(8192, 4096) / 64, random(4096, 4096) / 64)
    x, update = random(rows, 4096), random(rows, 4096)
    graph = captured(lambda: chain(x.clone(), update.clone(), weights))
    for _ in range(20):
        x.copy_(random(rows, 4096))
        update.copy_(random(rows, 4096))
        found, again = graph().clone(), graph().clone()
        expected = twin_chain(x, update, weights).double()
        assert torch.equal(found, again)
        assert float(torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected)) < 2e-2


def captured(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`call` as a replay of a CUDA graph; it runs once before."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
