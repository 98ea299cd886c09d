"""What a decode step costs the host: the scheduler on a device that computes nothing, in microseconds of CPU time.

    python benchmarks/host_steps.py [--batch N] [--steps N] [--repeats N] [--case plain json] [--json OUT]

Scheduler, page tables, grammars and news are real, and the steps overlap. The model runner only chooses tokens; its own
part of a step is not in these figures, nor is that of sockets. CPU time of the thread is counted, the least of the
repeats, so that other work on the machine matters little.

- *plan*: rows, pages and the arrays of the plan;
- *masks*: rows of the mask table for constrained requests;
- *finish*: tokens are taken, grammars move on, what they force is found, ends are looked for;
- *prepare*: masks ahead of the next step;
- *news*: messages to the detokenizer, for requests that stream.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palmette.bench import fake_model
from palmette.constrained.grammar import Grammar
from palmette.runtime.batch import StepHandle, StepMasks, StepPlan, StepResult
from palmette.runtime.config import EngineConfig
from palmette.runtime.detokenizer import UnreadText
from palmette.runtime.loading import LoadedEngine
from palmette.runtime.processes.heap import settle_heap
from palmette.runtime.reports import report
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams

SCHEMA = '{"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 200}'
PROMPT = 512
SETTLING_STEPS = 8
ENOUGH_TOKENS = 8192
"""No request ends, or comes near its end, while it is measured: a step may force tokens beside the one it samples."""


@dataclass(frozen=True)
class Figures:
    """Of one case: microseconds a step, by what they were spent on, and in all."""

    case: str
    batch: int
    us: dict[str, float]

    @property
    def total_us(self) -> float:
        return sum(self.us.values())


class _Clock:
    """CPU time by phase. Only the innermost phase counts; the device's has no name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        self._since = 0.0

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, counted."""

        def timed(*arguments: Any) -> Any:
            self._turn()
            self._phases.append(phase)
            try:
                return call(*arguments)
            finally:
                self._turn()
                self._phases.pop()

        return timed

    def _turn(self) -> None:
        now = time.thread_time()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = time.thread_time()


class _TimedRunner:
    """A runner whose time is nobody's."""

    def __init__(self, runner: fake_model.FakeRunner, clock: _Clock) -> None:
        self._launch = clock.timed("", runner.launch)
        self._clock = clock

    def launch(self, plan: StepPlan) -> StepHandle:
        return _TimedStep(self._launch(plan), self._clock)


class _TimedStep:
    def __init__(self, handle: StepHandle, clock: _Clock) -> None:
        self._sample = clock.timed("", handle.sample)
        self._result: Callable[[], StepResult] = clock.timed("", handle.result)

    def sample(self, masks: StepMasks | None = None) -> None:
        self._sample(masks)

    def result(self) -> StepResult:
        return self._result()


def main(arguments: Sequence[str] | None = None) -> list[Figures]:
    """Measure the cases that the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--steps", type=int, default=64)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--case", nargs="+", choices=("plain", "json"), default=["plain", "json"])
    options.add_argument("--json", type=Path)
    given = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        fake_model.write_folder(Path(folder))
        figures = [measure(case, Path(folder), given.batch, given.steps, given.repeats) for case in given.case]
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in figures], indent=1))
    return figures


def measure(case: str, folder: Path, batch: int, steps: int, repeats: int) -> Figures:
    """Decode so many requests at once for `repeats` times so many steps."""
    if SETTLING_STEPS + repeats * steps > ENOUGH_TOKENS // 4:
        raise SystemExit(f"--repeats times --steps may be {ENOUGH_TOKENS // 4 - SETTLING_STEPS} at most")
    pool = batch * (PROMPT + ENOUGH_TOKENS)
    config = EngineConfig(
        model=str(folder), max_running_requests=batch, chunk_size=batch * PROMPT, max_total_tokens=pool
    )
    loaded = fake_model.load(config)
    clock = _Clock()
    _time(loaded, clock)
    try:
        _submit(loaded, case, batch)
        settle_heap()
        while loaded.scheduler.stats().running < batch:
            _step(loaded, clock)
        for _ in range(SETTLING_STEPS):
            _step(loaded, clock)
        best = min((_run(loaded, clock, steps) for _ in range(repeats)), key=lambda us: sum(us.values()))
    finally:
        loaded.scheduler.close()
    figures = Figures(case, batch, best)
    parts = "  ".join(f"{phase} {us:.0f}" for phase, us in best.items())
    print(f"{batch} {case}: {figures.total_us:.0f} us a step: {parts}", flush=True)
    return figures


def _time(loaded: LoadedEngine, clock: _Clock) -> None:
    scheduler = loaded.scheduler
    phases = {"launch_step": "plan", "sample_step": "masks", "finish_step": "finish", "prepare_next": "prepare"}
    for name, phase in phases.items():
        setattr(scheduler, name, clock.timed(phase, getattr(scheduler, name)))
    scheduler._runner = _TimedRunner(scheduler._runner, clock)  # type: ignore[arg-type]  # the fake model's


def _submit(loaded: LoadedEngine, case: str, batch: int) -> None:
    rng = np.random.default_rng(0)
    grammar = Grammar.json_schema(SCHEMA) if case == "json" else None
    for index in range(batch):
        loaded.scheduler.add(
            Request(
                id=str(index),
                prompt_ids=rng.integers(len(fake_model.SPECIAL_TOKENS), loaded.model_info.vocab_size, PROMPT, np.int32),
                params=SamplingParams(temperature=0, max_tokens=ENOUGH_TOKENS, ignore_eos=grammar is None),
                grammar=grammar,
                end_ids=frozenset(loaded.tokenizer.end_ids),
                text=UnreadText(),
            )
        )


def _run(loaded: LoadedEngine, clock: _Clock, steps: int) -> dict[str, float]:
    """Microseconds a step by phase."""
    clock.seconds.clear()
    for _ in range(steps):
        _step(loaded, clock)
    return {phase: 1e6 * seconds / steps for phase, seconds in clock.seconds.items() if phase}


def _step(loaded: LoadedEngine, clock: _Clock) -> None:
    """As `SchedulerLoop.overlap_loop` does."""
    updates = loaded.scheduler.step_ahead()
    clock.timed("news", lambda: [report(each.request, each.text, finished=each.finished) for each in updates])()
    loaded.scheduler.prepare_next()


if __name__ == "__main__":
    main()
