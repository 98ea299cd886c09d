"""Products of few rows equal torch's, however they are cut into programs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from palmette.runtime.kernels.linear import linear, multiply
from palmette.runtime.kernels.linear_measured import MEASURED
from palmette.runtime.kernels.linear_tiling import MOST_ROWS, Tiling, tiling_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES_OF_MODELS = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (128256, 4096),
    (3072, 2048),
    (2048, 8192),
)


def check(rows: int, outputs: int, inputs: int, tiling: Tiling, *, bias: bool = False) -> None:
    torch.manual_seed(rows * outputs + inputs)
    x, weight = torch.randn(rows, inputs, device=DEVICE), torch.randn(outputs, inputs, device=DEVICE)
    addend = torch.randn(outputs, device=DEVICE) if bias else None
    found = multiply(x, weight, addend, tiling)
    expected = functional.linear(x.double(), weight.double(), None if addend is None else addend.double())
    error = torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected)
    assert found.shape == expected.shape
    assert error < (1e-5 if DEVICE == "cpu" else 2e-3)  # a GPU's matrix units round float32 inputs to tf32


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs", "tiling"),
    [
        (32, 128, Tiling(0, 4, 64, 1, 1)),
        (30, 112, Tiling(0, 4, 64, 1, 1)),
        (24, 256, Tiling(0, 8, 32, 4, 1)),
        (21, 80, Tiling(0, 4, 16, 3, 1)),
        (16, 48, Tiling(0, 2, 64, 1, 1)),
    ],
)
def test_one_row(outputs: int, inputs: int, tiling: Tiling, bias: bool) -> None:
    """Blocks that fit evenly and that do not, whole sums and sums of parts."""
    check(1, outputs, inputs, tiling, bias=bias)


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize(
    ("outputs", "inputs", "tiling"),
    [
        (64, 128, Tiling(16, 32, 32, 1, 4, 2)),
        (72, 80, Tiling(16, 32, 32, 1, 4, 2)),
        (64, 192, Tiling(16, 32, 32, 3, 4, 2)),
        (40, 112, Tiling(16, 16, 16, 5, 4, 2)),
    ],
)
def test_a_few_rows(rows: int, outputs: int, inputs: int, tiling: Tiling) -> None:
    """Blocks that fit evenly and that do not, whole sums and sums of parts, some of which are empty."""
    check(rows, outputs, inputs, tiling, bias=rows == 5)


def test_sums_of_parts_leave_the_workspace_ready() -> None:
    """Products of different shapes follow one another."""
    for outputs in (64, 32, 96):
        check(3, outputs, 96, Tiling(8, 32, 32, 3, 4, 2))
        check(1, outputs, 96, Tiling(0, 16, 32, 3, 1))


def test_on_a_cpu_torch_multiplies() -> None:
    """The kernels are for GPUs."""
    x, weight, bias = torch.randn(3, 16), torch.randn(8, 16), torch.randn(8)
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))


@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES_OF_MODELS, (49152, 4096), (1032, 80), (200, 5120), (8, 16)])
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 64, 65, 128])
def test_every_tiling_has_room(rows: int, outputs: int, inputs: int) -> None:
    """For the rows, for partial sums, and for what a block of the GPU holds."""
    tiling = tiling_for(rows, outputs, inputs)
    if tiling is None:
        return
    stage_bytes = 2 * tiling.block_k * (tiling.block_m + tiling.block_n)
    assert tiling.block_m >= rows or (tiling.block_m == 0 and rows == 1)
    assert tiling.fits(outputs)
    assert tiling.block_m == 0 or tiling.stages * stage_bytes <= 220 * 1024


def test_odd_shapes_and_many_rows_are_left_to_torch() -> None:
    """No tiling is chosen for them."""
    assert tiling_for(MOST_ROWS + 1, 4096, 4096) is None
    assert tiling_for(1, 4096, 4100) is None
    assert tiling_for(0, 4096, 4096) is None


def test_the_measured_tilings_are_in_order() -> None:
    """Each shape's list goes up in rows, to the most."""
    for tilings in MEASURED.values():
        rows = [most for most, _ in tilings]
        assert rows == sorted(rows)
        assert rows[-1] == MOST_ROWS
