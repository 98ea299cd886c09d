"""Attention for float32 on a CPU: prefill by torch, decode rows by a kernel that reads the pages where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palmette.runtime.batch import Int32Array
from palmette.runtime.cpu_kernels import decode_attention, supports_head_dim
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention

from .torch_native import DecodeRows, Row, TorchNativeAttention


def supports(storage: KVStorage) -> bool:
    """Whether this backend can read a storage."""
    keys = storage.keys[0]
    return keys.device.type == "cpu" and keys.dtype == torch.float32 and supports_head_dim(keys.shape[-1])


@dataclass(frozen=True, slots=True)
class _InPlaceRows:
    """The slots that each row sees, [D, L] of which the first lengths [D] are real."""

    kv_slots: Int32Array
    lengths: npt.NDArray[np.int64]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, layer: RadixAttention) -> Tensor:
        return decode_attention(q, keys, values, self.kv_slots, self.lengths, scale=layer.scale, softcap=layer.softcap)


class CPUAttention(TorchNativeAttention):
    """See `AttentionBackend`. No key or value is copied for decode rows."""

    def _decode_rows(self, rows: Sequence[Row], window: int | None) -> DecodeRows:
        seen = [row.visible_slots(window) for row in rows]
        lengths = np.array([len(slots) for slots in seen])
        padded = np.zeros((len(rows), lengths.max()), dtype=np.int32)
        for line, slots in zip(padded, seen, strict=True):
            line[: len(slots)] = slots
        return _InPlaceRows(padded, lengths)
