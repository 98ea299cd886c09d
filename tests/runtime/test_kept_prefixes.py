"""Prefixes that are kept for programs, as KV memory keeps and gives them up."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fake_runner import FakeClock
from tests.program_calls import make_call

from palmette.runtime.kept_prefixes import LOOKED_S, KeptPrefixes
from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.program_table import ProgramKind, ProgramTable
from palmette.runtime.request import Request


class Memory:
    """KV memory whose device fills it in ten seconds, and calls of programs that run in it one by one."""

    def __init__(self, num_pages: int = 64, page_size: int = 1) -> None:
        self.clock = FakeClock()
        self.table = ProgramTable()
        self.kv = KVMemory(num_pages, page_size, programs=self.table, clock=self.clock)
        assert self.kv.kept is not None
        self.kept: KeptPrefixes = self.kv.kept
        self.kept.measured(num_pages * page_size, 10.0)
        self.calls = 0

    def compute(self, program: str, prompt: list[int]) -> Request:
        """A call that has computed its prompt."""
        request = make_call(program, f"r{self.calls}", prompt, name=program)
        request.arrival, request.arrived_s = self.calls, self.clock.time_s
        self.calls += 1
        self.table.enter(request)
        self.kv.attach(request, self.kv.match(request))
        self.kv.expect(request, self.kv.pages_needed(request, request.end))
        self.kv.reserve(request, request.remaining)
        request.num_computed = request.end
        return request

    def end(self, request: Request, *, keep: bool = True) -> None:
        if keep:
            self.kv.keep(request)
        self.kv.release(request)
        request.ended_s = self.clock.time_s
        self.kv.left(request)

    def call(self, program: str, prompt: list[int]) -> Request:
        request = self.compute(program, prompt)
        self.end(request)
        return request

    def finish(self, program: str) -> None:
        ended = self.table.end(program)
        if ended is not None:
            self.kept.drop_all(ended)

    @property
    def protected(self) -> int:
        assert self.kv.cache is not None
        return self.kv.cache.protected_pages


def test_a_kept_prefix_cannot_be_evicted() -> None:
    """It stays whoever needs pages, until it is dropped."""
    memory = Memory()
    request = memory.call("a", [3] * 40)
    assert memory.protected == 40
    assert memory.kv.available_pages == 24
    assert request.program is not None
    memory.kept.drop(request.program, ["unknown"])
    assert memory.protected == 40
    memory.kept.drop(request.program, [request.id, request.id])
    assert memory.protected == 0
    assert memory.kv.available_pages == 64
    memory.kept.check_invariants()


def test_a_prefix_of_two_programs_is_kept_while_one_of_them_needs_it() -> None:
    """Handles are counted: what the programs share is given back with the last of them."""
    memory = Memory()
    memory.call("a", [*[3] * 30, 4, 4])
    memory.call("b", [*[3] * 30, 5, 5])
    assert memory.protected == 34
    memory.finish("a")
    assert memory.protected == 32
    memory.finish("b")
    assert memory.protected == 0


def test_less_than_a_page_is_kept_without_harm() -> None:
    """Only whole pages are in the cache: nothing is locked, and it can be dropped all the same."""
    memory = Memory(8, 16)
    memory.call("a", [3] * 5)
    assert memory.protected == 0
    memory.kv.check_invariants([])
    memory.finish("a")
    memory.kv.check_invariants([])


def test_nothing_is_kept_for_a_program_that_is_over() -> None:
    """A request that ends after its program did leaves nothing."""
    memory = Memory()
    request = memory.compute("a", [3] * 40)
    memory.finish("a")
    memory.end(request)
    assert not len(memory.kept)
    assert memory.protected == 0
    assert memory.table.promised == 0


def test_what_is_expected_back_latest_is_given_up_first() -> None:
    """Of programs that are away those that will be so longest; of those with requests that which came last."""
    memory = Memory()
    for name in ("late", "active", "soon", "busy"):
        memory.call(name, [ord(name[0])] * 10)
    active, busy = memory.compute("active", [97] * 11), memory.compute("busy", [98] * 11)
    _kind(memory, "late").away_s.value = 9.0
    _kind(memory, "soon").away_s.value = 2.0
    order = []
    for _ in range(4):
        before = set(memory.kept._handles)
        assert memory.kept.give_up_any(lambda: True)
        order += [program.id for program in before - set(memory.kept._handles)]
    assert order == ["late", "soon", "busy", "active"]
    assert not memory.kept.give_up_any(lambda: True)
    for request in (active, busy):
        memory.end(request, keep=False)


def test_an_earlier_program_may_take_the_room_of_later_ones_only() -> None:
    """Whoever came before is safe."""
    memory = Memory()
    for name in "abc":
        memory.call(name, [ord(name)] * 20)
    second = memory.table.find("b")
    assert not memory.kv.make_available(64, after=second)
    assert {program.id for program in memory.kept._handles} == {"a", "b"}
    assert memory.kv.make_available(64)
    assert not len(memory.kept)


def test_what_is_not_worth_its_room_makes_room_for_new_programs() -> None:
    """The device fills the pool in ten seconds: at even odds a prefix is worth five of them, whatever its length."""
    memory = Memory()
    memory.call("a", [3] * 40)  # which is taken to come back after a second, at even odds
    memory.table.promised = 0.0
    assert not memory.kv.make_spare(30)
    memory.clock.time_s = 5.9
    assert not memory.kv.make_spare(30)
    memory.clock.time_s = 6.1
    assert memory.kv.make_spare(30)
    assert not len(memory.kept)


def test_whether_it_is_worth_its_room_is_not_asked_at_every_step() -> None:
    """Looking at thousands of programs takes time: once in ten milliseconds is often enough."""
    memory = Memory()
    memory.call("a", [3] * 40)
    memory.clock.time_s = 100.0
    assert not memory.kept.give_up_stale(lambda: False)
    memory.call("b", [4] * 10)
    memory.clock.time_s += LOOKED_S / 2
    _kind(memory, "b").returns.value = 0.0
    assert not memory.kept.give_up_stale(lambda: True)
    memory.clock.time_s += LOOKED_S
    assert memory.kept.give_up_stale(lambda: True)


def test_before_any_step_was_timed_everything_is_worth_its_room() -> None:
    """Nothing is known of the device yet."""
    memory = Memory()
    memory.kept._tokens_per_s = 0.0
    memory.kept.measured(100, 0.0)
    memory.call("a", [3] * 40)
    memory.clock.time_s = 1e6
    assert not memory.kv.make_spare(30)


def test_the_speed_of_the_device_is_that_of_its_quickest_steps() -> None:
    """Steps of few tokens say little of how quickly a prefix is computed."""
    memory = Memory()
    memory.kept.measured(8000, 0.1)
    memory.kept.measured(1, 0.01)
    assert 79_000 < memory.kept._tokens_per_s <= 80_000


def test_room_is_promised_while_something_is_kept() -> None:
    """What is given up, flushed or dropped is counted on no more until the next call comes."""
    memory = Memory()
    for clear in (memory.kept.clear, memory.kv.flush, lambda: memory.kept.give_up_any(lambda: False)):
        memory.call("a", [3] * 20)
        assert memory.table.promised > 0
        clear()
        assert memory.table.promised == 0
        memory.kept.check_invariants()
    memory.end(memory.compute("a", [3] * 20), keep=False)  # it failed, say
    assert memory.table.promised == 0


def _kind(memory: Memory, program: str) -> ProgramKind:
    found = memory.table.find(program)
    assert found is not None
    return found.kind


class KeptMachine(RuleBasedStateMachine):
    """Random calls of programs, and all ways in which what is kept for them goes again."""

    @initialize(page_size=st.sampled_from([1, 4]))
    def begin(self, page_size: int) -> None:
        self.memory = Memory(120 // page_size, page_size)
        self.running: list[Request] = []
        self.ended: list[Request] = []

    @rule(program=st.sampled_from("abcd"), trunk=st.integers(0, 12), tail=st.lists(st.integers(3, 5), max_size=6))
    def compute(self, program: str, trunk: int, tail: list[int]) -> None:
        prompt = [*[3] * trunk, *tail, 7]
        if self.memory.kv.make_available(len(prompt)):
            self.running.append(self.memory.compute(program, prompt))

    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        if self.running:
            request = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.memory.end(request, keep=keep)
            self.ended.append(request)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.ended:
            request = data.draw(st.sampled_from(self.ended))
            assert request.program is not None
            self.memory.kept.drop(request.program, [request.id])

    @rule(program=st.sampled_from("abcd"))
    def finish(self, program: str) -> None:
        self.memory.finish(program)

    @rule(pages=st.integers(1, 40), program=st.sampled_from("abcd"), how=st.sampled_from(["any", "after", "spare"]))
    def make_room(self, pages: int, program: str, how: str) -> None:
        kv, own = self.memory.kv, self.memory.table.find(program)
        before = [each for each in self.memory.kept._handles if own is not None and each.arrival <= own.arrival]
        if how == "spare":
            enough = kv.make_spare(pages)
        else:
            enough = kv.make_available(pages, after=own if how == "after" else None)
        assert not enough or kv.available_pages >= pages
        if how == "after" and own is not None:
            assert all(each in self.memory.kept._handles for each in before)

    @rule(seconds=st.sampled_from([0.001, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.memory.clock.time_s += seconds

    @rule()
    def flush(self) -> None:
        self.memory.kv.flush()
        assert not len(self.memory.kept)

    @invariant()
    def in_step(self) -> None:
        if hasattr(self, "memory"):
            self.memory.kv.check_invariants(self.running)

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        for request in self.running:
            self.memory.end(request)
        for program in "abcd":
            self.memory.finish(program)
        self.in_step_at_the_end()

    def in_step_at_the_end(self) -> None:
        assert not len(self.memory.kept)
        assert self.memory.protected == 0
        assert abs(self.memory.table.promised) < 1e-6
        assert not self.memory.table._programs
        self.memory.kv.check_idle()


KeptMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestKept = KeptMachine.TestCase
