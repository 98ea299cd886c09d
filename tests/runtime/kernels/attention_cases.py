"""Rows over paged keys and values for the attention kernels, and what attention over them is, written out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tests.interpreted_kernels  # noqa: F401  # patches the interpreter
import torch
from torch import Tensor

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """Of a layer and its pages."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    page_size: int = 16
    window: int | None = None
    softcap: float | None = None
    scale: float = 0.3


@dataclass(frozen=True)
class Paged:
    """Rows (tokens before the step, tokens of it): queries [T, heads, head_dim] and everything that they see."""

    q: Tensor
    keys: Tensor
    values: Tensor
    page_ids: Int32Array
    page_indptr: Int32Array
    seq_lens: Int32Array
    query_lens: Int32Array
    contexts: tuple[tuple[Tensor, Tensor], ...]

    @property
    def query_indptr(self) -> Int32Array:
        return np.concatenate(([0], np.cumsum(self.query_lens))).astype(np.int32)


def paged(
    rows: list[tuple[int, int]], shape: Shape, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Paged:
    """Random rows on pages in random order; what no row wrote is NaN."""
    random = np.random.default_rng(len(rows))
    generator = torch.Generator(device).manual_seed(7)
    seq_lens = np.array([before + now for before, now in rows], dtype=np.int32)
    counts = -(-seq_lens // shape.page_size)
    order = random.permutation(int(counts.sum()) + 1).astype(np.int32)
    page_indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    cache = (len(order) * shape.page_size, shape.kv_heads, shape.head_dim)
    keys, values = (torch.full(cache, torch.nan, dtype=dtype, device=device) for _ in range(2))
    contexts = []
    for r, length in enumerate(seq_lens.tolist()):
        position = np.arange(length)
        slots = order[page_indptr[r] + position // shape.page_size] * shape.page_size + position % shape.page_size
        place = torch.from_numpy(slots.astype(np.int64)).to(device)
        k, v = (torch.randn(length, *cache[1:], generator=generator, device=device).to(dtype) for _ in range(2))
        keys[place], values[place] = k, v
        contexts.append((k, v))
    query_lens = np.array([now for _, now in rows], dtype=np.int32)
    q = torch.randn(int(query_lens.sum()), shape.heads, shape.head_dim, generator=generator, device=device).to(dtype)
    page_ids = order[: page_indptr[-1]].copy()
    return Paged(q, keys, values, page_ids, page_indptr, seq_lens, query_lens, tuple(contexts))


def expected(rows: Paged, shape: Shape) -> Tensor:
    """[T, heads, head_dim] in float32."""
    group = shape.heads // shape.kv_heads
    parts = []
    for q, (k, v) in zip(torch.split(rows.q, rows.query_lens.tolist()), rows.contexts, strict=True):
        keys, values = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
        scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * shape.scale
        if shape.softcap is not None:
            scores = shape.softcap * (scores / shape.softcap).tanh()
        key, query = (
            torch.arange(len(k), device=q.device),
            torch.arange(len(k) - len(q), len(k), device=q.device)[:, None],
        )
        seen = key <= query
        if shape.window is not None:
            seen &= key > query - shape.window
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


def on(device: str, *arrays: Int32Array) -> list[Tensor]:
    """The same on a device."""
    return [torch.from_numpy(array).to(device) for array in arrays]
