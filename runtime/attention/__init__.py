"""Attention backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palmette.runtime.errors import RequestError

from .base import AttentionBackend, AttentionPlan

if TYPE_CHECKING:
    from palmette.runtime.kv_storage import KVStorage

__all__ = ["ATTENTION_BACKENDS", "AttentionBackend", "AttentionPlan", "attention_backend"]

ATTENTION_BACKENDS = ("torch_native", "cpu")
"""Names that `attention_backend` knows."""


def attention_backend(name: str | None, storage: KVStorage) -> AttentionBackend:
    """The backend of this name over `storage`; None picks the quickest that can read it.

    Raises:
        RequestError: there is none of this name (lists those there are), or it cannot read this storage.
    """
    from .torch_native import TorchNativeAttention

    match name:
        case "torch_native":
            return TorchNativeAttention(storage)
        case "cpu" | None:
            return _cpu_attention(name, storage)
        case _:
            raise RequestError(f"attention_backend must be one of {', '.join(ATTENTION_BACKENDS)}, not {name!r}")


def _cpu_attention(name: str | None, storage: KVStorage) -> AttentionBackend:
    from .torch_native import TorchNativeAttention

    if storage.device.type == "cpu":  # importing the CPU's kernels takes a moment
        from .cpu import CPUAttention, supports

        if supports(storage):
            return CPUAttention(storage)
    if name == "cpu":
        raise RequestError("attention_backend='cpu' needs float32 on a CPU and a head_dim that is a multiple of 8")
    return TorchNativeAttention(storage)
