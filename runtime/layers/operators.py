"""The operators that layers are made of, in the implementation that suits where they run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from .placement import Placement


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, /) -> Tensor:
        """x [T, in] @ weight [out, in].T + bias [out] -> [T, out]."""


class RMSNormalise(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, /) -> Tensor:
        """x [T, size] / sqrt(mean(x ** 2) + eps) * weight [size]."""


class SiluAndMul(Protocol):
    def __call__(self, gate_up: Tensor, /) -> Tensor:
        """silu(gate) * up of gate_up [T, 2 * size], both halves side by side -> [T, size]."""


class Rotate(Protocol):
    def __call__(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor, /) -> Tensor:
        """Turn the first `heads` heads of x [T, H, head_dim] by angles [T, 1, head_dim / 2]."""


class UseThread(Protocol):
    def __call__(self) -> None:
        """Prepare the calling thread to run the operators; called before every step."""


@dataclass(frozen=True, slots=True)
class Operators:
    """One implementation of every operator. Inputs are contiguous, on one device and of one dtype."""

    linear: Linear
    rms_norm: RMSNormalise
    silu_and_mul: SiluAndMul
    rotate: Rotate
    use_thread: UseThread


def operators_for(placement: Placement) -> Operators:
    """The quickest operators for a device and dtype."""
    return _cpu_float32() if placement.device.type == "cpu" and placement.dtype == torch.float32 else TORCH


def _rms_norm(x: Tensor, weight: Tensor, eps: float, /) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def _silu_and_mul(gate_up: Tensor, /) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor, /) -> Tensor:
    first, second = x[:, :heads].chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _no_preparation() -> None:
    """torch needs none."""


TORCH = Operators(functional.linear, _rms_norm, _silu_and_mul, _rotate, _no_preparation)


@functools.cache
def _cpu_float32() -> Operators:
    from palmette.runtime import cpu_kernels

    return Operators(
        cpu_kernels.linear,
        cpu_kernels.rms_norm,
        cpu_kernels.silu_and_mul,
        cpu_kernels.rotate,
        cpu_kernels.use_torch_threads,
    )
