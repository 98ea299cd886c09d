"""Prefixes that are kept for programs that will go on from them.

When a request of a program ends, the program may continue its text: at once, after a tool has run, or when a user has
read the answer. Until then its pages stay locked in the radix cache, as far as they are worth their room.

**What a prefix is worth.** To keep n tokens of a pool of N for t seconds takes n/N of the pool for t seconds. To
compute them again takes n/N of the time T in which the device computes as many tokens as the pool holds. So a prefix is
worth keeping if the program comes back with probability p within t < p T, however long the prefix is. With 8B shapes on
one H200, T is about 17 s. What is expected back latest, t / p, is given up first. What is worth keeping is given up for
requests that run already, for those of programs that came earlier, and where nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .clock import Clock
from .program_table import Program, ProgramTable
from .radix_cache import RadixCache
from .radix_node import RadixNode

LOOKED_S = 0.01
"""What is not worth its room any more is found out so often at most."""


class KeptPrefixes:
    """Handles on prefixes of the radix cache, by program and request.

    Attributes:
        programs: is told when it is not to count on a program any more.

    Args:
        pool_tokens: that the KV pool holds.
    """

    def __init__(self, cache: RadixCache, programs: ProgramTable, pool_tokens: int, clock: Clock) -> None:
        self.programs = programs
        self._cache = cache
        self._pool_tokens = pool_tokens
        self._clock = clock
        self._handles: dict[Program, dict[str, RadixNode]] = {}
        self._tokens_per_s = 0.0
        self._looked_s = float("-inf")

    def __len__(self) -> int:
        """Programs that something is kept for."""
        return len(self._handles)

    def measured(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens in so many seconds. The quickest count, of late."""
        if seconds > 0:
            self._tokens_per_s = max(0.9999 * self._tokens_per_s, tokens / seconds)

    def add(self, program: Program, request_id: str, handle: RadixNode) -> None:
        """Keep a prefix, whose handle is this object's from now on."""
        self._handles.setdefault(program, {})[request_id] = handle

    def drop(self, program: Program, request_ids: Iterable[str]) -> None:
        """Keep the prefixes of these requests no longer."""
        handles = self._handles.get(program, {})
        for request_id in request_ids:
            if (handle := handles.pop(request_id, None)) is not None:
                self._cache.unlock(handle)
                if not handles:
                    del self._handles[program]
                    self.programs.give_up(program)

    def drop_all(self, program: Program) -> None:
        """Keep nothing for a program."""
        self.drop(program, [*self._handles.get(program, ())])

    def left(self, program: Program) -> None:
        """A request of a program has ended, and what is kept of it was added."""
        if program not in self._handles:
            self.programs.give_up(program)

    def clear(self) -> None:
        """Keep nothing."""
        for program in [*self._handles]:
            self.drop_all(program)

    def give_up_stale(self, enough: Callable[[], bool]) -> bool:
        """Give up what is not worth its room until there is enough; whether there is."""
        now_s = self._clock.now()
        if now_s < self._looked_s + LOOKED_S or not self._tokens_per_s:
            return False
        self._looked_s = now_s
        worth_s = self._pool_tokens / self._tokens_per_s
        waits = [(program.expected_wait_s(now_s), program.arrival, program) for program in self._handles]
        return self._give_up([each for each in waits if each[0] > worth_s], enough)

    def give_up_any(self, enough: Callable[[], bool], *, after: Program | None = None) -> bool:
        """Give up what is kept for any program, or for those that came after `after`, until there is enough."""
        now_s = self._clock.now()
        programs = [each for each in self._handles if after is None or each.arrival > after.arrival]
        return self._give_up([(each.expected_wait_s(now_s), each.arrival, each) for each in programs], enough)

    def _give_up(self, waits: list[tuple[float, int, Program]], enough: Callable[[], bool]) -> bool:
        """Those first that are expected back latest, and of those with requests that which came last."""
        waits.sort()
        while waits:
            _, _, program = waits.pop()
            self.drop_all(program)
            if enough():
                return True
        return False

    def check_invariants(self) -> None:
        """Raise AssertionError unless something is kept for every program here, and only open ones are counted on."""
        self.programs.check_invariants(counted_on=self._handles.keys())
        assert all(self._handles.values())
        assert not any(program.ended for program in self._handles)
        assert all(handle.handles > 0 for handles in self._handles.values() for handle in handles.values())
