"""`palmette env`: what to paste into a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import typer

from .errors import DebugOption, reports_errors

PACKAGES = (
    "palmette",
    "torch",
    "triton",
    "flashinfer-python",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "numpy",
    "numba",
    "msgspec",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@reports_errors
def env(debug: DebugOption = False) -> None:
    """Print versions, the device, threads and the cache folder. No secrets: paste it into a bug report."""
    for name, value in _facts():
        typer.echo(f"{name + ':':<19}{value}")


def _facts() -> list[tuple[str, str]]:
    return [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("platform", platform.platform()),
        *((package, _version(package)) for package in PACKAGES),
        ("cpu", _cpu()),
        ("gpu", _gpu()),
        ("threads", _threads()),
        ("cache", _cache_folder()),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    """The processor's name: from /proc on Linux, where Python itself does not know it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _gpu() -> str:
    """NVIDIA GPUs as nvidia-smi names them, asked without importing torch."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none (no nvidia-smi)"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown (nvidia-smi: {error})"
    if answer.returncode != 0:
        return f"none (nvidia-smi failed with exit code {answer.returncode})"
    return "; ".join(answer.stdout.strip().splitlines())


def _threads() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    settings = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    return ", ".join([f"{usable} usable", *settings])


def _cache_folder() -> str:
    from palmette.runtime.default_model import cache_folder

    return str(cache_folder())
