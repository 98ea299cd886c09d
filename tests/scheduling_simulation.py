"""The real scheduler on a device that takes simulated time, under streams of arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fake_runner import BoolArray, FakeClock, FakeModel, FakeRunner
from tests.fakes import make_request

from palmette.runtime.batch import Int32Array
from palmette.runtime.config import EngineConfig
from palmette.runtime.messages import ProgramPlace
from palmette.runtime.request import Request
from palmette.runtime.scheduler import Scheduler


@dataclass(frozen=True)
class Arrival:
    """A request to come: `max_tokens` is also how long its answer is."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int
    priority: int = 0
    group: str | None = None
    place: ProgramPlace | None = None


@dataclass(frozen=True)
class Device:
    """Sizes, and the time that a step takes: so much itself, and so much for each token it computes."""

    num_pages: int
    slots: int
    chunk_size: int = 2048
    step_s: float = 0.010
    token_s: float = 20e-6


@dataclass
class Outcome:
    """What became of the arrivals, in their order, and the moments at which requests began."""

    requests: list[Request]
    begun: list[tuple[float, Request]] = field(default_factory=list)
    ended_s: float = 0.0
    retractions: int = 0

    def waits_s(self) -> list[float]:
        """How long each waited before it first ran."""
        return [request.started_s - request.arrived_s for request in self.requests if request.started_s is not None]

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that came from the radix cache."""
        prompts = sum(len(request.prompt_ids) for request in self.requests)
        return sum(request.cached_tokens for request in self.requests) / prompts


class OneWord(FakeModel):
    """A model that says the same token always, at no cost: here only time matters."""

    def draw(self, context: Int32Array, allowed: BoolArray, salt: bytes = b"") -> int:
        return 5


def simulate(arrivals: Sequence[Arrival], device: Device, *, until: int | None = None, **settings: Any) -> Outcome:
    """Run the arrivals, which are in order of time, through a scheduler.

    Args:
        until: stop when the arrival of this number has begun.
        settings: of the engine's config.
    """
    clock = FakeClock()
    runner = FakeRunner(num_pages=device.num_pages, page_size=1)
    runner.model = OneWord()
    scheduler = Scheduler(
        runner,
        config=EngineConfig(
            **{"seed": 1, "max_running_requests": device.slots, "chunk_size": device.chunk_size, **settings}
        ),
        num_pages=device.num_pages,
        page_size=1,
        context_length=1 << 20,
        clock=clock,
    )
    outcome = Outcome([_request(str(place), arrival) for place, arrival in enumerate(arrivals)])
    waiting: dict[str, Request] = {}
    place = 0
    while place < len(arrivals) or scheduler.has_work:
        if not scheduler.has_work:
            clock.time_s = max(clock.time_s, arrivals[place].at_s)
        while place < len(arrivals) and arrivals[place].at_s <= clock.time_s:
            request = outcome.requests[place]
            scheduler.add(request)
            waiting[request.id] = request
            place += 1
        computed, now_s = runner.computed, clock.time_s
        scheduler.step()
        clock.time_s += device.step_s + device.token_s * (runner.computed - computed)
        for request in [request for request in waiting.values() if request.started_s is not None]:
            outcome.begun.append((now_s, waiting.pop(request.id)))
        if until is not None and outcome.requests[until].started_s is not None:
            break
    outcome.ended_s, outcome.retractions = clock.time_s, scheduler.stats().retractions
    return outcome


def _request(name: str, arrival: Arrival) -> Request:
    request = make_request(name, arrival.prompt, max_tokens=arrival.max_tokens, ignore_eos=True, group=arrival.group)
    request.priority, request.place = arrival.priority, arrival.place
    return request
