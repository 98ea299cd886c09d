"""Where a model goes: the device and dtype that settings ask for."""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from .config import EngineConfig, Sizes
from .errors import ModelLoadError, RequestError
from .layers.placement import Alone, Collective, Placement
from .models import ModelConfig
from .weights import Checkpoint

_DEVICES = ("cpu", "cuda")
_DRIVER = Path("/proc/driver/nvidia/version")

_log = logging.getLogger(__name__)


def place(
    checkpoint: ModelConfig | Checkpoint,
    settings: EngineConfig,
    *,
    rank: int = 0,
    world: int = 1,
    collective: Collective | None = None,
) -> Placement:
    """The placement that `settings` ask for.

    Raises:
        RequestError: the device does not exist.
        ModelLoadError: the checkpoint's own dtype is asked for and is not a float type that is known.
    """
    device = _device(settings.device)
    name: str = settings.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else checkpoint.dtype
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ModelLoadError(f"dtype={name!r} in config.json is not supported; give dtype='bfloat16' or 'float32'")
    return Placement(rank, world, collective or Alone(), dtype, device)


def _device(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and _driver_is_there():
            _log.warning("computing on the CPU: %s; or say device='cpu'", _why_no_gpu())
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"device={name!r} is not a device; known: cpu, cuda, cuda:0, ...") from None
    if device.type not in _DEVICES:
        raise RequestError(f"device={name!r} is not supported; known: {', '.join(_DEVICES)}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        found = f"{count} CUDA devices were found" if count else _why_no_gpu()
        raise RequestError(f"device={name!r} is not there: {found}")
    if device.type == "cuda" and device.index is None:  # another thread may have another current device
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _driver_is_there() -> bool:
    """Whether the machine is set up for an NVIDIA GPU."""
    return _DRIVER.exists() or shutil.which("nvidia-smi") is not None


def _why_no_gpu() -> str:
    """Why PyTorch finds none, and what to do."""
    if torch.version.cuda is None:
        return (
            f"this PyTorch, {torch.__version__}, is not built for CUDA, so that it cannot use an NVIDIA GPU; install "
            "one that is, see https://pytorch.org/get-started/locally"
        )
    return (
        f"this PyTorch, {torch.__version__}, found no CUDA device: look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and at "
        f"whether the driver is new enough for CUDA {torch.version.cuda}"
    )


def sizes_on(device: torch.device, settings: EngineConfig) -> Sizes:
    """The sizes that `settings` give on a device."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    return settings.sizes_for(device.type, total)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Where a GPU is the thread's current device: Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
