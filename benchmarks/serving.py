"""How long the engine takes for the workloads on which engines are compared, on random weights.

    python benchmarks/serving.py --workload unique fork fewshot agents single1 single8 single64 json [--json OUT]
        [--shape 8b|1b|tiny] [--scale full|tiny] [--repeats 3] [--tokenizer FOLDER] [engine settings]
    python benchmarks/serving.py --export-tokenizer FOLDER

The offline engine in this process, driven with token ids and overlapping steps. Answers are greedy and have exact
lengths; those of `json` are held to a schema, drawn at temperature 1, and validated. One engine runs all workloads
without a grammar. Each workload runs once to warm up and then `--repeats` times, with the cache flushed before each
run; compiled grammars are kept. Weights are random, so only shapes matter.

`json` needs a tokenizer: the default model's, which is fetched once, or what `--export-tokenizer` wrote elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks import serving_json
from benchmarks.model_shapes import Shape
from benchmarks.serving_models import Serving, free_device, start, synchronize
from benchmarks.serving_run import Run
from benchmarks.serving_workloads import WORKLOADS, Scale, Workload

from palmette.runtime.config import EngineConfig

MEM_FRACTION, CONTEXT_LENGTH = 0.85, 8192
TINY_POOL_TOKENS = 1 << 14


@dataclass(frozen=True)
class Figures:
    """Of one workload: medians over the repeats.

    Attributes:
        seconds: and all of them, in order.
        busy: the part of the time in which the device computed.
        tokens: generated.
        computed: tokens that went through the model.
        alike: of the requests, those that got the same tokens in every repeat.
        valid: answers that the schema accepts, in the worst repeat; None without a schema.
        goal_s: issue 6's, for the 8B shape at full size on one H200.
    """

    workload: str
    seconds: float
    all_seconds: tuple[float, ...]
    tokens_per_s: float
    busy: float
    steps: int
    requests: int
    tokens: int
    computed: int
    retractions: int
    alike: int
    valid: int | None
    goal_s: float


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run what the command line asks for; returns what `--json` writes."""
    given = _parser().parse_args(arguments)
    if given.export_tokenizer is not None:
        print(serving_json.export_tokenizer(given.export_tokenizer))
        return {}
    config = engine_config(given)
    workloads = [WORKLOADS[name](cast("Scale", given.scale)) for name in given.workload]
    report: dict[str, Any] = {
        "machine": machine(),
        "shape": given.shape,
        "scale": given.scale,
        "settings": changed_settings(config),
    }
    print(HEADER, flush=True)
    for with_grammar in (False, True):
        alike = [workload for workload in workloads if workload.is_json == with_grammar]
        if alike:
            report["json engine" if with_grammar else "engine"] = measure_all(alike, config, given)
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1))
    return report


def measure_all(workloads: Sequence[Workload], config: EngineConfig, given: argparse.Namespace) -> dict[str, Any]:
    """Run workloads on one engine, which is gone afterwards."""
    with_grammar = workloads[0].is_json
    serving = start(cast("Shape", given.shape), config, with_grammar=with_grammar, tokenizer_folder=given.tokenizer)
    engine = {
        "load_s": serving.load_s,
        "first_token_s": serving.first_token_s,
        "start_s": serving.start_s,
        "pool_tokens": serving.runner.num_pages * serving.runner.page_size,
        "page_size": serving.runner.page_size,
    }
    gc.collect()
    gc.freeze()  # what was loaded stays: looking through it again and again holds steps up
    figures = []
    try:
        for workload in workloads:
            figures.append(measure(serving, workload, given.repeats))
            print(line(figures[-1]), flush=True)
    finally:
        serving.scheduler.close()
        gc.unfreeze()
    print("engine: " + ", ".join(f"{name} {value:.1f}" for name, value in engine.items()), flush=True)
    del serving
    free_device()
    return engine | {"workloads": [asdict(each) for each in figures]}


