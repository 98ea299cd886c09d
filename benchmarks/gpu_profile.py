"""What the GPU and the host do during decode steps, from a profiler's trace.

    python benchmarks/gpu_profile.py [--case 1 512 json] [--shape 8b] [--trace FOLDER] [--json OUT] [--steps 24]
        [--tokenizer FOLDER] [engine settings]

Each case runs twice in its steady state, when every prompt is computed: once without the profiler, for the time of a
step, the part of it in which the device was idle (by events around each step) and what the host spent on what; and once
under the profiler (CUPTI), for the kernels and the gaps between them. The profiler slows the host down, so the idle
part of the trace is an upper bound.

The cases: so many requests that decode after prompts of 512 tokens; `json` is 256 requests held to a schema.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks.gpu_trace import DeviceUse, device_use, read_trace
from benchmarks.model_shapes import Shape
from benchmarks.serving import add_settings, engine_config, machine
from benchmarks.serving_models import Serving, free_device, start, synchronize
from benchmarks.serving_workloads import Workload, json_answers, single

from palmette.runtime.batch import StepHandle, StepMasks, StepPlan, StepResult

SETTLING_STEPS = 4
PREFILL_STEPS = 64
"""Requests that begin first must not end while the last prompts are computed."""


@dataclass(frozen=True)
class Profile:
    """Of one case.

    Attributes:
        step_ms: time of a step, without the profiler.
        idle: the part of it in which the device had nothing to do, by the steps' own events.
        host_ms: of the host's time a step, by what it was spent on; "wait" is for the device.
        traced: under the profiler, where there is one.
    """

    case: str
    steps: int
    step_ms: float
    idle: float
    host_ms: dict[str, float]
    traced: DeviceUse | None


class HostTimes:
    """Where the host's time goes: wraps the scheduler's and the runner's methods of one engine."""

    def __init__(self, serving: Serving) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        scheduler, runner = serving.scheduler, serving.runner
        for name, phase in (("launch_step", "plan"), ("finish_step", "finish"), ("prepare_next", "prepare")):
            setattr(scheduler, name, self._timed(phase, getattr(scheduler, name)))
        setattr(scheduler, "sample_step", self._timed("masks", scheduler.sample_step))  # noqa: B010 a method
        launch = self._timed("launch", runner.launch, within="plan")

        def timed_launch(plan: StepPlan) -> StepHandle:
            return _TimedHandle(cast("StepHandle", launch(plan)), self)

        setattr(runner, "launch", timed_launch)  # noqa: B010 mypy takes no method in a method's place

    def _timed(self, phase: str, call: Callable[..., Any], *, within: str | None = None) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.spend(phase, time.perf_counter() - began, within=within)

        return timed

    def spend(self, phase: str, seconds: float, *, within: str | None = None) -> None:
        """Count time for a phase, and not for the one that it is part of."""
        self.seconds[phase] += seconds
        if within is not None:
            self.seconds[within] -= seconds


class _TimedHandle:
    """A step in flight whose calls are timed."""

    def __init__(self, handle: StepHandle, times: HostTimes) -> None:
        self._handle = handle
        self._times = times

    def sample(self, masks: StepMasks | None = None) -> None:
        began = time.perf_counter()
        self._handle.sample(masks)
        self._times.spend("sample", time.perf_counter() - began, within="masks")

    def result(self) -> StepResult:
        began = time.perf_counter()
        result = self._handle.result()
        self._times.spend("wait", time.perf_counter() - began, within="finish")
        return result


