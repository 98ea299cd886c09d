"""Linear layers for few rows: one pass over the weights, whatever the number of rows."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from .vectors import LANES, address, columns_product, compiled

Float32Array = npt.NDArray[np.float32]

_DOT_ROWS = 4
"""Up to here each output is one dot product: memory is the limit."""

MOST_ROWS = 64
"""Above this torch's product is quicker."""

_PAD = 2 * LANES
_TILE = 48  # outputs a task computes, a multiple of _UNROLLED
_UNROLLED = 6  # times 2 vectors: 12 of 16 registers hold sums


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [M, in] @ weight [out, in].T + bias [out] -> [M, out]; all float32 on the CPU."""
    rows = len(x)
    if not 0 < rows <= MOST_ROWS:
        return functional.linear(x, weight, bias)
    out = torch.empty(rows, len(weight))
    kernel = _dot_products if rows <= _DOT_ROWS else _column_products
    kernel(x.contiguous().numpy(), weight.numpy(), out.numpy())
    return out if bias is None else out.add_(bias)


@compiled()
def dot(left: Float32Array, right: Float32Array) -> np.float32:
    total = np.float32(0)
    for k in range(len(right)):
        total += left[k] * right[k]
    return total


@compiled(parallel=True)
def _dot_products(x: Float32Array, weight: Float32Array, out: Float32Array) -> None:
    outputs = len(weight)
    for task in numba.prange((outputs + _TILE - 1) // _TILE):
        for n in range(task * _TILE, min(outputs, task * _TILE + _TILE)):
            for m in range(len(x)):
                out[m, n] = dot(x[m], weight[n])


@compiled(parallel=True)
def _column_products(x: Float32Array, weight: Float32Array, out: Float32Array) -> None:
    """Rows side by side in vectors, each weight spread over a whole vector of rows."""
    rows, outputs = len(x), len(weight)
    columns = _columns_of(x)
    for task in numba.prange((outputs + _TILE - 1) // _TILE):
        start = task * _TILE
        stop = min(outputs, start + _TILE)
        part = np.empty((_TILE, columns.shape[1]), np.float32)
        _tile(columns, weight, start, stop, part)
        for m in range(rows):
            for n in range(stop - start):
                out[m, start + n] = part[n, m]


@compiled()
def _columns_of(x: Float32Array) -> Float32Array:
    """x.T, its rows padded with zeros to whole pairs of vectors."""
    rows, depth = x.shape
    columns = np.zeros((depth, (rows + _PAD - 1) // _PAD * _PAD), np.float32)
    for m in range(rows):
        for k in range(depth):
            columns[k, m] = x[m, k]
    return columns


@compiled()
def _tile(columns: Float32Array, weight: Float32Array, start: int, stop: int, out: Float32Array) -> None:
    """out [:stop - start] = weight[start:stop] @ columns."""
    depth, width = columns.shape
    for m in range(0, width, _PAD):
        source = address(columns) + m * 4
        row = address(weight) + start * depth * 4
        target = address(out) + m * 4
        n = start
        while n + _UNROLLED <= stop:
            columns_product(_UNROLLED, 2, source, width, row, depth, depth, target, width)
            n += _UNROLLED
            row += _UNROLLED * depth * 4
            target += _UNROLLED * width * 4
        while n < stop:
            columns_product(1, 2, source, width, row, depth, depth, target, width)
            n += 1
            row += depth * 4
            target += width * 4
