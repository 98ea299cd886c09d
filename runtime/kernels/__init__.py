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
    """Whether the kernels are what a device is best served by: on a GPU, where Triton is there and can compile them."""
    return device.type == "cuda" and problem() is None


@functools.cache
def problem() -> str | None:
    """Why a GPU's kernels cannot be compiled, and what to do, which is also logged; None where they can."""
    found = _problem()
    if found is not None:
        _log.warning("GPUs compute by torch's own operators, slowly: %s", found)
    return found


def _problem() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    import torch

    if not torch.cuda.is_available():
        return None  # where no GPU is, a test asks
    try:
        from . import triton_driver

        triton_driver.start()
    except Exception as error:  # see there
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return (
            "Triton needs a C compiler and the headers of this Python: apt-get install gcc python3-dev, or name the "
            f"compiler in CC ({reason[:200]})"
        )
    return None