def main(arguments: Sequence[str] | None = None) -> list[Profile]:
    """Profile the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["1", "512", "json"])
    parser.add_argument("--shape", choices=("8b", "1b", "tiny"), default="8b")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--trace", type=Path, default=Path("traces"))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--json", type=Path)
    add_settings(parser)
    given = parser.parse_args(arguments)
    given.trace.mkdir(parents=True, exist_ok=True)
    profiles: list[Profile] = []
    for with_grammar in (False, True):
        cases = [case for case in given.case if (case == "json") == with_grammar]
        if cases:
            profiles += profile_all(cases, given)
            free_device()
    if given.json is not None:
        given.json.write_text(
            json.dumps({"machine": machine(), "cases": [asdict(each) for each in profiles]}, indent=1)
        )
    return profiles


def profile_all(cases: list[str], given: argparse.Namespace) -> list[Profile]:
    """Profile cases on one engine."""
    config = engine_config(given)
    serving = start(
        cast("Shape", given.shape), config, with_grammar=cases == ["json"], tokenizer_folder=given.tokenizer
    )
    times = HostTimes(serving)
    gc.collect()
    gc.freeze()
    profiles = []
    try:
        for case in cases:
            profiles.append(profile(serving, times, case, given.steps, given.trace / f"decode_{case}.json.gz"))
            print_profile(profiles[-1])
    finally:
        serving.scheduler.close()
        gc.unfreeze()
    return profiles


def profile(serving: Serving, times: HostTimes, case: str, steps: int, trace: Path) -> Profile:
    """Profile one case."""
    workload = _workload(case, SETTLING_STEPS + PREFILL_STEPS + steps)
    serving.client.run(workload)  # compiles kernels and records graphs
    step_s, idle, host_s = _measured(serving, times, workload, steps)
    traced = None
    if torch.cuda.is_available():
        traced = _traced(serving, workload, steps, trace)
    host_ms = {phase: 1000 * seconds for phase, seconds in host_s.items()}
    return Profile(case, steps, 1000 * step_s, idle, host_ms, traced)


def _workload(case: str, new_tokens: int) -> Workload:
    if case == "json":
        return json_answers("full")
    (asks,) = single(int(case), 0.0, "full").rounds
    return Workload(case, (tuple(replace(ask, new_tokens=new_tokens) for ask in asks),), 0.0)


def _measured(
    serving: Serving, times: HostTimes, workload: Workload, steps: int
) -> tuple[float, float, dict[str, float]]:
    """Seconds of a step, the idle part of them, and the host's seconds by phase."""
    scheduler = serving.scheduler
    _settle(serving, workload)
    before, began = scheduler.stats(), time.perf_counter()
    times.seconds.clear()
    _step(serving, steps)
    seconds, host_s = time.perf_counter() - began, dict(times.seconds)
    after = scheduler.stats()
    _step(serving, None)
    return seconds / steps, 1 - (after.device_s - before.device_s) / seconds, {p: s / steps for p, s in host_s.items()}


def _traced(serving: Serving, workload: Workload, steps: int, trace: Path) -> DeviceUse:
    """The device's use under the profiler."""
    _settle(serving, workload)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        _step(serving, steps)
        synchronize(serving.runner)
    profiler.export_chrome_trace(str(trace))
    _step(serving, None)
    return device_use(read_trace(trace))


def _settle(serving: Serving, workload: Workload) -> None:
    """Begin a workload on an empty cache, up to a few steps after the last prompt was computed."""
    serving.scheduler.flush_cache()
    synchronize(serving.runner)
    serving.client.submit(workload)
    while not serving.client.all_decode:
        _step(serving, 1)
    _step(serving, SETTLING_STEPS)


def _step(serving: Serving, steps: int | None) -> None:
    """Run so many steps; None runs all that are left."""
    scheduler = serving.scheduler
    while scheduler.has_work and (steps is None or steps > 0):
        scheduler.step_ahead()
        scheduler.prepare_next()
        steps = None if steps is None else steps - 1


def print_profile(found: Profile) -> None:
    """A few lines for a case."""
    host = "  ".join(f"{phase} {ms:.2f}" for phase, ms in found.host_ms.items())
    print(f"case {found.case}: {found.step_ms:.3f} ms a step, device idle {found.idle:.1%}; host ms a step: {host}")
    use = found.traced
    if use is None:
        return
    print(f"  under the profiler: {use.span_us / found.steps / 1000:.3f} ms a step, device idle {use.idle:.1%}")
    for gap in use.gaps[:5]:
        print(f"  gap {gap.us:8.1f} us  after {gap.after[:44]}  before {gap.before[:44]}")
    for name, count, us in use.kernels:
        print(f"  {us / found.steps:9.1f} us a step  {count / found.steps:7.1f} times  {name[:90]}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
