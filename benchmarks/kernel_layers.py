"""Times of the small kernels between products, at the shapes of Llama-3.1-8B, beside torch's.

python benchmarks/kernels.py --only layers
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from palmette.runtime.kernels.activation import silu_and_mul
from palmette.runtime.kernels.rms_norm import add_rms_norm, rms_norm
from palmette.runtime.kernels.rotary import rotate_and_write
from palmette.runtime.layers.operators import TORCH

from .kernel_timing import Ceilings, Measured, copies_beyond_cache, graph_seconds, random_copies

_HIDDEN, _MLP, _HEADS, _KV_HEADS, _HEAD_DIM = 4096, 14336, 32, 8, 128
_ROWS = (1, 64, 8192)
_BYTES = 2
"""Of a bfloat16 number."""


def measure(_: Ceilings) -> Iterator[Measured]:
    """Every kernel at a step of one row, of 64, and of a prefill of 8192 tokens."""
    for kernel in (_rms_norm, _add_rms_norm, _silu_and_mul, _rotate_and_write):
        for rows in _ROWS:
            yield kernel(rows)


def _rms_norm(rows: int) -> Measured:
    moved = _BYTES * 2.0 * rows * _HIDDEN
    inputs, weight = random_copies(copies_beyond_cache(moved, most=32), rows, _HIDDEN), random_copies(1, _HIDDEN)[0]
    ours = graph_seconds(lambda i: rms_norm(inputs[i % len(inputs)], weight, 1e-5))
    torch_s = graph_seconds(lambda i: TORCH.rms_norm(inputs[i % len(inputs)], weight, 1e-5))
    return Measured("rms_norm", f"{rows} x {_HIDDEN}", ours, moved, peers={"torch": torch_s})


def _add_rms_norm(rows: int) -> Measured:
    moved = _BYTES * 4.0 * rows * _HIDDEN
    count = copies_beyond_cache(moved, most=32)
    x, updates = random_copies(count, rows, _HIDDEN), random_copies(count, rows, _HIDDEN)
    weight = random_copies(1, _HIDDEN)[0]
    ours = graph_seconds(lambda i: add_rms_norm(x[i % count], updates[i % count], weight, 1e-5))
    torch_s = graph_seconds(lambda i: TORCH.rms_norm(x[i % count] + updates[i % count], weight, 1e-5))
    return Measured("add_rms_norm", f"{rows} x {_HIDDEN}", ours, moved, peers={"torch": torch_s})


def _silu_and_mul(rows: int) -> Measured:
    moved = _BYTES * 3.0 * rows * _MLP
    inputs = random_copies(copies_beyond_cache(moved, most=32), rows, 2 * _MLP)
    ours = graph_seconds(lambda i: silu_and_mul(inputs[i % len(inputs)]))
    torch_s = graph_seconds(lambda i: TORCH.silu_and_mul(inputs[i % len(inputs)]))
    return Measured("silu_and_mul", f"{rows} x {_MLP}", ours, moved, peers={"torch": torch_s})


def _rotate_and_write(rows: int) -> Measured:
    heads = _HEADS + 2 * _KV_HEADS
    moved = _BYTES * 2.0 * rows * heads * _HEAD_DIM
    inputs = random_copies(copies_beyond_cache(moved, most=32), rows, heads, _HEAD_DIM)
    cos, sin = random_copies(2, rows, 1, _HEAD_DIM // 2)
    slots = 2 * rows + 64
    keys, values = random_copies(2, slots, _KV_HEADS, _HEAD_DIM)
    places = torch.randperm(slots, device="cuda")[:rows].int()
    ours = graph_seconds(
        lambda i: rotate_and_write(inputs[i % len(inputs)], _HEADS, _KV_HEADS, cos, sin, keys, values, places)
    )
    long_places = places.long()

    def through_torch(i: int) -> torch.Tensor:
        qkv = inputs[i % len(inputs)]
        turned, value = TORCH.rotate(qkv, _HEADS + _KV_HEADS, cos, sin), qkv[:, _HEADS + _KV_HEADS :]
        query, key = turned[:, :_HEADS], turned[:, _HEADS:]
        keys.index_copy_(0, long_places, key)
        values.index_copy_(0, long_places, value)
        return query.contiguous()

    torch_s = graph_seconds(through_torch)
    shape = f"{rows} x {_HEADS}/{_KV_HEADS} x {_HEAD_DIM}"
    return Measured("rotate_and_write", shape, ours, moved, peers={"torch": torch_s})
