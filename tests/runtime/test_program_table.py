"""What is known of open programs, and what their runs teach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import make_request
from tests.program_calls import make_call

from palmette.runtime.program_table import HEAD_START_S, MOST_KINDS, Average, Program, ProgramKind, ProgramTable
from palmette.runtime.request import Request


class Table(ProgramTable):
    """A table that is told of calls as a scheduler tells it."""

    arrivals = 0

    def come(self, program: str, at_s: float, *, name: str = "agent", later_tokens: int = 0) -> Request:
        request = make_call(program, f"r{self.arrivals}", [3], name=name, later_tokens=later_tokens)
        request.arrived_s, request.arrival = at_s, self.arrivals
        request.turn_s = self.turn_s(request)
        self.arrivals += 1
        self.enter(request)
        return request

    def go(self, request: Request, at_s: float, *, computed: int = 0) -> None:
        request.ended_s, request.computed_tokens = at_s, computed
        self.leave(request)

    def run(self, program: str, tokens: int, *, name: str = "agent", calls: int = 1, away_s: float = 0.0) -> None:
        """A whole run of equal calls."""
        now_s = 0.0
        for _ in range(calls):
            request = self.come(program, now_s, name=name)
            self.begin(known(request), tokens)
            self.go(request, now_s, computed=tokens)
            now_s += away_s
        self.end(program)


def known(request: Request) -> Program:
    assert request.program is not None
    return request.program


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_an_average_lies_between_its_values(values: list[float]) -> None:
    """The first value takes the guess's place; the mean of up to twenty is the plain one."""
    average = Average(1e9)
    for value in values:
        average.add(value)
    assert min(values) - 1e-3 <= average.value <= max(values) + 1e-3
    if len(values) <= 20:
        assert average.value == pytest.approx(sum(values) / len(values))


def test_later_calls_of_a_begun_program_have_its_head_start() -> None:
    """Before it begins its calls come in turn; then they come before everything of the minute before it."""
    table = Table()
    first = table.come("p", 100.0)
    assert table.come("p", 101.0).turn_s == 101.0
    table.begin(known(first), 5)
    assert table.come("p", 130.0).turn_s == 100.0 - HEAD_START_S
    assert table.come("other", 130.0).turn_s == 130.0


def test_a_program_that_never_ends_comes_after_others_in_the_end() -> None:
    """Its calls count as at most two minutes older than they are."""
    table = Table()
    table.begin(known(table.come("p", 0.0)), 5)
    assert table.come("p", 1000.0).turn_s == 1000.0 - 2 * HEAD_START_S


def test_a_request_of_no_program_has_the_turn_of_its_arrival() -> None:
    """Nothing is known of it, and nothing happens for it."""
    table, request = ProgramTable(), make_request("r", [3])
    request.arrived_s = 4.0
    assert table.turn_s(request) == 4.0
    table.enter(request)
    table.leave(request)
    assert request.program is None
    table.check_invariants(counted_on=set())


def test_what_a_run_took_is_expected_of_the_next() -> None:
    """Of the second run of a name so much room is promised as the first took, less what it has taken."""
    table = Table()
    table.run("a", 50, calls=2)
    program = known(request := table.come("b", 0.0))
    assert table.promised == 0
    table.begin(program, 30)
    assert table.promised == program.room_left == 70
    table.begin(program, 90)
    assert table.promised == 0
    table.go(request, 1.0, computed=30)
    assert program.work_left == 70


def test_of_an_unknown_program_as_much_again_is_expected() -> None:
    """A name that was never seen before is expected to be half done."""
    table = Table()
    table.begin(program := known(table.come("p", 0.0)), 30)
    table.begin(program, 10)
    assert table.promised == 40
    assert program.work_left == 0


def test_what_a_request_really_took_counts_in_the_end() -> None:
    """Its answer may have been shorter than expected, and some of its prompt was cached."""
    table = Table()
    request = table.come("p", 0.0)
    request.expected_room, request.started_s, request.cached_tokens = 40, 0.0, 0
    table.begin(program := known(request), 40)
    table.go(request, 1.0)
    assert program.room == len(request.token_ids) == 1


