"""Attention of one query a row, read straight from the KV storage's slots."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .elementwise import exp32, tanh32
from .vectors import LANES, address, compiled, four_scores, weighted_values

Float32Array = npt.NDArray[np.float32]
Kernel = Callable[..., None]

_MOST_HEADS = 3  # times 4 keys, or 4 vectors of values: 12 of 16 registers hold sums


def supports_head_dim(head_dim: int) -> bool:
    """Whether heads of this size divide into whole vectors."""
    return head_dim % LANES == 0


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    *,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """Attend, each row to its own slots.

    Args:
        q: [M, heads, head_dim] float32.
        keys, values: [all slots, kv_heads, head_dim] of a layer.
        slots: [M, L], of which row m sees the first lengths[m] (at least one).
        scale: factor of q . k.
        softcap: scores s become softcap * tanh(s / softcap); None leaves them.

    Returns:
        [M, heads, head_dim].
    """
    rows, heads, head_dim = q.shape
    scaled = q * scale
    out = torch.empty(rows, heads, head_dim)
    at_once, vectors = _heads_at_once(heads // keys.shape[1]), _vectors_at_once(head_dim)
    kernel = _kernel(at_once, head_dim, vectors, softcap is not None)
    kernel(scaled.numpy(), keys.numpy(), values.numpy(), slots, lengths, np.float32(softcap or 0), out.numpy())
    return out


def _heads_at_once(group: int) -> int:
    return max(size for size in range(1, _MOST_HEADS + 1) if group % size == 0)


def _vectors_at_once(head_dim: int) -> int:
    return next(count for count in (4, 2, 1) if head_dim % (count * LANES) == 0)


@functools.cache
def _kernel(at_once: int, head_dim: int, vectors: int, capped: bool) -> Kernel:
    """The kernel for these sizes: loops over heads and vectors are unrolled into registers.

    Tasks go through rows within a key head, so that rows with a common prefix find its keys in the CPU's cache.
    """
    width = vectors * LANES

    @compiled(parallel=True)
    def attend(
        q: Float32Array,
        keys: Float32Array,
        values: Float32Array,
        slots: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        softcap: np.float32,
        out: Float32Array,
    ) -> None:
        rows, heads, _ = q.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        stride = kv_heads * head_dim
        for task in numba.prange(rows * kv_heads):
            kv_head, m = task // rows, task % rows
            length = lengths[m]
            padded = (length + 3) // 4 * 4
            weights = np.empty((at_once, padded), np.float32)
            key = address(keys) + kv_head * head_dim * 4
            value = address(values) + kv_head * head_dim * 4
            for head in range(kv_head * group, kv_head * group + group, at_once):
                offset = (m * heads + head) * head_dim * 4
                for t in range(0, length, 4):
                    four_scores(
                        at_once,
                        head_dim,
                        address(q) + offset,
                        key + np.int64(slots[m, t]) * stride * 4,
                        key + np.int64(slots[m, min(t + 1, length - 1)]) * stride * 4,
                        key + np.int64(slots[m, min(t + 2, length - 1)]) * stride * 4,
                        key + np.int64(slots[m, min(t + 3, length - 1)]) * stride * 4,
                        address(weights) + t * 4,
                        padded,
                    )
                if capped:
                    cap(weights, length, softcap)
                softmax(weights, length)
                line = address(slots) + m * slots.shape[1] * 4
                for i in range(0, head_dim, width):
                    weighted_values(
                        at_once,
                        vectors,
                        line,
                        length,
                        value + i * 4,
                        stride,
                        address(weights),
                        padded,
                        address(out) + offset + i * 4,
                        head_dim,
                    )

    return attend


@compiled()
def cap(scores: Float32Array, length: int, softcap: np.float32) -> None:
    """Replace scores [heads, :length] by softcap * tanh(scores / softcap)."""
    factor = np.float32(1) / softcap
    for h in range(len(scores)):
        for t in range(length):
            scores[h, t] = softcap * tanh32(scores[h, t] * factor)


@compiled()
def softmax(scores: Float32Array, length: int) -> None:
    """Replace scores [heads, :length] by their softmax."""
    for h in range(len(scores)):
        most = scores[h, 0]
        for t in range(length):
            most = max(most, scores[h, t])
        total = np.float32(0)
        for t in range(length):
            scores[h, t] = exp32(scores[h, t] - most)
        for t in range(length):
            total += scores[h, t]
        factor = np.float32(1) / total
        for t in range(length):
            scores[h, t] *= factor
