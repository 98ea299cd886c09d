"""The most that attention takes on a GPU beside the KV pool and a step's own tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from palmette.runtime import kernels
from palmette.runtime.kernels.launch_sizes import multiprocessors
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement

from .flashinfer_kernels import Kind, missing
from .flashinfer_planner import MOST_RECORDED_BYTES, float_bytes, integer_bytes


def workspace_bytes(
    name: str | None, layers: Sequence[RadixAttention], placement: Placement, rows: int, recorded: Sequence[int]
) -> int:
    """Memory for parts of split contexts and for plans, of the backend `name` or, where that is None, of any.

    Not that of `torch_native`, the reference, which gathers keys and values anew for each layer.

    Args:
        rows: most rows of one token in a step.
        recorded: numbers of rows of the decode steps that are recorded.
    """
    if name == "torch_native" or not layers or not kernels.serve(placement.device):
        return 0
    own = max(_own_bytes(layer, placement.device, rows) for layer in layers)
    kinds = {Kind.of(layer, placement.dtype) for layer in layers}
    if name == "triton" or all(missing(placement.device, kind.dtype, kind.head_dim) for kind in kinds):
        return own
    return max(own, _flashinfer_bytes(kinds, placement.device, recorded))


def _own_bytes(layer: RadixAttention, device: torch.device, rows: int) -> int:
    """Of Palmette's kernels, a layer's: outputs and sums of exponentials of all items, in float32."""
    from palmette.runtime.kernels.decode_attention import most_splits

    items = rows + most_splits(layer.num_kv_heads, multiprocessors(device))
    return items * layer.num_heads * (layer.head_dim + 1) * torch.float32.itemsize


def _flashinfer_bytes(kinds: set[Kind], device: torch.device, recorded: Sequence[int]) -> int:
    """What is kept for launched steps, and beside it for recorded ones."""
    count = multiprocessors(device)
    floats = max(float_bytes(kind, count) for kind in kinds)
    kept = [float_bytes(kind, count, rows) for kind in kinds for rows in recorded]
    floats += max((size for size in kept if size <= MOST_RECORDED_BYTES), default=0)
    plans = 2 * integer_bytes(count) + sum(integer_bytes(count, rows) for rows in recorded)
    return floats + len(kinds) * plans
