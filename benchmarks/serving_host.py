"""What the host costs under the workloads of `serving.py`: the real scheduler on a device that only takes its time.

    python benchmarks/serving_host.py [--workload NAME ...] [--shared-prefix] [--profile] [engine settings]

No GPU is needed. Time is that of the device's clock (`serving_device.py`): the CPU time of the host, and the time it
waits for the device. `bound` is the sum of the device's step times, `idle` the part of the time in which it had nothing
to do.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import serving_json
from benchmarks.serving_device import Device, TimedRunner
from benchmarks.serving_run import Client, Run
from benchmarks.serving_workloads import WORKLOADS, Workload

from palmette.constrained import MaskTable
from palmette.runtime.config import EngineConfig
from palmette.runtime.forced_text import ForcedText
from palmette.runtime.loading import grammar_queue
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.tokenizer import Tokenizer

PAGE_SIZE = 16
SMALL_VOCABULARY, VOCABULARY = 49152, 128256


def main() -> None:
    """Run the workloads that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--shared-prefix", action="store_true", help="decode attention reads shared pages once")
    parser.add_argument("--profile", action="store_true", help="where the host's time goes")
    parser.add_argument("--chunk-size", type=int, default=8192)
    parser.add_argument("--max-running-requests", type=int, default=1024)
    parser.add_argument("--max-total-tokens", type=int, default=790_000)
    parser.add_argument("--policy", default="lpm")
    given = parser.parse_args()
    config = EngineConfig(
        chunk_size=given.chunk_size,
        max_running_requests=given.max_running_requests,
        max_total_tokens=given.max_total_tokens,
        policy=given.policy,
        seed=0,
    )
    print(HEADER)
    for name in given.workload:
        workload = WORKLOADS[name](given.scale)
        device = Device(reads_shared_once=given.shared_prefix)
        run = simulate(workload, config, device, profile=given.profile)
        print(line(workload, run, device), flush=True)


HEADER = (
    f"{'workload':10}{'s':>8}{'bound s':>9}{'idle':>7}{'steps':>7}{'tokens a step':>15}{'host ms a step':>16}"
    f"{'goal s':>8}{'retractions':>13}"
)


def line(workload: Workload, run: Run, device: Device) -> str:
    """One line of the table."""
    bound_s, host_s = sum(seconds for _, _, seconds in device.steps), run.seconds - device.stalled_s
    return (
        f"{workload.name:10}{run.seconds:8.2f}{bound_s:9.2f}{1 - bound_s / run.seconds:7.1%}{run.steps:7}"
        f"{run.computed / run.steps:15.0f}{1000 * host_s / run.steps:16.2f}{workload.goal_s:8.2f}{run.retractions:13}"
    )


def simulate(workload: Workload, config: EngineConfig, device: Device, *, profile: bool = False) -> Run:
    """The second of two runs of a workload on an empty cache, with a device's steps of that run alone."""
    tokenizer = serving_json.load_tokenizer(None) if workload.is_json else None
    scheduler = timed_scheduler(config, device, tokenizer)
    client = Client(
        scheduler,
        grammar=serving_json.grammar() if workload.is_json else None,
        end_ids=tokenizer.end_ids if tokenizer is not None else frozenset(),
        now=device.now,
    )
    if workload.is_json:
        client.run(workload)
        scheduler.flush_cache()
    device.steps.clear()
    device.stalled_s = 0.0
    profiler = cProfile.Profile()
    try:
        if profile:
            profiler.enable()
        run = client.run(workload)
    finally:
        profiler.disable()
        scheduler.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(32)
    return run


def timed_scheduler(config: EngineConfig, device: Device, tokenizer: Tokenizer | None) -> Scheduler:
    """A scheduler whose steps take the device's time; with grammars where there is a tokenizer."""
    vocab_size = SMALL_VOCABULARY if tokenizer is not None else VOCABULARY
    vocabulary = None if tokenizer is None else tokenizer.vocabulary(vocab_size)
    return Scheduler(
        TimedRunner(device, vocab_size),
        config=config,
        num_pages=(config.max_total_tokens or 0) // PAGE_SIZE,
        page_size=PAGE_SIZE,
        context_length=8192,
        vocab_size=vocab_size,
        mask_table=None if vocabulary is None else MaskTable(config.mask_rows, vocabulary),
        grammar_queue=None if vocabulary is None else grammar_queue(vocabulary, config),
        forced_text=None if tokenizer is None else ForcedText(tokenizer),
    )


if __name__ == "__main__":
    main()
