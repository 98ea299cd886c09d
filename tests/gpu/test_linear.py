"""Products of few rows on a GPU: bfloat16 against float64, in graphs too, with dependent launches and shared sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from palmette.runtime.kernels.linear import linear, multiply
from palmette.runtime.kernels.linear_tiling import Tiling, tiling_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (3072, 2048), (2048, 8192), (1000, 1200))
ROUNDING = 3e-3
"""Of a bfloat16 answer of a thousand numbers or more, relative to its norm: 1.7e-3 is usual, and 3.9e-3 the most."""


def inputs_of(rows: int, outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    x = torch.randn(rows, inputs, device="cuda", dtype=dtype)
    weight, bias = (
        torch.randn(outputs, inputs, device="cuda", dtype=dtype),
        torch.randn(outputs, device="cuda", dtype=dtype),
    )
    torch.cuda.synchronize()  # see `linear`
    return x, weight, bias


def error_of(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> float:
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    return float(torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected))


def poison(outputs: int, rows: int) -> None:
    """Fills what the next answer's memory will be with NaN: the allocator gives freed memory of one size out again."""
    torch.full((rows, outputs), float("nan"), device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 16, 31, 64, 100, 128])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_are_exact_but_for_rounding(rows: int, outputs: int, inputs: int) -> None:
    """With and without a bias."""
    x, weight, bias = inputs_of(rows, outputs, inputs)
    poison(outputs, rows)
    assert error_of(linear(x, weight), x, weight) < ROUNDING
    assert error_of(linear(x, weight, bias), x, weight, bias) < ROUNDING


def test_many_rows() -> None:
    """They go to cuBLAS, which may add up parts of the sums in bfloat16."""
    x, weight, bias = inputs_of(300, 4096, 4096)
    assert error_of(linear(x, weight, bias), x, weight, bias) < 1e-2


@pytest.mark.parametrize("rows", [1, 11, 16])
def test_blocks_that_do_not_fit(rows: int) -> None:
    """Rows, outputs and inputs that end within a block, in whole sums and in parts."""
    x, weight, bias = inputs_of(rows, 1000, 1200)
    for split_k in (1, 3):
        for dependent in (False, True):
            poison(1000, rows)
            found = multiply(x, weight, bias, Tiling(16, 64, 128, split_k, 4, 3, dependent))
            assert error_of(found, x, weight, bias) < ROUNDING


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_vocabulary(rows: int) -> None:
    """Of 128256 words, and offsets past 2 ** 31 bytes."""
    x, weight, _ = inputs_of(rows, 128256, 4096 * 5)
    found = linear(x, weight)
    for part in (slice(0, 512), slice(-512, None)):
        assert error_of(found[:, part], x, weight[part]) < ROUNDING


def test_float16() -> None:
    """The other dtype of half the size."""
    for rows in (1, 20):
        x, weight, bias = inputs_of(rows, 4096, 4096, torch.float16)
        assert error_of(linear(x, weight, bias), x, weight, bias) < 1e-3


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize(
    "tiling", [Tiling(0, 4, 1024, 4, 4), Tiling(16, 64, 128, 8, 4, 4), Tiling(64, 128, 64, 7, 4, 4)]
)
def test_sums_of_parts_are_the_same_every_time(tiling: Tiling, dependent: bool) -> None:
    """Whichever program arrives last: a thousand launches, one right after the other, give one answer."""
    x, weight, _ = inputs_of(max(1, tiling.block_m), 4096, 14336)
    tiling = replace(tiling, dependent=dependent)
    first = multiply(x, weight, None, tiling)
    different = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(1000):
        different |= (multiply(x, weight, None, tiling) != first).any()
    assert error_of(first, x, weight) < ROUNDING
    assert not different.item()


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_chain_in_a_graph_follows_its_inputs(rows: int, dependent: bool) -> None:
    """Each product reads what the one before it wrote, replay after replay, though launches may overlap."""
    x, first, _ = inputs_of(rows, 4096, 4096)
    second = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    scale = 1 / 4096

    def cut(weight: torch.Tensor) -> Tiling:
        tiling = tiling_for(rows, *weight.shape)
        assert tiling is not None
        return replace(tiling, dependent=dependent)

    def chain(state: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            middle = multiply(state, first, None, cut(first))
            state = multiply(middle, second, None, cut(second)) * scale
        return state

    chain(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(x)
    for _ in range(20):
        x.normal_()
        graph.replay()
        expected = x.float()
        for _ in range(4):
            expected = (expected.bfloat16() @ first.T @ second.T).float() * scale
        error = torch.linalg.norm(out.float() - expected) / torch.linalg.norm(expected)
        assert float(error) < 2e-2
