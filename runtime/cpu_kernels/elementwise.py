"""The small operators between products, each one pass over its numbers where torch's make several."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from .products import MOST_ROWS, dot
from .vectors import bits_as_float, compiled

Float32Array = npt.NDArray[np.float32]
Kernel = Callable[..., None]

_PARALLEL_ROWS = 128
"""From here the work is worth waking other threads for."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [M, size] / sqrt(mean(x ** 2) + eps) * weight."""
    out = torch.empty_like(x)
    _rms_norm(len(x))(x.numpy(), weight.numpy(), np.float32(eps), out.numpy())
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [M, 2 * size], both halves side by side -> [M, size]."""
    if len(gate_up) > MOST_ROWS:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2)
    _silu_and_mul(len(out))(gate_up.numpy(), out.numpy())
    return out


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """The first `heads` heads of x [M, H, head_dim], turned by angles [M, 1, head_dim / 2] -> [M, heads, head_dim]."""
    out = torch.empty(len(x), heads, x.shape[2])
    _rotate(len(x))(x.numpy(), cos.numpy(), sin.numpy(), out.numpy())
    return out


def _by_rows(kernel: Kernel) -> Callable[[int], Kernel]:
    """The kernel for a number of rows: its prange over them runs in one thread or in several."""
    serial, parallel = compiled()(kernel), compiled(parallel=True)(kernel)
    return lambda rows: serial if rows < _PARALLEL_ROWS else parallel


@compiled(finite=True)
def exp32(x: np.float32) -> np.float32:
    """exp(x) within a few units in the last place, in steps that LLVM vectorises; NaN is not kept.

    x = n ln 2 + r, and a polynomial for exp(r). Source: Cephes expf, whose coefficients these are.
    """
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))  # kept a float: numba's integer sums are 64 bits wide
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power = bits_as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return np.float32(p * power)


@_by_rows
def _rms_norm(x: Float32Array, weight: Float32Array, eps: np.float32, out: Float32Array) -> None:
    size = len(weight)
    for m in numba.prange(len(x)):
        scale = np.float32(1) / np.sqrt(dot(x[m], x[m]) / np.float32(size) + eps)
        for k in range(size):
            out[m, k] = x[m, k] * scale * weight[k]


@_by_rows
def _silu_and_mul(gate_up: Float32Array, out: Float32Array) -> None:
    size = out.shape[1]
    for m in numba.prange(len(out)):
        for k in range(size):
            gate = gate_up[m, k]
            out[m, k] = gate / (np.float32(1) + exp32(-gate)) * gate_up[m, size + k]


@_by_rows
def _rotate(x: Float32Array, cos: Float32Array, sin: Float32Array, out: Float32Array) -> None:
    half = out.shape[2] // 2
    for m in numba.prange(len(out)):
        for h in range(out.shape[1]):
            for i in range(half):
                first, second = x[m, h, i], x[m, h, half + i]
                out[m, h, i] = first * cos[m, 0, i] - second * sin[m, 0, i]
                out[m, h, half + i] = second * cos[m, 0, i] + first * sin[m, 0, i]
