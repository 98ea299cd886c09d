"""Turns, and the age of waiting requests."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fakes import make_request

from palmette.runtime.ageing import PRIORITY_S, AgeingQueue, turn
from palmette.runtime.request import Request


def waiting(name: str, arrival: int, *, arrived_s: float = 0.0, priority: int = 0) -> Request:
    request = make_request(name, [3])
    request.arrival, request.turn_s, request.priority = arrival, arrived_s, priority
    return request


def begin(queue: AgeingQueue, request: Request, now_s: float) -> None:
    request.move_to("running")
    queue.begun([request], now_s)


def ids(requests: object) -> str:
    assert isinstance(requests, list)
    return "".join(request.id for request in requests)


def test_a_level_of_priority_is_a_head_start() -> None:
    """A turn comes in order of arrival, each level of priority a minute earlier."""
    early, late = waiting("e", 0, arrived_s=0.0), waiting("l", 1, arrived_s=100.0)
    assert turn(early) < turn(late)
    late.priority = 1
    assert turn(early) < turn(late)
    late.priority = 2
    assert turn(late) < turn(early)
    assert PRIORITY_S == 60


def test_who_is_passed_ages_and_who_is_not_does_not() -> None:
    """Two seconds after a later request began, those before it are aged; those after it are not."""
    queue = AgeingQueue(2.0)
    requests = [waiting(name, place) for place, name in enumerate("abcd")]
    for request in requests:
        queue.add(request)
    begin(queue, requests[2], 10.0)
    queue.grow_older(11.9)
    assert (ids(queue.aged), ids(queue.young(9))) == ("", "abd")
    queue.grow_older(12.0)
    assert (ids(queue.aged), ids(queue.young(9))) == ("ab", "d")
    queue.grow_older(1000.0)
    assert ids(queue.young(9)) == "d"


def test_beginning_in_turn_passes_nobody() -> None:
    """First come, first served never ages anybody, however long they wait."""
    queue = AgeingQueue(2.0)
    requests = [waiting(name, place) for place, name in enumerate("abc")]
    for request in requests:
        queue.add(request)
    begin(queue, requests[0], 0.0)
    queue.grow_older(100.0)
    assert (ids(queue.aged), ids(queue.young(9))) == ("", "bc")


def test_without_patience_one_passing_is_enough() -> None:
    """max_wait_s=0: whoever was passed goes first from the next step on."""
    queue = AgeingQueue(0.0)
    first, second = waiting("a", 0), waiting("b", 1)
    queue.add(first)
    queue.add(second)
    begin(queue, second, 1.0)
    queue.grow_older(1.0)
    assert ids(queue.aged) == "a"


def test_a_retracted_request_keeps_its_age() -> None:
    """Age is counted from the first passing, also where the request ran in between."""
    queue = AgeingQueue(2.0)
    old, other = waiting("a", 0), waiting("b", 1)
    queue.add(old)
    queue.add(other)
    begin(queue, other, 1.0)
    begin(queue, old, 1.5)
    old.move_to("waiting")
    queue.add(old)
    queue.grow_older(3.0)
    assert ids(queue.aged) == "a"
    begin(queue, old, 3.0)
    old.move_to("waiting")
    queue.add(old)
    assert ids(queue.aged) == "a"


def test_what_is_noted_stays_in_proportion_to_what_waits() -> None:
    """With a long patience nothing is kept of requests that are gone."""
    queue = AgeingQueue(1e6)
    for place in range(0, 4000, 2):
        passed, first = waiting("p", place), waiting("f", place + 1)
        queue.add(passed)
        queue.add(first)
        begin(queue, first, float(place))
        begin(queue, passed, float(place))
        queue.check_invariants()
    assert len(queue) == 0
    assert queue._noted < 200


class AgeingMachine(RuleBasedStateMachine):
    """Random arrivals, beginnings, retractions and ends. The model notes by itself who was passed when."""

    @initialize(max_wait_s=st.sampled_from([0.0, 2.0, 1e6]))
    def start(self, max_wait_s: float) -> None:
        self.queue = AgeingQueue(max_wait_s)
        self.max_wait_s = max_wait_s
        self.now_s = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.passed_s: dict[str, float] = {}
        self.count = 0

    @rule(priority=st.integers(-1, 1))
    def add(self, priority: int) -> None:
        request = waiting(f"r{self.count}", self.count, arrived_s=self.now_s, priority=priority)
        self.count += 1
        self.queue.add(request)
        self.waiting.append(request)

    @rule(data=st.data(), count=st.integers(1, 3))
    def begin(self, data: st.DataObject, count: int) -> None:
        if not self.waiting:
            return
        begun = data.draw(st.lists(st.sampled_from(self.waiting), min_size=1, max_size=count, unique=True))
        for request in begun:
            request.move_to("running")
            self.waiting.remove(request)
            self.running.append(request)
        self.queue.begun(begun, self.now_s)
        last = max(turn(request) for request in begun)
        for request in self.waiting:
            if turn(request) < last:
                self.passed_s.setdefault(request.id, self.now_s)

    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        if self.running:
            request = data.draw(st.sampled_from(self.running))
            request.move_to("waiting")
            self.running.remove(request)
            self.queue.add(request)
            self.waiting.append(request)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.waiting:
            request = data.draw(st.sampled_from(self.waiting))
            request.abort()
            self.queue.discard(request)
            self.queue.discard(request)
            self.waiting.remove(request)

    @rule(seconds=st.sampled_from([0.5, 3.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def laws(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.check_invariants()
        self.queue.grow_older(self.now_s)
        self.queue.check_invariants()
        due_s = self.now_s - self.max_wait_s
        in_turn = sorted(self.waiting, key=turn)
        aged = [request.id for request in in_turn if self.passed_s.get(request.id, 1e9) <= due_s]
        assert [request.id for request in self.queue.aged] == aged
        young = [request.id for request in in_turn if request.id not in aged]
        assert [request.id for request in self.queue.young(4)] == young[:4]
        assert len(self.queue) == len(self.waiting)
        assert {request.id for request in self.queue} == {request.id for request in self.waiting}


AgeingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAgeing = AgeingMachine.TestCase
