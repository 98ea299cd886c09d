"""Attention backends by name."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from palmette.runtime.errors import RequestError

from .base import AttentionBackend, AttentionPlan, CompiledAttention

if TYPE_CHECKING:
    from palmette.runtime.kv_storage import KVStorage

__all__ = ["ATTENTION_BACKENDS", "AttentionBackend", "AttentionPlan", "CompiledAttention", "attention_backend"]

ATTENTION_BACKENDS = ("flashinfer", "triton", "torch_native", "cpu")
"""Names that `attention_backend` knows."""

_log = logging.getLogger(__name__)


def attention_backend(name: str | None, storage: KVStorage) -> AttentionBackend:
    """The backend of this name over `storage`; None picks the quickest that can read it.

    Raises:
        RequestError: there is none of this name (lists those there are), or it cannot read this storage.
    """
    from .torch_native import TorchNativeAttention

    on_gpu = storage.device.type == "cuda"
    match name:
        case "torch_native":
            return TorchNativeAttention(storage)
        case "flashinfer":
            return _flashinfer_attention(name, storage)
        case None if on_gpu:
            return _flashinfer_attention(name, storage)
        case "triton":
            return _triton_attention(storage)
        case "cpu" | None:
            return _cpu_attention(name, storage)
        case _:
            raise RequestError(f"attention_backend must be one of {', '.join(ATTENTION_BACKENDS)}, not {name!r}")


def _flashinfer_attention(name: str | None, storage: KVStorage) -> AttentionBackend:
    from .flashinfer_kernels import missing

    keys = storage.keys[0]
    reason = missing(storage.device, keys.dtype, keys.shape[-1])
    if reason is None:
        from .flashinfer import FlashInferAttention

        return FlashInferAttention(storage)
    if name is not None:
        raise RequestError(f"attention_backend='flashinfer' cannot be used: {reason}; or leave attention_backend out")
    _log.info("attention runs on Palmette's own kernels instead of FlashInfer's: %s", reason)
    return _triton_attention(storage)


def _triton_attention(storage: KVStorage) -> AttentionBackend:
    if storage.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RequestError("attention_backend='triton' needs a GPU; leave it out, or set TRITON_INTERPRET=1 to debug")
    from .triton import TritonAttention

    return TritonAttention(storage)


def _cpu_attention(name: str | None, storage: KVStorage) -> AttentionBackend:
    from .torch_native import TorchNativeAttention

    if storage.device.type == "cpu":  # importing the CPU's kernels takes a moment
        from .cpu import CPUAttention, supports

        if supports(storage):
            return CPUAttention(storage)
    if name == "cpu":
        raise RequestError("attention_backend='cpu' needs float32 on a CPU and a head_dim that is a multiple of 8")
    return TorchNativeAttention(storage)
