"""An engine in simulated time: the real host of programs and scheduler, on an H200 that only takes its time.

One event loop has it all. Where the scheduler looks for messages, everything that clients do up to that moment happens;
each step moves the clock on by the time that `serving_device.Device` says an H200 takes for it. The host's own work
takes no time, as with overlapping steps. Attention reads a shared prefix once for every row: no kernel that reads it
once for all of them is assumed.
"""

from __future__ import annotations

import heapq
import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from benchmarks.programs_infinite import RunRequest
from benchmarks.programs_tree import length_of_seed
from benchmarks.serving_device import SAMPLE_S_A_ROW, Device

from palmette.bench import fake_model
from palmette.runtime.batch import Float32Array, Int32Array, StepMasks, StepPlan, StepResult
from palmette.runtime.config import EngineConfig
from palmette.runtime.detokenizer import Detokenizer
from palmette.runtime.intake import Intake
from palmette.runtime.messages import (
    FromScheduler,
    NewRequest,
    RequestOutput,
    SchedulerStats,
    SessionOptions,
    StepOutput,
    ToScheduler,
)
from palmette.runtime.program_host import HostedProgram, ProgramHost
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.scheduler_loop import SchedulerLoop
from palmette.runtime.service import EventSink
from palmette.runtime.tokenizer import Tokenizer

END_ID = 0
CONTEXT_LENGTH = 1 << 15
_LETTERS = b"abcdefghijklmnopqrstuvwxyz .,"

Happening = Callable[[float], None]
"""What happens at a moment, which it is told."""


class SimulatedTime:
    """The clock, and what is to happen when."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self._due: list[tuple[float, int, Happening]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """As a clock."""
        return self.time_s

    def at(self, time_s: float, happening: Happening) -> None:
        """Have something happen at a time, or as soon as the step that runs then has ended."""
        heapq.heappush(self._due, (time_s, next(self._numbers), happening))

    def happen(self) -> None:
        """Let happen what is due."""
        while self._due and self._due[0][0] <= self.time_s:
            at_s, _, happening = heapq.heappop(self._due)
            happening(at_s)

    def skip(self, most_s: float | None) -> bool:
        """Go on to what happens next; False where that is nothing, or later than `most_s` from now."""
        if not self._due or (most_s is not None and self._due[0][0] > self.time_s + most_s):
            return False
        self.time_s = max(self.time_s, self._due[0][0])
        return True


class SimulatedRunner:
    """Runs steps on a device that takes time: answers are letters by their request's seed, and as long as that says."""

    def __init__(self, time: SimulatedTime, slots: int, letters: Sequence[int]) -> None:
        self._time = time
        self._device = Device()
        self._letters = np.array(letters, dtype=np.int32)
        self._seeds = np.zeros(slots, dtype=np.int64)
        self._lengths = np.zeros(slots, dtype=np.int64)

    def launch(self, plan: StepPlan) -> SimulatedStep:
        """Begin a step."""
        for setup in plan.setups:
            assert setup.params.seed is not None
            self._seeds[setup.slot] = setup.params.seed & 0xFFFFFFFF
            self._lengths[setup.slot] = length_of_seed(setup.params.seed)
        return SimulatedStep(self, plan)

    def run(self, plan: StepPlan) -> StepResult:
        """Let the step's time pass; returns what it samples."""
        seconds = self._device.step_s(plan) + SAMPLE_S_A_ROW * len(plan.sample_rows)
        self._time.time_s += seconds
        scored = len(plan.score_tokens)
        return StepResult(
            step=plan.step,
            token_ids=self._sample(plan),
            logprobs=np.full(len(plan.sample_rows), np.nan, dtype=np.float32),
            top_logprobs=(None,) * len(plan.sample_rows),
            score_logprobs=_scores(plan.score_targets),
            score_top=(np.empty((scored, 0), dtype=np.int32), np.empty((scored, 0), dtype=np.float32)),
            device_s=seconds,
        )

    def _sample(self, plan: StepPlan) -> Int32Array:
        slots, positions = plan.slots[plan.sample_rows], plan.output_positions.astype(np.int64)
        drawn = (self._seeds[slots] + 1) * (positions * 2654435761 + 97) >> 13
        token_ids: Int32Array = self._letters[drawn % len(self._letters)]
        token_ids[positions >= self._lengths[slots] - 1] = END_ID
        return token_ids


