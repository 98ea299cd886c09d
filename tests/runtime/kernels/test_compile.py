"""Every kernel compiles for Hopper, on any Linux machine: Triton brings the assembler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[3]
_MOST_SHARED_BYTES = 227 * 1024
"""Of one block on sm_90."""


@pytest.fixture(scope="module")
def compilation() -> dict[str, Any]:
    """What `compile_for_hopper` prints, in a process of its own: in this one kernels may be interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.kernels.compile_for_hopper"],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_kernel_compiles_for_hopper_without_spills(compilation: dict[str, Any]) -> None:
    """Registers suffice, but where a signature says otherwise, and so does shared memory."""
    bad = [
        kernel
        for kernel in compilation["kernels"]
        if "error" in kernel or kernel["spills_too_much"] or kernel["shared_bytes"] > _MOST_SHARED_BYTES
    ]
    assert compilation["kernels"]
    assert not bad, json.dumps(bad, indent=1)


def test_no_kernel_is_left_out(compilation: dict[str, Any]) -> None:
    """A new kernel gets a line in a file of signatures."""
    assert not compilation["left_out"]
