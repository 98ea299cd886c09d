"""Programmatic dependent launch: a kernel comes up while the one ahead of it in the stream still runs.

A kernel launched so may do before `gdc_wait` only what depends on no kernel ahead of it. All of them wait, so that what
ran before the kernel ahead has ended too. A kernel that calls `gdc_launch_dependents` lets the next one come up once
all its own programs run; to one that is launched in the ordinary way it makes no difference.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def supported(device: torch.device) -> bool:
    """Whether the device can: NVIDIA's from compute capability 9.0."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
