"""Models of `serving.py`: shapes of public models with random weights, and the offline engine that runs them."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks import serving_json
from benchmarks.model_shapes import Shape, config_of
from benchmarks.serving_run import Client
from benchmarks.serving_workloads import Ask, Workload, single

from palmette.runtime.config import EngineConfig
from palmette.runtime.loading import build_scheduler, context_length
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.tokenizer import Tokenizer

TOKENIZER_VOCABULARY = 49152
"""Of the default model, whose tokenizer the json workload uses."""


@dataclass(frozen=True)
class Serving:
    """An engine that is ready.

    Attributes:
        load_s: making weights, storage and scheduler.
        first_token_s: from there to the first token of a first request.
        start_s: from the start of the process to that token.
    """

    runner: ModelRunner
    scheduler: Scheduler
    client: Client
    tokenizer: Tokenizer | None
    load_s: float
    first_token_s: float
    start_s: float


def start(shape: Shape, config: EngineConfig, *, with_grammar: bool, tokenizer_folder: Path | None = None) -> Serving:
    """Start an offline engine on random weights; with the tokenizer's vocabulary and grammars, or with neither."""
    tokenizer = serving_json.load_tokenizer(tokenizer_folder) if with_grammar else None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        changes = {} if tokenizer is None else {"vocab_size": TOKENIZER_VOCABULARY}
        (Path(name) / "config.json").write_text(json.dumps(config_of(shape) | changes))
        known = None if tokenizer is None else len(tokenizer.token_bytes)
        runner = ModelRunner.load(Path(name), config, valid_vocab=known)
    scheduler = _scheduler(runner, tokenizer, config)
    client = Client(
        scheduler,
        grammar=None if tokenizer is None else serving_json.grammar(),
        end_ids=frozenset() if tokenizer is None else frozenset(tokenizer.end_ids),
    )
    load_s = time.perf_counter() - began
    client.run(_first_request())
    first_token_s = time.perf_counter() - began - load_s
    start_s = _process_age_s()
    scheduler.flush_cache()
    return Serving(runner, scheduler, client, tokenizer, load_s, first_token_s, start_s)


def _scheduler(runner: ModelRunner, tokenizer: Tokenizer | None, config: EngineConfig) -> Scheduler:
    if tokenizer is not None:
        return build_scheduler(runner, tokenizer, config)
    return Scheduler(
        runner,
        config=config,
        num_pages=runner.num_pages,
        page_size=runner.page_size,
        context_length=context_length(runner, config),
        sizes=runner.sizes(config),
        vocab_size=runner.config.vocab_size,
    )


def _first_request() -> Workload:
    (asks,) = single(1, 0.0, "tiny").rounds
    return Workload("first", ((Ask(asks[0].prompt, 1),),), 0.0)


def _process_age_s() -> float:
    """Seconds since this process was started, as Linux counts them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def synchronize(runner: ModelRunner) -> None:
    """Wait until the device has nothing more to do."""
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)


def free_device() -> None:
    """Give the memory of engines that are gone back to the device, for the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
