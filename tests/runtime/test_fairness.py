"""Nobody starves: the bound of ageing.py on the real scheduler, on a device that takes simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling_simulation import Arrival, Device, Outcome, simulate

from palmette.runtime.admission import OutputEstimate
from palmette.runtime.ageing import AgeingQueue, turn
from palmette.runtime.messages import ProgramPlace
from palmette.runtime.program_table import HEAD_START_S
from palmette.runtime.request import Request

SMALL = Device(num_pages=2500, slots=8, chunk_size=256)
MAX_WAIT_S = 2.0


def text(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, 46) for _ in range(length)]


class Audit:
    """Watches every beginning, those after a retraction too, and raises where an aged request is passed over.

    A running request that computes a prefix for it is an excuse, once.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.max_wait_s = max_wait_s
        self.passed_s: dict[Request, float] = {}
        self.excuses: dict[Request, Request] = {}
        self.beginnings = 0

    def watch(self, begun: Callable[[AgeingQueue, Iterable[Request], float], None]) -> Callable[..., None]:
        def watched(queue: AgeingQueue, requests: list[Request], now_s: float) -> None:
            self.look(queue, requests, now_s)
            begun(queue, requests, now_s)

        return watched

    def look(self, queue: AgeingQueue, requests: list[Request], now_s: float) -> None:
        self.beginnings += len(requests)
        last = max((turn(request) for request in requests), default=(float("-inf"), 0))
        for request in queue:
            if request not in requests and turn(request) < last and not self.is_excused(request):
                since_s = self.passed_s.setdefault(request, now_s)
                assert now_s == since_s or now_s - since_s < self.max_wait_s, (request.id, since_s, now_s)

    def is_excused(self, request: Request) -> bool:
        other = request.waits_for
        if other is None or self.excuses.setdefault(request, other) is not other:
            return False
        return other.status == "running" and other.prefilling


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Audit:
    watcher = Audit(MAX_WAIT_S)
    monkeypatch.setattr(AgeingQueue, "begun", watcher.watch(AgeingQueue.begun))
    return watcher


def hits_for_ever(seconds: float, *, rate: float = 60.0, cold_every: int = 40) -> list[Arrival]:
    """A stream of requests with one long prefix, more than the device can take; a few have another prompt."""
    source = random.Random(1)
    prefix = text(source, 300)
    return [
        Arrival(place / rate, text(source, 300) if place % cold_every == 30 else [*prefix, *text(source, 5)], 24)
        for place in range(int(seconds * rate))
    ]


