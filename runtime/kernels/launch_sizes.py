"""Sizes of launches, worked out for every one: Triton's own functions for them take the host ten times as long."""

from __future__ import annotations


def power_of_two(number: int) -> int:
    """The smallest that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def block_count(number: int, block: int) -> int:
    """Blocks of this size that hold so many."""
    return -(-number // block)