def measure(serving: Serving, workload: Workload, repeats: int) -> Figures:
    """Run one workload once to warm up, and then `repeats` times."""
    runs = [_flushed_run(serving, workload) for _ in range(repeats + 1)][1:]
    valid = None
    if serving.tokenizer is not None:
        token_bytes = serving.tokenizer.token_bytes
        valid = min(serving_json.valid_answers(run.outputs, token_bytes) for run in runs)
    seconds = statistics.median(run.seconds for run in runs)
    return Figures(
        workload=workload.name,
        seconds=seconds,
        all_seconds=tuple(run.seconds for run in runs),
        tokens_per_s=statistics.median(run.tokens / run.seconds for run in runs),
        busy=statistics.median(run.busy for run in runs),
        steps=int(statistics.median(run.steps for run in runs)),
        requests=workload.requests,
        tokens=int(statistics.median(run.tokens for run in runs)),
        computed=int(statistics.median(run.computed for run in runs)),
        retractions=max(run.retractions for run in runs),
        alike=sum(
            len({tokens.tobytes() for tokens in same}) == 1 for same in zip(*(r.outputs for r in runs), strict=True)
        ),
        valid=valid,
        goal_s=workload.goal_s,
    )


def _flushed_run(serving: Serving, workload: Workload) -> Run:
    serving.scheduler.flush_cache()
    synchronize(serving.runner)
    return serving.client.run(workload)


HEADER = (
    f"{'workload':10}{'seconds':>9}{'goal':>8}{'spread':>17}{'tokens/s':>10}{'busy':>7}{'steps':>7}"
    f"{'tokens a step':>15}{'alike':>11}{'valid':>7}"
)


def line(figures: Figures) -> str:
    """One line of the table."""
    spread = f"{min(figures.all_seconds):.3f}-{max(figures.all_seconds):.3f}"
    return (
        f"{figures.workload:10}{figures.seconds:9.3f}{figures.goal_s:8.2f}{spread:>17}{figures.tokens_per_s:10.0f}"
        f"{figures.busy:7.1%}{figures.steps:7}{figures.computed / max(1, figures.steps):15.0f}"
        f"{figures.alike:6}/{figures.requests:<4}{'' if figures.valid is None else figures.valid:>7}"
    )


def engine_config(given: argparse.Namespace) -> EngineConfig:
    """The engine's settings: those of the procedure, and what the command line changes."""
    pool = given.max_total_tokens or (TINY_POOL_TOKENS if given.shape == "tiny" else None)
    return EngineConfig(
        load_format="dummy",
        seed=0,
        mem_fraction=given.mem_fraction,
        context_length=CONTEXT_LENGTH,
        max_total_tokens=pool,
        page_size=given.page_size,
        max_running_requests=given.max_running_requests,
        chunk_size=given.chunk_size,
        policy=given.policy,
        attention_backend=given.attention_backend,
        cuda_graphs=given.cuda_graphs,
        jump_forward=given.jump_forward,
        device=given.device,
        dtype=given.dtype,
    )


def changed_settings(config: EngineConfig) -> dict[str, Any]:
    """The settings that are not the usual ones."""
    usual = asdict(EngineConfig())
    return {name: value for name, value in asdict(config).items() if value != usual[name]}


def machine() -> dict[str, Any]:
    """What the figures depend on besides the engine."""
    versions: dict[str, str | None] = {}
    for package in ("torch", "triton", "flashinfer-python", "numpy", "numba", "tokenizers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "device": device,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--shape", choices=("8b", "1b", "tiny"), default="8b")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--export-tokenizer", type=Path)
    add_settings(parser)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options that `engine_config` reads."""
    settings = parser.add_argument_group("engine settings")
    settings.add_argument("--attention-backend")
    settings.add_argument("--mem-fraction", type=float, default=MEM_FRACTION)
    for name in ("max-total-tokens", "page-size", "max-running-requests", "chunk-size"):
        settings.add_argument(f"--{name}", type=int)
    settings.add_argument("--policy", default="lpm")
    settings.add_argument("--device")
    settings.add_argument("--dtype", default="auto")
    settings.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction, default=True)
    settings.add_argument("--jump-forward", action=argparse.BooleanOptionalAction, default=True)


if __name__ == "__main__":
    main()
