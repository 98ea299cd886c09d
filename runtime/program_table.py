"""The programs that the scheduler's requests belong to, and what their earlier runs teach of them.

A request alone says little of what comes after it. A program says more: its name was seen before, some of its calls are
known to follow, and it has begun, which gives all of its calls their place in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Request

HEAD_START_S = 60.0
"""The calls of a program that has begun count as having come so long before the program did."""

DECODE_WEIGHT = 3.0
"""Time that a token of output takes, in prompt tokens.

With 8B shapes on an H200 a token of a prompt of 8192 takes 21 us, and one that is decoded in a batch of 256 requests of
1000 tokens about 60 us (docs/benchmarks.md).
"""

MOST_KINDS = 4096
"""So many names of programs are remembered, those used last."""


@dataclass(slots=True)
class Average:
    """A mean of the last twenty values or so; of the first ones, the plain mean.

    Attributes:
        value: a guess, as long as there is none.
    """

    value: float
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        share = max(0.05, 1 / self.count)
        self.value = (1 - share) * self.value + share * value


@dataclass(eq=False, slots=True)
class ProgramKind:
    """What the runs of one program had in common so far.

    Attributes:
        away_s: how long it was away: between the end of the last of its requests and its next one.
        returns: how often it came back from that; else it had ended.
        work: of a whole run, in prompt tokens.
        room: that a whole run took of the KV pool, in tokens: those of its requests that were not in the cache.
    """

    away_s: Average = field(default_factory=lambda: Average(1.0))
    returns: Average = field(default_factory=lambda: Average(0.5))
    work: Average = field(default_factory=lambda: Average(0.0))
    room: Average = field(default_factory=lambda: Average(0.0))


@dataclass(eq=False, slots=True)
class Program:
    """One run of a program.

    Attributes:
        arrived_s, arrival: of its first request.
        begun: a request of it has begun to run.
        active: its requests that have not ended.
        away_since_s: since when there are none.
        work: of its requests that have ended, in prompt tokens.
        room: that its requests took so far, in tokens that were not in the cache: those that run, as expected.
        promised: tokens that it is expected to take yet, as far as room is left for them; none while it is away with
            nothing kept for it.
        later_tokens: most tokens of the answers that are known to come after its requests.
        ended: nothing of it comes any more.
    """

    id: str
    kind: ProgramKind
    arrived_s: float
    arrival: int
    begun: bool = False
    active: int = 0
    away_since_s: float = 0.0
    work: float = 0.0
    room: float = 0.0
    promised: float = 0.0
    later_tokens: int = 0
    ended: bool = False

    @property
    def work_left(self) -> float:
        """What earlier runs took more than this one has taken."""
        return max(0.0, self.kind.work.value - self.work)

    @property
    def room_left(self) -> float:
        """What it is expected to take yet. One that was never seen before takes as much again as it took."""
        return max(0.0, self.kind.room.value - self.room) if self.kind.room.count else self.room

    def expected_wait_s(self, now_s: float) -> float:
        """How long until it uses what is kept for it, by how likely that is; 0 while it has requests.

        It is away as long as usual; and if it is late, as long again as it is late.
        """
        if self.active:
            return 0.0
        likely = self.kind.returns.value
        wait_s = abs(self.kind.away_s.value - (now_s - self.away_since_s))
        return wait_s / likely if likely else float("inf")


class ProgramTable:
    """The programs that are open. All methods are for one thread.

    Attributes:
        promised: tokens that programs which have begun are expected to take yet.
    """

    def __init__(self) -> None:
        self.promised = 0.0
        self._programs: dict[str, Program] = {}
        self._kinds: OrderedDict[str, ProgramKind] = OrderedDict()

    def find(self, program_id: str) -> Program | None:
        """The program of this id, if it is open."""
        return self._programs.get(program_id)

    def turn_s(self, request: Request) -> float:
        """From when the turn of a request counts that comes at its `arrived_s`.

        What has begun goes on before anything else begins. A program that never ends comes, in the end, after others.
        """
        program = self._programs.get(request.place.id) if request.place is not None else None
        if program is None or not program.begun:
            return request.arrived_s
        return max(program.arrived_s - HEAD_START_S, request.arrived_s - 2 * HEAD_START_S)

    def enter(self, request: Request) -> None:
        """A request has come, at its `arrived_s`."""
        if (place := request.place) is None:
            return
        program = self._programs.get(place.id)
        if program is None:
            kind = self._kind(place.name)
            program = self._programs[place.id] = Program(place.id, kind, request.arrived_s, request.arrival)
        elif not program.active:
            program.kind.away_s.add(request.arrived_s - program.away_since_s)
            program.kind.returns.add(1.0)
        program.active += 1
        if program.begun:
            self._promise(program, program.room_left)
        program.later_tokens = place.later_tokens
        request.program = program

    def begin(self, program: Program, tokens: int) -> None:
        """A request of a program begins to run, and is expected to take so many tokens that are not in the cache.

        After a retraction it takes none that were not counted.
        """
        program.begun = True
        program.room += tokens
        self._promise(program, program.room_left)

    def give_up(self, program: Program) -> None:
        """Nothing is kept for a program any more: if it is away, it is no longer counted on."""
        if not program.active:
            self._promise(program, 0.0)

    def leave(self, request: Request) -> None:
        """A request has ended, at its `ended_s`."""
        program = request.program
        if program is None or request.ended_s is None:
            return
        program.active -= 1
        program.away_since_s = request.ended_s
        program.work += work_of(request.computed_tokens, request.num_output)
        if request.started_s is not None:
            program.room += len(request.token_ids) - request.cached_tokens - request.expected_room
            self._promise(program, program.room_left)

    def end(self, program_id: str) -> Program | None:
        """Nothing comes of a program any more; None where it is not known."""
        program = self._programs.pop(program_id, None)
        if program is None:
            return None
        program.ended = True
        self._promise(program, 0.0)
        if not program.active:  # else it was stopped, which teaches nothing
            program.kind.returns.add(0.0)
            program.kind.work.add(program.work)
            program.kind.room.add(program.room)
        return program

    def _promise(self, program: Program, tokens: float) -> None:
        tokens = 0.0 if program.ended else tokens
        self.promised += tokens - program.promised
        program.promised = tokens

    def _kind(self, name: str) -> ProgramKind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = ProgramKind()
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(name)
        return kind

    def check_invariants(self, *, counted_on: AbstractSet[Program]) -> None:
        """Raise AssertionError unless what is promised is the sum of what is promised to each program.

        Args:
            counted_on: programs that something is promised to though they have no requests now.
        """
        programs = self._programs.values()
        assert abs(self.promised - sum(program.promised for program in programs)) < 1e-3
        assert all(program.active >= 0 and not program.ended for program in programs)
        assert all(program.active or not program.promised or program in counted_on for program in programs)


def work_of(computed: float, output: float) -> float:
    """Work in prompt tokens: of all tokens computed, and how many of them were output."""
    return computed + (DECODE_WEIGHT - 1) * output
