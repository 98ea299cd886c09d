"""Every kernel of the runtime against what memory and the matrix units of the GPU at hand allow.

    python benchmarks/kernels.py [--json OUT] [--only linear]

Prints the ceilings first: a copy within device memory and a large matrix product. Then, at shapes of Llama-3.1-8B: the
median time of a launch in a CUDA graph, the bytes and operations a second that it comes to, the share of the bound, and
the times of torch, cuBLAS or FlashInfer for the same work. Inputs rotate so that none waits in the L2 cache.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kernel_timing import Ceilings, Measured, measured_ceilings, table

GROUPS = ("layers", "linear", "step", "attention", "sampling")
"""Each a module `kernel_<group>` with `measure(ceilings)`."""


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument(
        "--only", choices=GROUPS, action="append", help="a group of kernels; may be given several times"
    )
    return parser.parse_args(arguments)


def run(groups: Sequence[str], ceilings: Ceilings) -> tuple[list[Measured], list[str]]:
    """Measures group after group; a group that fails costs only what it has not measured yet, and is named."""
    measured: list[Measured] = []
    failed: list[str] = []
    for group in groups:
        began = time.monotonic()
        try:
            module: Any = importlib.import_module(f"benchmarks.kernel_{group}")
            measured.extend(module.measure(ceilings))
        except Exception:
            traceback.print_exc()
            failed.append(group)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"{group}: {time.monotonic() - began:.0f} s", flush=True)
    return measured, failed


def main() -> None:
    chosen = arguments_of(sys.argv[1:])
    ceilings = measured_ceilings()
    torch.cuda.empty_cache()
    print(
        f"{torch.cuda.get_device_name()}: copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, "
        f"product {ceilings.flops_per_s / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    measured, failed = run(chosen.only or GROUPS, ceilings)
    if chosen.json:
        figures = {
            "device": torch.cuda.get_device_name(),
            "bytes_per_s": ceilings.bytes_per_s,
            "flops_per_s": ceilings.flops_per_s,
            "kernels": [m.as_json(ceilings) for m in measured],
        }
        chosen.json.write_text(json.dumps(figures, indent=1))
    print("\n".join(table(measured, ceilings)))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
