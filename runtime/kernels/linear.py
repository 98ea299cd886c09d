"""Products of a few rows with the weights of a linear layer, at the speed at which memory delivers the weights."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional

from .dependent_launch import supported
from .launch_sizes import block_count
from .linear_gemm import narrow_gemm
from .linear_gemv import gemv
from .linear_tiling import MOST_PARTIALS, MOST_ROWS, MOST_TILES, Tiling, tiling_for

_DTYPES = (torch.bfloat16, torch.float16)

_AHEAD = 256
"""Columns of each row of weights that a dependent kernel asks for before it may read x."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, /) -> Tensor:
    """x [T, in] @ weight [out, in].T + bias [out] -> [T, out], summed in float32.

    bfloat16 or float16, contiguous, on a GPU. Many rows, and whatever the kernels do not take, go to torch. May be part
    of a CUDA graph once a product has run on the device. Weights are read before the kernel just ahead in the stream
    has ended (see `dependent_launch`): it must not be what writes them.

    Raises:
        RuntimeError: the first product on a device would be part of a CUDA graph.
    """
    few = x.dim() == 2 and len(x) <= MOST_ROWS
    if few and x.dtype in _DTYPES and x.dtype == weight.dtype and _suits(x.device):
        tiling = tiling_for(x.shape[0], weight.shape[0], weight.shape[1])
        if tiling is not None and x.is_contiguous() and weight.is_contiguous():
            return multiply(x, weight, bias, tiling)
    return functional.linear(x, weight, bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, tiling: Tiling) -> Tensor:
    """As `linear`, cut as told; x has one row where tiling.block_m is 0, otherwise at most block_m.

    All products of a device share one workspace, for sums over parts of the inputs: they must be in one stream.
    """
    out = x.new_empty(len(x), len(weight))
    launch = _launch_gemv if tiling.block_m == 0 else _launch_gemm
    launch(x, weight, bias, out, tiling)
    return out


def _launch_gemv(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tiling: Tiling) -> None:
    outputs, inputs = weight.shape
    columns = tiling.block_k * tiling.split_k
    gemv[block_count(outputs, tiling.block_n), tiling.split_k](
        x,
        weight,
        bias,
        out,
        *_workspace(x.device),
        outputs,
        inputs,
        EVEN=outputs % tiling.block_n == 0 and inputs % columns == 0,
        STEPS=block_count(inputs, columns),
        **_options(tiling, x.device),
    )


def _launch_gemm(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tiling: Tiling) -> None:
    outputs, inputs = weight.shape
    columns = tiling.block_k * tiling.split_k
    narrow_gemm[block_count(outputs, tiling.block_n), tiling.split_k](
        x,
        weight,
        bias,
        out,
        *_workspace(x.device),
        len(x),
        outputs,
        inputs,
        EVEN_N=outputs % tiling.block_n == 0,
        EVEN_K=inputs % columns == 0,
        STEPS=block_count(inputs, columns),
        **_options(tiling, x.device),
    )


@functools.cache
def _options(tiling: Tiling, device: torch.device) -> dict[str, int | bool]:
    """Arguments that kernels have in common."""
    dependent = tiling.dependent and supported(device)
    launch = {"num_warps": tiling.warps} | ({"launch_pdl": True} if dependent else {})
    block = {"BLOCK_N": tiling.block_n, "BLOCK_K": tiling.block_k, "SPLIT_K": tiling.split_k}
    if tiling.block_m:
        block |= {"BLOCK_M": tiling.block_m, "STAGES": tiling.stages, "AHEAD": _AHEAD}
    return {**block, **launch, "DEPENDENT": dependent}


@functools.cache
def _suits(device: torch.device) -> bool:
    """Whether a multiprocessor has the shared memory that the tilings are made for: NVIDIA's Hopper and B200."""
    return supported(device) and torch.cuda.get_device_capability(device)[0] in (9, 10)


@functools.cache
def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Partial sums, and how many programs of each block of outputs have arrived, which every launch leaves at zero."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("run a step once before it is captured in a CUDA graph: linear's workspace is not there yet")
    partials = torch.empty(MOST_PARTIALS, dtype=torch.float32, device=device)
    return partials, torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
