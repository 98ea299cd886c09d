"""Numbers from the host to the device that computes, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A tensor of the array's numbers on `device`.

    A GPU takes the copy from page-locked memory in its own time; a copy from ordinary memory would make the host wait
    until the GPU has done all that was asked of it before. On the CPU the tensor may share the array's memory.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
