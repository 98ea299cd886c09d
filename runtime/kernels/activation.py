"""The activations of gated MLPs, times the other half, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .dependent_launch import supported
from .launch_sizes import block_count, power_of_two

_BLOCK = 1024


@triton.jit
def _gate_and_mul(gate_up, out, SIZE: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """A program is BLOCK columns of a row. Both activations are gate / (1 + exp(-z)), and in float32."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * (2 * SIZE) + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    z = gate
    if GELU:  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)), and y = sqrt(2 / pi) * (gate + 0.044715 gate ** 3)
        z = gate * (1.5957691216 + 0.0713548163 * gate * gate)
    tl.store(out + row * SIZE + columns, gate / (1.0 + tl.exp(-z)) * up, mask=inside)


def silu_and_mul(gate_up: Tensor, /) -> Tensor:
    """silu(gate) * up of gate_up [T, 2 * size], both halves side by side -> [T, size].

    Contiguous, float32, bfloat16 or float16. Rounded once, from float32, where torch rounds silu(gate) too.
    """
    return _launch(gate_up, gelu=False)


def gelu_tanh_and_mul(gate_up: Tensor, /) -> Tensor:
    """gelu(gate) * up of gate_up [T, 2 * size], with the approximation of gelu by tanh; see `silu_and_mul`.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2.
    """
    return _launch(gate_up, gelu=True)


def _launch(gate_up: Tensor, *, gelu: bool) -> Tensor:
    rows, width = gate_up.shape
    out = gate_up.new_empty(rows, width // 2)
    block = min(_BLOCK, power_of_two(width // 2))
    dependent = supported(gate_up.device)
    _gate_and_mul[(rows * block_count(width // 2, block),)](
        gate_up,
        out,
        SIZE=width // 2,
        GELU=gelu,
        BLOCK=block,
        DEPENDENT=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )
    return out
