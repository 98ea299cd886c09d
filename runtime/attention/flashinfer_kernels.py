"""FlashInfer's kernels of paged attention: whether they can serve, and how they are compiled."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from palmette.runtime.layers.attention import RadixAttention

from .base import KernelCompilationError

Family = Literal["fa2", "fa3"]

HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)
_VERSIONS = ((0, 6, 12), (0, 6, 16))
"""Of FlashInfer: the first whose functions below the wrappers take what is passed here, and the first that do not (in
0.6.16 `plan` has one argument more). The extra `gpu` in pyproject.toml names the same."""

_NO_POSITIONS = 0  # FlashInfer's PosEncodingMode.NONE

_log = logging.getLogger(__name__)


def missing(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashInfer cannot serve, and what to do; None where it can."""
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, not {device}"
    version = _version()
    if version is None:
        return "FlashInfer is not installed: pip install 'palmette[gpu]'"
    first, beyond = _VERSIONS
    if not first <= tuple(map(int, re.findall(r"\d+", version)[:3])) < beyond:
        known = f"{'.'.join(map(str, first))} or later, before {'.'.join(map(str, beyond))}"
        return f"it needs FlashInfer {known}, not {version}: pip install 'palmette[gpu]'"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 at least"
    if dtype not in _DTYPES:
        return f"it computes in bfloat16 or float16, not in {str(dtype).removeprefix('torch.')}"
    if head_dim not in HEAD_DIMS:
        return f"it has no kernels for heads of {head_dim}, only of {', '.join(map(str, HEAD_DIMS))}"
    if not _has_compiler():
        return "its kernels are compiled by nvcc, which was not found: install the CUDA toolkit, or set CUDA_HOME"
    return None


def _version() -> str | None:
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_compiler() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = any(home and (Path(home) / "bin" / "nvcc").exists() for home in homes)
    return found or shutil.which("nvcc") is not None or importlib.util.find_spec("flashinfer_jit_cache") is not None


def _find_ninja() -> None:
    """FlashInfer starts ninja by its name. It came with FlashInfer, beside this Python, which may be on no path."""
    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and (beside / "ninja").exists():
        os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), str(beside)))


@functools.cache
def kernels(family: Family, dtype: torch.dtype, head_dim: int, has_window: bool, has_cap: bool) -> Any:
    """FlashInfer's module of one way to compute attention: compiled once a machine, which takes up to a minute.

    Raises:
        KernelCompilationError: FlashInfer cannot be imported, or its kernels cannot be compiled or loaded.
    """
    _log.info("compiling attention kernels, once a machine: FlashInfer %s, heads of %d", family, head_dim)
    arguments = (dtype, dtype, dtype, torch.int32, head_dim, head_dim, _NO_POSITIONS, has_window, has_cap, False)
    _find_ninja()
    try:
        from flashinfer.prefill import get_batch_prefill_module

        return get_batch_prefill_module(family, *arguments)
    except Exception as error:  # of any kind: ninja or a header may be missing, the compiler too old
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise KernelCompilationError(f"FlashInfer's kernels could not be compiled: {reason}") from error


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan depends on beside the rows."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None
    has_cap: bool

    @classmethod
    def of(cls, layer: RadixAttention, dtype: torch.dtype) -> Kind:
        return cls(
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            dtype,
            layer.sliding_window,
            layer.softcap is not None,
        )

    @property
    def window_left(self) -> int:
        """Tokens before a query's own that it sees; -1: all."""
        return -1 if self.window is None else self.window - 1

    def kernels(self, family: Family) -> Any:
        return kernels(family, self.dtype, self.head_dim, self.window is not None, self.has_cap)
