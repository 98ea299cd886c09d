"""Sizes of launches, worked out for every one: Triton's own functions for them take the host ten times as long."""

from __future__ import annotations

import torch


def power_of_two(number: int) -> int:
    """The smallest that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def block_count(number: int, block: int) -> int:
    """Blocks of this size that hold so many."""
    return -(-number // block)


def multiprocessors(device: torch.device) -> int:
    """Of the device; a CPU, on which kernels are interpreted, passes for an H200."""
    if device.type == "cpu":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count
