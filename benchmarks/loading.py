"""How fast a checkpoint comes from its files onto the device, beside what `dd` reads from the same files.

    python benchmarks/loading.py [--shape 8b|1b|tiny] [--cache warm cold] [--folder FOLDER] [--rounds N] [--json OUT]

Writes a checkpoint of random bfloat16 weights in shards of at most 2 GB, then reads it `--rounds` times by
``dd if=FILE of=/dev/null bs=16M``, one file after another, and by `load_model`, in turn: with the files in the page
cache (warm), and after they were dropped from it (cold; a hypervisor's cache is not ours to drop). A few tensors are
compared byte for byte with what the safetensors package reads. Random weights (load_format "dummy") are timed too.
Cold rounds end when `--seconds` have passed since the start. Where the disk is slow to write, a large checkpoint can be
written to memory (``--folder /dev/shm --cache warm``) and a small one to the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import safetensors
import torch
from benchmarks.random_checkpoint import write_checkpoint

from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import CausalLM
from palmette.runtime.weights import SafetensorsFolder, load_model

GOAL = 0.8
"""Of dd's rate."""
_COMPARED = 7
_SWEPT = ((1, 8 << 20), (4, 8 << 20), (8, 4 << 20), (8, 8 << 20), (8, 32 << 20), (16, 4 << 20), (16, 8 << 20))
"""Readers, and bytes of a piece."""


@dataclass(frozen=True)
class Figures:
    """Rates in GB/s, of each round."""

    cache: str
    dd: list[float]
    ours: list[float]

    @property
    def ratio(self) -> float:
        """Of the best rounds."""
        return max(self.ours) / max(self.dd)


def main() -> None:
    """Write, read, compare, and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--shape", choices=("8b", "1b", "tiny"), default="8b")
    options.add_argument("--folder", type=Path, help="where the checkpoint is written; removed afterwards")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--cache", nargs="+", choices=("warm", "cold"), default=["warm", "cold"])
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--seconds", type=float, default=70)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    device = torch.device(given.device)
    deadline = time.monotonic() + given.seconds
    torch.empty(1, device=device)  # the context of a GPU is not part of loading
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        began = time.perf_counter()
        files = write_checkpoint(folder, given.shape, writers=os.cpu_count() or 1)
        size = sum(file.stat().st_size for file in files)
        report("written", time.perf_counter() - began, size)
        figures = []
        for cache in given.cache:  # the disk may still be at work on what was written: it has to be done for "cold"
            began = time.perf_counter()
            if cache == "cold":
                drop(files)
                report("synchronised", time.perf_counter() - began, size)
            figures.append(measure(cache, folder, files, device, given.rounds, deadline))
        compare(folder, load(folder, device))
        sweep(folder, device, size)
        dummy_s = timed(lambda: load(folder, device, is_random=True), device)
        report("random weights", dummy_s, size)
    if given.json:
        given.json.write_text(
            json.dumps({"bytes": size, "dummy_s": dummy_s, "figures": [asdict(each) for each in figures]}, indent=2)
        )


def measure(
    cache: str, folder: Path, files: Sequence[Path], device: torch.device, rounds: int, deadline: float
) -> Figures:
    """Read by dd and by us in turn."""
    size = sum(file.stat().st_size for file in files)
    dd: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        if dd and time.monotonic() > deadline:
            break
        for rates, read in ((dd, lambda: run_dd(files)), (ours, lambda: load(folder, device))):
            if cache == "cold":
                drop(files)
            rates.append(size / timed(read, device) / 1e9)
    figures = Figures(cache, dd, ours)
    said = "   ".join(
        f"{name} {' '.join(f'{rate:6.2f}' for rate in rates)} GB/s" for name, rates in (("dd", dd), ("ours", ours))
    )
    print(f"{cache:5} {said}   ratio {figures.ratio:.2f} (goal {GOAL})", flush=True)
    return figures


def load(folder: Path, device: torch.device, *, is_random: bool = False) -> CausalLM:
    """The model, as an engine loads it."""
    return load_model(
        folder, Placement(dtype=torch.bfloat16, device=device), load_format="dummy" if is_random else "auto"
    )


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of `work`; what it gives is freed."""
    began = time.perf_counter()
    made = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    del made
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return seconds


def run_dd(files: Sequence[Path]) -> None:
    """Read the files, one after another."""
    for file in files:
        subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=16M"], check=True, capture_output=True)


def drop(files: Sequence[Path]) -> None:
    """Drop the files from the page cache, once they are on the disk, and as root all there is."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")


def compare(folder: Path, model: CausalLM) -> None:
    """Look at some tensors byte for byte, and at what loading left behind on a GPU.

    Raises:
        AssertionError: one differs.
    """
    slots = list(model.slots().items())
    source = SafetensorsFolder(folder)
    for name, slot in slots[:: max(1, len(slots) // _COMPARED)]:
        with safetensors.safe_open(source.file_of(name), framework="pt") as file:
            stored = file.get_tensor(name)
        assert torch.equal(slot.target.cpu().view(torch.int16), stored.view(torch.int16)), name
    if torch.cuda.is_available():
        used = sum(slot.target.numel() * slot.target.element_size() for _, slot in slots)
        sizes = (used, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
        print(
            "tensors equal; GB of weights {:.3f}, allocated {:.3f}, reserved {:.3f}".format(*(x / 1e9 for x in sizes))
        )


def sweep(folder: Path, device: torch.device, size: int) -> None:
    """Other numbers of readers and sizes of pieces, with the files in the page cache."""
    if device.type != "cuda":
        return
    model = load(folder, device)
    source = SafetensorsFolder(folder)
    for readers, piece_bytes in _SWEPT:
        began = time.perf_counter()
        source.read_all(model.slots(), device, readers=readers, piece_bytes=piece_bytes)
        report(f"{readers:2} readers, pieces of {piece_bytes >> 20:2} MiB", time.perf_counter() - began, size)


def report(what: str, seconds: float, size: int) -> None:
    """One line."""
    print(f"{what:32} {seconds:7.2f} s  {size / seconds / 1e9:7.2f} GB/s", flush=True)


if __name__ == "__main__":
    assert shutil.which("dd"), "needs dd"
    main()
