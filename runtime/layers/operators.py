"""The operators that layers are made of, in the implementation that suits where they run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from palmette.runtime import kernels

from .placement import Placement


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, /) -> Tensor:
        """x [T, in] @ weight [out, in].T + bias [out] -> [T, out]."""


class RMSNormalise(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, /) -> Tensor:
        """x [T, size] / sqrt(mean(x ** 2) + eps) * (offset + weight [size])."""


class AddRMSNormalise(Protocol):
    def __call__(
        self, x: Tensor, update: Tensor, weight: Tensor, eps: float, offset: float = 0.0, scale: float = 1.0, /
    ) -> tuple[Tensor, Tensor]:
        """The sum x + scale * update of [T, size] each, and its `rms_norm`; may overwrite x and update."""


class NormHeads(Protocol):
    def __call__(
        self, x: Tensor, heads: int, kv_heads: int, weight: Tensor, eps: float, offset: float = 0.0, /
    ) -> Tensor:
        """x [T, H, head_dim] with each of its first heads normalised.

        The first row of weight [2, head_dim] is for `heads` of them, the second for `kv_heads`; the rest stay. May
        overwrite x.
        """


class GateAndMul(Protocol):
    def __call__(self, gate_up: Tensor, /) -> Tensor:
        """f(gate) * up of gate_up [T, 2 * size], both halves side by side -> [T, size]."""


class Rotate(Protocol):
    def __call__(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor, /) -> Tensor:
        """Turn the first `heads` heads of x [T, H, head_dim] by angles [T, 1, rotary_dim / 2].

        Components after the first rotary_dim stay as they are.
        """


class RotaryAngles(Protocol):
    def __call__(
        self, positions: Tensor, inverse_frequencies: Tensor, factor: float, dtype: torch.dtype, /
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [T] times inverse_frequencies [rotary_dim / 2], both times `factor`.

        Each is [T, 1, rotary_dim / 2] of `dtype`, computed in float32.
        """


class UseThread(Protocol):
    def __call__(self) -> None:
        """Prepare the calling thread to run the operators; called before every step."""


@dataclass(frozen=True, slots=True)
class Operators:
    """One implementation of every operator. Inputs are contiguous, on one device and of one dtype."""

    linear: Linear
    rms_norm: RMSNormalise
    add_rms_norm: AddRMSNormalise
    norm_heads: NormHeads
    silu_and_mul: GateAndMul
    gelu_tanh_and_mul: GateAndMul
    rotate: Rotate
    rotary_angles: RotaryAngles
    use_thread: UseThread


def operators_for(placement: Placement) -> Operators:
    """The quickest operators for a device and dtype."""
    device, dtype = placement.device, placement.dtype
    if device.type == "cpu" and dtype == torch.float32:
        return _cpu_float32()
    if dtype in _TRITON_DTYPES and kernels.serve(device):
        return _triton()
    return TORCH


def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, /) -> Tensor:
    if not offset:
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x.float(), weight.shape, weight.float() + offset, eps).to(x.dtype)


def _add_then(rms_norm: RMSNormalise) -> AddRMSNormalise:
    def add_rms_norm(
        x: Tensor, update: Tensor, weight: Tensor, eps: float, offset: float = 0.0, scale: float = 1.0, /
    ) -> tuple[Tensor, Tensor]:
        total = torch.add(x, update, alpha=scale)
        return total, rms_norm(total, weight, eps, offset)

    return add_rms_norm


def _norm_heads(x: Tensor, heads: int, kv_heads: int, weight: Tensor, eps: float, offset: float = 0.0, /) -> Tensor:
    normal = functional.rms_norm(x[:, : heads + kv_heads].float(), x.shape[2:], eps=eps)
    query, key = (weight.float() + offset).unbind(0)
    scaled = torch.cat((normal[:, :heads] * query, normal[:, heads:] * key), dim=1)
    return torch.cat((scaled.to(x.dtype), x[:, heads + kv_heads :]), dim=1)


def _silu_and_mul(gate_up: Tensor, /) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _gelu_tanh_and_mul(gate_up: Tensor, /) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def _rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor, /) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x[:, :heads].tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _rotary_angles(
    positions: Tensor, inverse_frequencies: Tensor, factor: float, dtype: torch.dtype, /
) -> tuple[Tensor, Tensor]:
    angles = positions.float()[:, None, None] * inverse_frequencies
    cos, sin = angles.cos(), angles.sin()
    if factor != 1:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def _no_preparation() -> None:
    """Only the CPU's kernels have threads of their own."""


TORCH = Operators(
    functional.linear,
    _rms_norm,
    _add_then(_rms_norm),
    _norm_heads,
    _silu_and_mul,
    _gelu_tanh_and_mul,
    _rotate,
    _rotary_angles,
    _no_preparation,
)


@functools.cache
def _cpu_float32() -> Operators:
    from palmette.runtime import cpu_kernels

    return Operators(
        cpu_kernels.linear,
        cpu_kernels.rms_norm,
        _add_then(cpu_kernels.rms_norm),
        cpu_kernels.norm_heads,
        cpu_kernels.silu_and_mul,
        cpu_kernels.gelu_tanh_and_mul,
        cpu_kernels.rotate,
        _rotary_angles,
        cpu_kernels.use_torch_threads,
    )


_TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def _triton() -> Operators:
    from palmette.runtime.kernels import activation, linear, rms_norm, rotary

    return Operators(
        linear.linear,
        rms_norm.rms_norm,
        rms_norm.add_rms_norm,
        rms_norm.norm_heads,
        activation.silu_and_mul,
        activation.gelu_tanh_and_mul,
        _rotate,  # for torch's attention alone: other backends turn as they write, by `rotary.rotate_and_write`
        rotary.rotary_angles,
        _no_preparation,
    )
