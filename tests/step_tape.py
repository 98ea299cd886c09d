"""Recorded steps without a GPU: torch's operations are written down, and done again over the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from palmette.runtime.attention import AttentionPlan, PlannedAttention
from palmette.runtime.attention.torch_native import TorchNativeAttention
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.operators import TORCH
from palmette.runtime.layers.rotary import Angles
from palmette.runtime.step_recorder import Replay


class TapeRecorder:
    """A `StepRecorder` for torch's own operations on a CPU.

    Attributes:
        begun: how many stretches were begun.
        fails_at: the number of the stretch whose first operation fails.
    """

    def __init__(self, fails_at: int | None = None) -> None:
        self.begun = 0
        self.fails_at = fails_at
        self._tape: _Tape | None = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        assert self._tape is None
        try:
            yield
        finally:
            if self._tape is not None:
                self.end()

    def begin(self) -> None:
        assert self._tape is None, "one stretch at a time"
        self.begun += 1
        self._tape = _Tape(fails=self.begun == self.fails_at)
        self._tape.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def end(self) -> Replay:
        assert self._tape is not None
        tape, self._tape = self._tape, None
        tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above
        return tape.replay

    def lent(self, tensor: Tensor) -> Tensor:
        return tensor


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    def __init__(self, *, fails: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._fails = fails
        self._done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._fails:
            raise torch.OutOfMemoryError("no memory for the recording")
        out = func(*args, **(kwargs or {}))
        self._done.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self._done:
            given = {_address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _address(old) not in given:  # neither a view nor written in place
                    old.copy_(new)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class TapedAttention:
    """torch's attention, whose decodes can be recorded.

    Attributes:
        asked: what `decode_graph` was asked for.
    """

    def __init__(self, storage: KVStorage, most_rows: int = 1024) -> None:
        self._most_rows = most_rows
        self._usual = TorchNativeAttention(storage)
        self._storage = storage
        self.asked: list[tuple[int, int]] = []

    def plan(self, batch: AttentionPlan) -> None:
        self._usual.plan(batch)

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        return self._usual.run(qkv, layer, angles)

    def decode_graph(self, rows: int, context_length: int) -> PlannedAttention | None:
        self.asked.append((rows, context_length))
        if rows > self._most_rows:
            raise torch.OutOfMemoryError("no memory for the rows")
        return FixedDecodes(self._storage, rows, context_length)


class FixedDecodes:
    """Decodes of so many rows over tensors that are made once."""

    def __init__(self, storage: KVStorage, rows: int, context_length: int) -> None:
        self._storage = storage
        self._written = torch.zeros(rows, dtype=torch.int64)
        self._read = torch.zeros((rows, context_length), dtype=torch.int64)
        self._lens = torch.ones((rows, 1), dtype=torch.int64)

    def plan(self, batch: AttentionPlan) -> None:
        assert batch.num_decodes == len(batch.seq_lens) == len(self._lens)
        size = self._storage.page_size
        self._written.copy_(torch.from_numpy(batch.kv_slots))
        self._lens.copy_(torch.from_numpy(batch.seq_lens)[:, None])
        for row, length in enumerate(batch.seq_lens.tolist()):
            pages = batch.page_ids[batch.page_indptr[row] : batch.page_indptr[row + 1]]
            slots = (pages[:, None] * size + np.arange(size)).ravel()[:length]
            assert len(slots) == length
            self._read[row, :length] = torch.from_numpy(slots)

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        assert angles is not None
        turned, v = TORCH.rotate(qkv, heads + kv_heads, *angles), qkv[:, heads + kv_heads :]
        q, k = turned[:, :heads], turned[:, heads:]
        self._storage.write(layer.layer_id, self._written, k, v)
        keys, values = self._storage.keys[layer.layer_id][self._read], self._storage.values[layer.layer_id][self._read]
        grouped = q.reshape(len(q), kv_heads, -1, layer.head_dim)
        scores = torch.einsum("rghd,rcgd->rghc", grouped, keys) * layer.scale
        seen = torch.arange(self._read.shape[1]) < self._lens
        weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1)
        values = torch.where(seen[:, :, None, None], values, torch.zeros_like(values))  # what was never written
        return torch.einsum("rghc,rcgd->rghd", weights, values).flatten(1, 2)
