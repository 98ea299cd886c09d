"""Times of `linear` at the shapes of Llama-3.1-8B, beside cuBLAS.

python benchmarks/kernels.py --only linear
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice

from torch import Tensor
from torch.nn import functional

from palmette.runtime.kernels.linear import linear

from .kernel_timing import Ceilings, Measured, copies_beyond_cache, graph_seconds, random_copies
from .linear_candidates import LAYERS_8B, SHAPES_8B

_LAYERS_HELD = 4
"""Layers whose weights are in memory, used in turn: 1.7 GB, far more than the L2 cache holds."""

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_Product = Callable[[Tensor, Tensor], Tensor]


def measure(_: Ceilings) -> Iterator[Measured]:
    """Each product by itself, and all of a decode step after one another."""
    for name, shape in SHAPES_8B.items():
        weights = random_copies(copies_beyond_cache(2 * shape[0] * shape[1]), *shape, scale=0.02)
        for rows in (1, 8, 64):
            yield _product(name, weights, rows)
        del weights
    layers = [random_copies(1, *shape, scale=0.02)[0] for _ in range(_LAYERS_HELD) for shape in _layer_shapes()]
    head = random_copies(1, *SHAPES_8B["lm_head"], scale=0.02)[0]
    for rows in _ROWS:
        yield _step(layers, head, rows)


def _layer_shapes() -> list[tuple[int, int]]:
    return [shape for name, shape in SHAPES_8B.items() if name != "lm_head"]


def _product(name: str, weights: list[Tensor], rows: int) -> Measured:
    outputs, inputs = weights[0].shape
    x = random_copies(1, rows, inputs)[0]
    launches = 20 if name != "lm_head" else 6

    def seconds(product: _Product) -> float:
        return graph_seconds(lambda i: product(x, weights[i % len(weights)]), launches=launches)

    ours, cublas = seconds(linear), seconds(functional.linear)
    moved = 2.0 * (outputs * inputs + rows * (inputs + outputs))
    shape = f"{name} {rows} x {inputs} -> {outputs}"
    return Measured("linear", shape, ours, moved, 2.0 * rows * outputs * inputs, {"cuBLAS": cublas})


def _step(layers: list[Tensor], head: Tensor, rows: int) -> Measured:
    """The products of a whole step in one graph, in the order of the model."""
    inputs = {size: random_copies(1, rows, size)[0] for size in {weight.shape[1] for weight in layers}}

    def run(product: _Product) -> None:
        for weight in islice(cycle(layers), LAYERS_8B * len(_layer_shapes())):
            product(inputs[weight.shape[1]], weight)
        product(inputs[head.shape[1]], head)

    def seconds(product: _Product) -> float:
        return graph_seconds(lambda _: run(product), launches=1, replays=9)

    ours, cublas = seconds(linear), seconds(functional.linear)
    weights = LAYERS_8B * sum(n * k for n, k in _layer_shapes()) + head.numel()
    return Measured("linear", f"8B step, {rows} rows", ours, 2.0 * weights, 2.0 * rows * weights, {"cuBLAS": cublas})