class SimulatedStep:
    """A step in flight."""

    def __init__(self, runner: SimulatedRunner, plan: StepPlan) -> None:
        self._runner = runner
        self._plan = plan

    def sample(self, masks: StepMasks | None = None) -> None:
        """Have its rows sampled; no program here has a grammar."""

    def result(self) -> StepResult:
        """Wait until it is done."""
        return self._runner.run(self._plan)


def _scores(targets: Int32Array) -> Float32Array:
    """Log-probabilities by token, so that a select is decided by its choices alone."""
    return -((targets * 37 % 101).astype(np.float32) + 1)


class SimulatedEngine:
    """The engine, and its time.

    Attributes:
        host: where programs are opened.
    """

    def __init__(self, config: EngineConfig, pool_tokens: int) -> None:
        self.time = SimulatedTime()
        self._requests: dict[str, RunRequest] = {}
        self.tokenizer = _tokenizer()
        sizes = config.sizes_for("cuda")
        letters = [self.tokenizer.encode_text(chr(letter))[0] for letter in _LETTERS]
        self.runner = SimulatedRunner(self.time, sizes.max_running_requests, letters)
        self.scheduler = Scheduler(
            self.runner,
            config=config,
            num_pages=pool_tokens // sizes.page_size,
            page_size=sizes.page_size,
            context_length=CONTEXT_LENGTH,
            sizes=sizes,
            clock=self.time,
        )
        self._messages: list[ToScheduler] = []
        self._detokenizer = Detokenizer(self.tokenizer.token_bytes)
        self.host = ProgramHost(self.tokenizer, send=self._messages.append, seed=1, clock=self.time)
        intake = Intake(self.tokenizer.token_bytes, self.tokenizer.end_ids, self.wake, page_size=sizes.page_size)
        self._loop = SchedulerLoop(self.scheduler, intake, self, self._take_news, clock=self.time)

    def open(self, events: EventSink, options: SessionOptions) -> HostedProgram:
        """Open a program."""
        return self.host.open(events, options)

    @property
    def requests(self) -> list[RunRequest]:
        """All that were run."""
        return list(self._requests.values())

    def stats(self) -> SchedulerStats:
        """What the scheduler has done."""
        return self.scheduler.stats()

    def run(self, unfinished: Callable[[], bool]) -> None:
        """Run until nothing is left that could happen."""
        self._loop.run()
        assert not unfinished()
        if self.scheduler.has_work or len(self.host):
            raise AssertionError(f"nothing happens any more, but not all is done: {self.scheduler.stats()}")

    # -- the scheduler's inbox --------------------------------------------------------------------------------------

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        """The messages that have come by now; where the scheduler has nothing to do, those that come next."""
        self.time.happen()
        while not self._messages and wait_s != 0:
            if not self.time.skip(wait_s):
                if wait_s is None:
                    self._loop.stop()
                else:
                    self.time.time_s += wait_s
                break
            self.time.happen()
        taken = tuple(self._messages)
        self._messages.clear()
        for message in taken:
            if isinstance(message, NewRequest):
                prompt = np.frombuffer(message.prompt_ids, dtype=np.int32)
                self._requests[message.id] = RunRequest(prompt, self.time.time_s)
        return taken

    def wake(self) -> None:
        """Nobody waits."""

    def _take_news(self, news: FromScheduler) -> None:
        assert isinstance(news, StepOutput)
        for output in news.outputs:
            if output.end is not None:
                self._ended(output)
        self.host.deliver(self._detokenizer.process(news).outputs)

    def _ended(self, output: RequestOutput) -> None:
        request, end = self._requests[output.id], output.end
        assert end is not None
        if end.failure is not None:
            raise AssertionError(f"request {output.id} failed: {end.failure.message}")
        request.started_s = request.arrived_s + (end.queue_s or 0.0)
        request.ended_s = self.time.time_s
        request.cached_tokens = end.cached_tokens
        request.output_ids = end.kept_ids


@cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.load(fake_model.write_folder(Path(folder)))
