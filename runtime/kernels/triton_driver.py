"""Triton's own start on a GPU: it translates kernels by itself, but what launches them is a piece of C."""

from __future__ import annotations

from triton.runtime import driver


def start() -> None:
    """Compile the first such piece, or find it in Triton's cache.

    Raises:
        Exception: of any kind: there is no compiler, or it fails, for want of Python's headers for example.
    """
    driver.active.get_current_device()
