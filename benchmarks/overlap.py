"""What overlapping steps hide: the scheduler on a device that only takes its time, with and without overlap.

    python benchmarks/overlap.py [--tokens N] [--repeats N] [--json OUT]

Everything but the model is real. Step times are those of an 8B model on an H200 (`docs/benchmarks.md`). The overhead is
the part of the time in which the device had nothing to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import palmette as pt
from palmette.bench import fake_model
from palmette.constrained.grammar import Grammar
from palmette.runtime.config import EngineConfig
from palmette.runtime.engine import Engine
from palmette.runtime.program import Event, Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams

SCHEMA = '{"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 200}'


@dataclass(frozen=True)
class Case:
    """So many requests at once, each step of so many seconds."""

    name: str
    batch: int
    step_s: float
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Figures:
    """Of one case and one loop: medians over the repeats."""

    case: str
    overlap: bool
    tokens_per_s: float
    ideal_tokens_per_s: float
    overhead: float
    spread: tuple[float, float]


CASES = (
    Case("1", 1, 0.0051),
    Case("64", 64, 0.0061),
    Case("512", 512, 0.0125),
    Case("64 json", 64, 0.0061, Grammar.json_schema(SCHEMA)),
)


def main() -> None:
    """Run every case with both loops, in turn."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--tokens", type=int, default=150)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        fake_model.write_folder(Path(folder))
        for case in CASES:
            figures += [measure(case, Path(folder), overlap, given.tokens, given.repeats) for overlap in (False, True)]
            print_case(figures[-2:])
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in figures], indent=2))


def measure(case: Case, folder: Path, overlap: bool, tokens: int, repeats: int) -> Figures:
    """Run a case a few times on one engine; the first time does not count."""
    config = EngineConfig(model=str(folder), overlap=overlap, max_running_requests=max(64, case.batch), chunk_size=8192)
    loaded = fake_model.load(config, step_s=case.step_s)
    with Engine(loaded.scheduler, loaded.tokenizer, loaded.model_info, overlap=loaded.overlap) as engine:
        runs = [one_run(engine, case, tokens) for _ in range(repeats + 1)][1:]
    rates = [rate for rate, _ in runs]
    overheads = [overhead for _, overhead in runs]
    return Figures(
        case.name,
        overlap,
        statistics.median(rates),
        case.batch / case.step_s,
        statistics.median(overheads),
        (min(overheads), max(overheads)),
    )


def one_run(engine: Engine, case: Case, tokens: int) -> tuple[float, float]:
    """Tokens a second of the whole batch, and the part of the time in which the device waited."""
    before = engine.stats()
    began = time.perf_counter()
    events: list[Event] = []
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, always_complete=False)
    session = engine.open(events.append)
    nodes: list[Text | Generate] = []
    for index in range(case.batch):
        nodes += [Text(2 * index, None, f"prompt {index}: "), Generate(2 * index + 1, 2 * index, params, case.grammar)]
    session.extend(nodes)
    while len(events) < case.batch:
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    session.close()
    after = engine.stats()
    made = sum(c.completion_tokens for e in events if isinstance(e, Generated) for c in e.completions)
    working, device = after.working_s - before.working_s, after.device_s - before.device_s
    return made / seconds, 1 - device / working


def print_case(pair: Sequence[Figures]) -> None:
    """One line for a case."""
    normal, overlapped = pair
    print(
        f"batch {normal.case:8} tokens/s {normal.tokens_per_s:8.0f} -> {overlapped.tokens_per_s:8.0f}"
        f" of {normal.ideal_tokens_per_s:8.0f}   device idle {normal.overhead:6.1%} -> {overlapped.overhead:6.1%}"
        f" ({overlapped.spread[0]:.1%} to {overlapped.spread[1]:.1%})",
        flush=True,
    )


if __name__ == "__main__":
    assert pt  # the package is installed
    main()