def mixed(count: int, seed: int) -> list[Arrival]:
    """Bursts and streams of all lengths, groups, priorities, prefixes and programs."""
    source = random.Random(seed)
    prefixes = [text(source, source.randrange(10, 500)) for _ in range(5)]
    arrivals, now_s = [], 0.0
    for number in range(count):
        now_s += source.choice([0.0, 0.0, 0.01, source.expovariate(20.0), 0.5])
        prompt = source.choice(prefixes)[: source.randrange(1, 500)] + text(source, source.choice([1, 10, 200]))
        group = source.choice([None, f"g{number // 4}"])
        program = source.choice([None, None, *"abc"])
        place = None if program is None else ProgramPlace(id=program, name="agent", continued=source.random() < 0.7)
        tokens, priority = source.choice([1, 8, 60, 250]), source.choice([0, 0, 0, 1, -1])
        arrivals.append(Arrival(now_s, prompt, tokens, priority, group, place))
    return arrivals


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "least-work", "random"])
def test_the_bound_holds_under_random_load(policy: str, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds after a request was first passed over nobody does it again: retracted ones and siblings included."""
    for name in ("START", "LOWEST", "RISE", "MOVE", "FIRST_MOVE"):
        monkeypatch.setattr(OutputEstimate, name, 0.0)  # it expects no output at all, so there are retractions
    outcome = simulate(mixed(250, 1), SMALL, policy=policy)
    assert all(request.started_s is not None for request in outcome.requests)
    assert audit.beginnings == 250 + outcome.retractions
    assert outcome.retractions > 0
    assert len(audit.passed_s) > 50 or policy == "fcfs"


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 30), policy=st.sampled_from(["lpm", "dfs-weight", "least-work", "random"]))
def test_the_bound_holds_for_any_load(seed: int, policy: str) -> None:
    """The same for arrivals that hypothesis chooses."""
    watcher = Audit(MAX_WAIT_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AgeingQueue, "begun", watcher.watch(AgeingQueue.begun))
        simulate(mixed(40, seed), SMALL, policy=policy)


def alone_with_the_work_ahead(arrivals: list[Arrival], place: int, **config: Any) -> float:
    """How long an arrival waits where nothing comes after it: the time of the work ahead of it when it came."""
    return simulate(arrivals[: place + 1], SMALL, until=place, **config).waits_s()[-1]


def longest_run_s(outcome: Outcome) -> float:
    """The longest time from a request's beginning to its end."""
    return max(
        request.ended_s - request.started_s
        for request in outcome.requests
        if request.ended_s is not None and request.started_s is not None
    )


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random"])
def test_no_request_waits_past_the_bound(policy: str, audit: Audit) -> None:
    """Under a stream of hits: at most 2 s, the time of the work ahead, and the run of one that passed it."""
    arrivals = hits_for_ever(6.0)
    outcome = simulate(arrivals, SMALL, policy=policy)
    longest_s = longest_run_s(outcome)
    for place in (30, 70, 190, 350):  # cold ones
        request = outcome.requests[place]
        assert request.started_s is not None
        wait_s = request.started_s - request.arrived_s
        ahead_s = alone_with_the_work_ahead(arrivals, place, policy=policy)
        assert wait_s <= MAX_WAIT_S + ahead_s + longest_s, (place, wait_s, ahead_s, longest_s)
    assert any(request.aged for request in outcome.requests)


def test_without_ageing_they_starve() -> None:
    """The stream of hits is one that needs the bound: without it the first cold request waits for all of it."""
    arrivals = hits_for_ever(8.0)
    starved = simulate(arrivals, SMALL, max_wait_s=1e6)
    aged = simulate(arrivals, SMALL)
    assert starved.waits_s()[30] > 2 * aged.waits_s()[30]
    assert starved.waits_s()[30] > 5


def test_ageing_keeps_most_of_the_hit_rate() -> None:
    """Shuffled questions on documents that do not all fit: far more hits than in order of arrival."""
    source = random.Random(2)
    texts = [text(source, 400) for _ in range(15)]
    prompts = [texts[place % 15] + text(source, 20) for place in range(300)]
    source.shuffle(prompts)
    arrivals = [Arrival(0.0, prompt, 8) for prompt in prompts]
    in_turn = simulate(arrivals, SMALL, policy="fcfs").hit_rate
    aged, unaged = (simulate(arrivals, SMALL, max_wait_s=max_wait_s).hit_rate for max_wait_s in (MAX_WAIT_S, 1e6))
    assert aged > 1.3 * in_turn
    assert unaged >= aged > 0.6 * unaged


def test_a_stream_of_higher_priority_starves_nobody(audit: Audit) -> None:
    """A request of a lower level gets its turn a minute for each level later, and the two seconds."""
    source = random.Random(3)
    low = Arrival(0.0, text(source, 20), 1)
    stream = [Arrival(place * 0.99, text(source, 20), 10, priority=1) for place in range(100)]  # more than it can take
    outcome = simulate([stream[0], low, *stream[1:]], Device(num_pages=2500, slots=1, step_s=0.1), until=1)
    assert 60 < outcome.waits_s()[1] < 60 + MAX_WAIT_S + 3


def calls_for_ever(seconds: float) -> list[Arrival]:
    """A program that never ends, whose calls are all that the device can take, and one other request after a while."""
    source = random.Random(4)
    place = ProgramPlace(id="agent", name="agent", continued=True)
    calls = [Arrival(at_s * 0.99, text(source, 20), 10, place=place) for at_s in range(int(seconds))]
    return [*calls[:5], Arrival(4.5, text(source, 20), 1), *calls[5:]]


def test_a_program_that_never_ends_starves_nobody(audit: Audit) -> None:
    """Its calls of two minutes go before who came after it, and then they do not."""
    outcome = simulate(calls_for_ever(160.0), Device(num_pages=2500, slots=1, step_s=0.1), until=5, policy="fcfs")
    assert 2 * HEAD_START_S - 5 < outcome.waits_s()[5] < 2 * HEAD_START_S + MAX_WAIT_S + 5
