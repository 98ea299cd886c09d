"""Time of a decode step of Llama-3.1-8B but for attention and sampling: how well do kernels follow one another?

python benchmarks/kernels.py --only step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from palmette.runtime.kernels.activation import silu_and_mul
from palmette.runtime.kernels.linear import linear
from palmette.runtime.kernels.rms_norm import add_rms_norm, rms_norm
from palmette.runtime.kernels.rotary import rotate_and_write

from .kernel_timing import Ceilings, Measured, graph_seconds, random_copies
from .linear_candidates import LAYERS_8B, SHAPES_8B

_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
_LAYERS_HELD = 4
"""Layers whose weights are in memory, used in turn: 1.7 GB, far more than the L2 cache holds."""

_Product = Callable[[Tensor, Tensor], Tensor]


class _Step:
    """Random weights, and a step of so many rows through them."""

    def __init__(self) -> None:
        self.layers = [
            {name: random_copies(1, *shape, scale=0.02)[0] for name, shape in SHAPES_8B.items() if name != "lm_head"}
            for _ in range(_LAYERS_HELD)
        ]
        self.head = random_copies(1, *SHAPES_8B["lm_head"], scale=0.02)[0]
        self.norm = torch.ones(self.head.shape[1], dtype=torch.bfloat16, device="cuda")

    @property
    def numbers(self) -> int:
        """Weights that a step reads."""
        return LAYERS_8B * sum(w.numel() for w in self.layers[0].values()) + self.head.numel()

    def call(self, rows: int, product: _Product) -> Callable[[int], Tensor]:
        start = random_copies(1, rows, self.head.shape[1])[0]
        cos, sin = random_copies(2, rows, 1, _HEAD_DIM // 2)
        keys, values = random_copies(2, rows + 16, _KV_HEADS, _HEAD_DIM)
        places = torch.arange(rows, dtype=torch.int32, device="cuda")

        def layer(weights: dict[str, Tensor], x: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
            qkv = product(normal, weights["qkv"]).view(rows, -1, _HEAD_DIM)
            query = rotate_and_write(qkv, _HEADS, _KV_HEADS, cos, sin, keys, values, places)
            x, normal = add_rms_norm(x, product(query.view(rows, -1), weights["o"]), self.norm, 1e-5)
            inner = silu_and_mul(product(normal, weights["gate_up"]))
            return add_rms_norm(x, product(inner, weights["down"]), self.norm, 1e-5)

        def step(_: int) -> Tensor:
            x = start.clone()
            normal = rms_norm(x, self.norm, 1e-5)
            for i in range(LAYERS_8B):
                x, normal = layer(self.layers[i % _LAYERS_HELD], x, normal)
            return product(normal, self.head)

        return step


def measure(_: Ceilings) -> Iterator[Measured]:
    """With our products, and with cuBLAS's."""
    step = _Step()
    for rows in (1, 8, 64, 128):
        ours, cublas = (
            graph_seconds(step.call(rows, product), launches=1, replays=9) for product in (linear, functional.linear)
        )
        moved, flops = 2.0 * step.numbers, 2.0 * rows * step.numbers
        yield Measured("step but attention", f"{rows} rows", ours, moved, flops, {"with cuBLAS": cublas})
