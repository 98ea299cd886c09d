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


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x [M, size] / sqrt(mean(x ** 2) + eps) * (offset + weight)."""
    out = torch.empty_like(x)
    _rms_norm(len(x))(x.numpy(), weight.numpy(), np.float32(eps), np.float32(offset), out.numpy())
    return out


def norm_heads(x: Tensor, heads: int, kv_heads: int, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x [M, H, head_dim] with each of its first heads normalised by itself.

    Args:
        weight: [2, head_dim], of the first `heads` and of the `kv_heads` after them.
    """
    out = x.clone()
    normal = out[:, : heads + kv_heads]
    _norm_heads(len(x))(x.numpy(), heads, weight.numpy(), np.float32(eps), np.float32(offset), normal.numpy())
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [M, 2 * size], both halves side by side -> [M, size]."""
    if len(gate_up) > MOST_ROWS:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2)
    _silu_and_mul(len(out))(gate_up.numpy(), out.numpy())
    return out


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up of gate_up [M, 2 * size], with the approximation of gelu by tanh -> [M, size]."""
    if len(gate_up) > MOST_ROWS:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh").mul_(up)
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2)
    _gelu_tanh_and_mul(len(out))(gate_up.numpy(), out.numpy())
    return out


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """The first `heads` heads of x [M, H, head_dim], their first components turned by angles [M, 1, rotary_dim / 2].

    Returns:
        [M, heads, head_dim].
    """
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


@compiled(finite=True)
def tanh32(x: np.float32) -> np.float32:
    """tanh(x) within a few units in the last place, in steps that LLVM vectorises; NaN is not kept.

    A polynomial near zero, where 1 - 2 / (exp(2 |x|) + 1) would cancel. Source: Cephes tanhf.
    """
    square = x * x
    p = np.float32(-5.70498872745e-3)
    p = p * square + np.float32(2.06390887954e-2)
    p = p * square - np.float32(5.37397155531e-2)
    p = p * square + np.float32(1.33314422036e-1)
    p = p * square - np.float32(3.33332819422e-1)
    near = p * square * x + x
    far = np.float32(1) - np.float32(2) / (exp32(np.float32(2) * abs(x)) + np.float32(1))
    return np.float32(near if abs(x) < np.float32(0.625) else np.copysign(far, x))


@_by_rows
def _rms_norm(x: Float32Array, weight: Float32Array, eps: np.float32, offset: np.float32, out: Float32Array) -> None:
    size = len(weight)
    for m in numba.prange(len(x)):
        scale = np.float32(1) / np.sqrt(dot(x[m], x[m]) / np.float32(size) + eps)
        for k in range(size):
            out[m, k] = x[m, k] * scale * (offset + weight[k])


@_by_rows
def _norm_heads(
    x: Float32Array, heads: int, weight: Float32Array, eps: np.float32, offset: np.float32, out: Float32Array
) -> None:
    size = out.shape[2]
    for m in numba.prange(len(out)):
        for h in range(out.shape[1]):
            row = 0 if h < heads else 1
            scale = np.float32(1) / np.sqrt(dot(x[m, h], x[m, h]) / np.float32(size) + eps)
            for k in range(size):
                out[m, h, k] = x[m, h, k] * scale * (offset + weight[row, k])


@_by_rows
def _silu_and_mul(gate_up: Float32Array, out: Float32Array) -> None:
    size = out.shape[1]
    for m in numba.prange(len(out)):
        for k in range(size):
            gate = gate_up[m, k]
            out[m, k] = gate / (np.float32(1) + exp32(-gate)) * gate_up[m, size + k]


@_by_rows
def _gelu_tanh_and_mul(gate_up: Float32Array, out: Float32Array) -> None:
    """(1 + tanh(z)) / 2 is 1 / (1 + exp(-2 z)), and z = sqrt(2 / pi) * (gate + 0.044715 gate ** 3)."""
    size = out.shape[1]
    for m in numba.prange(len(out)):
        for k in range(size):
            gate = gate_up[m, k]
            near = min(max(gate, np.float32(-30)), np.float32(30))  # whose cube does not overflow
            twice_z = near * (np.float32(1.5957691216) + np.float32(0.0713548163) * near * near)
            out[m, k] = gate / (np.float32(1) + exp32(-twice_z)) * gate_up[m, size + k]


@_by_rows
def _rotate(x: Float32Array, cos: Float32Array, sin: Float32Array, out: Float32Array) -> None:
    half = cos.shape[2]
    for m in numba.prange(len(out)):
        for h in range(out.shape[1]):
            for i in range(half):
                first, second = x[m, h, i], x[m, h, half + i]
                out[m, h, i] = first * cos[m, 0, i] - second * sin[m, 0, i]
                out[m, h, half + i] = second * cos[m, 0, i] + first * sin[m, 0, i]
            for i in range(2 * half, out.shape[2]):
                out[m, h, i] = x[m, h, i]
