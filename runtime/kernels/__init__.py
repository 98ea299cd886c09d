"""Triton kernels for GPUs, a module a kind of work; each has a twin in torch that its tests hold it to.

With TRITON_INTERPRET=1, set before the import, they run on a CPU, slowly.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


def serve(device: torch.device) -> bool:
    """Whether the kernels are what a device is best served by: on a GPU, where Triton is there to compile them."""
    return device.type == "cuda" and _is_installed()


@functools.cache
def _is_installed() -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found:
        _log.warning("Triton is not installed: GPUs compute by torch's own operators, slowly; pip install triton")
    return found
