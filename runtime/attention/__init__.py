"""Attention backends by name."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from palmette.runtime import kernels
from palmette.runtime.errors import RequestError

from .base import (
    AttentionBackend,
    AttentionPlan,
    CompiledAttention,
    KernelCompilationError,
    PlannedAttention,
    StepAttention,
)

if TYPE_CHECKING:
    from palmette.runtime.kv_storage import KVStorage
    from palmette.runtime.layers.attention import RadixAttention

__all__ = [
    "ATTENTION_BACKENDS",
    "AttentionBackend",
    "AttentionPlan",
    "CompiledAttention",
    "PlannedAttention",
    "StepAttention",
    "attention_backend",
    "compiled_attention",
]

ATTENTION_BACKENDS = ("flashinfer", "triton", "torch_native", "cpu")
"""Names that `attention_backend` knows."""

_log = logging.getLogger(__name__)


def attention_backend(name: str | None, storage: KVStorage) -> AttentionBackend:
    """The backend of this name over `storage`; None picks the quickest that can read it.

    Raises:
        RequestError: there is none of this name (lists those there are), or it cannot read this storage.
    """
    from .torch_native import TorchNativeAttention

    match name:
        case "torch_native":
            return TorchNativeAttention(storage)
        case "flashinfer":
            return _flashinfer_attention(storage)
        case "triton":
            return _triton_attention(storage)
        case None if storage.device.type == "cuda":
            return _gpu_attention(storage)
        case "cpu" | None:
            return _cpu_attention(name, storage)
        case _:
            raise RequestError(f"attention_backend must be one of {', '.join(ATTENTION_BACKENDS)}, not {name!r}")


def compiled_attention(name: str | None, storage: KVStorage, layers: Sequence[RadixAttention]) -> AttentionBackend:
    """`attention_backend`, compiled for a model's layers, so that no request waits for that.

    Where FlashInfer was picked but cannot be compiled, Palmette's own kernels take its place.

    Raises:
        RequestError: as `attention_backend`, or the backend of this name cannot be compiled.
    """
    backend = attention_backend(name, storage)
    try:
        _compile(backend, layers)
    except KernelCompilationError as error:
        if name is not None:
            raise RequestError(f"attention_backend={name!r} cannot be used: {error}") from error
        _log.warning("attention runs on Palmette's own kernels: %s", error)
        _log.debug("what FlashInfer said", exc_info=error)
        backend = _triton_attention(storage)
        _compile(backend, layers)
    return backend


def _compile(backend: AttentionBackend, layers: Sequence[RadixAttention]) -> None:
    if isinstance(backend, CompiledAttention):
        backend.warm_up(layers)


def _gpu_attention(storage: KVStorage) -> AttentionBackend:
    """FlashInfer's, Palmette's own, or PyTorch's: the first that can."""
    from .torch_native import TorchNativeAttention

    if not kernels.serve(storage.device):
        return TorchNativeAttention(storage)
    reason = _why_not_flashinfer(storage)
    if reason is None:
        return _flashinfer_attention(storage)
    _log.info("attention runs on Palmette's own kernels instead of FlashInfer's: %s", reason)
    return _triton_attention(storage)


def _flashinfer_attention(storage: KVStorage) -> AttentionBackend:
    _check_triton("flashinfer", storage)  # by which keys and values are written
    reason = _why_not_flashinfer(storage)
    if reason is not None:
        raise RequestError(f"attention_backend='flashinfer' cannot be used: {reason}; or leave attention_backend out")
    from .flashinfer import FlashInferAttention

    return FlashInferAttention(storage)


def _why_not_flashinfer(storage: KVStorage) -> str | None:
    from .flashinfer_kernels import missing

    keys = storage.keys[0]
    return missing(storage.device, keys.dtype, keys.shape[-1])


def _triton_attention(storage: KVStorage) -> AttentionBackend:
    _check_triton("triton", storage)
    if storage.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RequestError("attention_backend='triton' needs a GPU; leave it out, or set TRITON_INTERPRET=1 to debug")
    from .triton import TritonAttention

    return TritonAttention(storage)


def _check_triton(name: str, storage: KVStorage) -> None:
    if storage.device.type == "cuda" and not kernels.serve(storage.device):
        raise RequestError(
            f"attention_backend={name!r} needs Triton's kernels: {kernels.problem()}; or leave attention_backend out"
        )


def _cpu_attention(name: str | None, storage: KVStorage) -> AttentionBackend:
    from .torch_native import TorchNativeAttention

    if storage.device.type == "cpu":  # importing the CPU's kernels takes a moment
        from .cpu import CPUAttention, supports

        if supports(storage):
            return CPUAttention(storage)
    if name == "cpu":
        raise RequestError("attention_backend='cpu' needs float32 on a CPU and a head_dim that is a multiple of 8")
    return TorchNativeAttention(storage)