def test_names_are_told_apart() -> None:
    """What one program took says nothing of another."""
    table = Table()
    table.run("a", 50, name="x")
    assert known(table.come("b", 0.0, name="x")).kind.room.value == 50
    assert not known(table.come("c", 0.0, name="y")).kind.room.count


def test_a_program_that_is_away_with_nothing_kept_is_not_counted_on() -> None:
    """Its promise ends, and comes back with its next call."""
    table = Table()
    table.begin(program := known(request := table.come("p", 0.0)), 30)
    table.give_up(program)
    assert table.promised == 30  # it has a request
    table.go(request, 1.0)
    table.give_up(program)
    assert table.promised == 0
    table.check_invariants(counted_on=set())
    table.come("p", 2.0)
    assert table.promised == 30
    table.end("p")
    assert table.promised == 0


def test_who_was_stopped_teaches_nothing() -> None:
    """A program that ends with requests was aborted: how much it would have taken is not known."""
    table = Table()
    table.begin(known(table.come("p", 0.0)), 30)
    kind = known(table.come("p", 0.0)).kind
    ended = table.end("p")
    assert ended is not None
    assert ended.ended
    assert not kind.room.count
    assert not kind.returns.count


def test_what_comes_after_the_end_changes_nothing() -> None:
    """A request that begins or ends after its program did promises nothing; unknown programs end without a word."""
    table = Table()
    program = known(request := table.come("p", 0.0))
    table.end("p")
    table.begin(program, 30)
    table.go(request, 1.0)
    assert table.promised == 0
    assert table.find("p") is None
    assert table.end("p") is None
    table.check_invariants(counted_on=set())


def test_how_long_a_program_is_away_is_learned() -> None:
    """Away times count between the last of its requests and the next one, and the end is no return."""
    table = Table()
    table.run("a", 1, calls=5, away_s=3.0)
    kind = known(table.come("b", 0.0)).kind
    assert kind.away_s.value == pytest.approx(3.0)
    assert kind.returns.value == pytest.approx(0.8)


def test_siblings_are_one_time_away() -> None:
    """While one of a program's requests is active it is not away."""
    table = Table()
    first, second = table.come("p", 0.0), table.come("p", 0.0)
    table.go(first, 1.0)
    table.come("p", 2.0)
    kind = known(second).kind
    assert not kind.away_s.count
    assert not kind.returns.count


def test_the_expected_wait() -> None:
    """Nothing while it has requests; then what is left of the usual time, by how likely it comes back, or the delay."""
    kind = ProgramKind(away_s=Average(4.0, 9), returns=Average(0.5, 9))
    program = Program("p", kind, 0.0, 0, active=1, away_since_s=10.0)
    assert program.expected_wait_s(13.0) == 0
    program.active = 0
    assert [program.expected_wait_s(now_s) for now_s in (10.0, 13.0, 14.0, 24.0)] == [8, 2, 0, 20]
    kind.returns.value = 0.0
    assert program.expected_wait_s(12.0) == float("inf")


def test_what_a_call_took_replaces_what_was_expected_of_it() -> None:
    """The room of a program whose calls have ended is that of their tokens which were not in the cache."""
    table = Table()
    table.run("before", 50)
    request = table.come("p", 0.0)
    table.begin(program := known(request), 30)
    request.expected_room, request.started_s, request.cached_tokens = 30, 0.0, 0
    assert (program.room, table.promised) == (30, 20)
    table.go(request, 1.0)
    assert (program.room, table.promised) == (1, 49)


def test_only_the_names_used_last_are_remembered() -> None:
    """However many names there are, memory is bounded."""
    table = Table()
    table.run("a", 7, name="kept")
    for number in range(2 * MOST_KINDS):
        table.run("b", 1, name=f"n{number}")
        if number % 1000 == 0:
            table.run("a", 7, name="kept")
    assert len(table._kinds) == MOST_KINDS
    assert table._kinds["kept"].room.value == pytest.approx(7)
    assert not table._programs
