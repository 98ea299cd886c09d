"""Keys and elements that must not come again, beside an automaton that cannot remember them.

The rules of a JSON schema let undeclared keys of an open object repeat among themselves, and elements of an array with
`uniqueItems`. `Distinct` follows the text itself (json_follow.py) and says which tokens of the automaton's masks must
not come. A state is an int: the automaton's own while the text so far obliges to nothing, which is nearly always and
costs nothing, else one of `FIRST_COMBINED` or more that stands for the automaton's state and a memory.

What a flagged place reads may also be read by an unflagged one (branches of an `anyOf`): the flagged reading wins, so
elements stay unique although another branch would let them repeat.

Bounds: combined states, and whatever is known of them, are forgotten when `capacity` others have been used since. The
request that still holds such a state, and no other, then gets a `GrammarLimitError`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from .distinct_bans import Bans
from .distinct_endings import ByteAutomaton, Endings
from .errors import GrammarLimitError
from .json_follow import EMPTY, Memory
from .vocabulary import Vocabulary

FIRST_COMBINED: Final = 1 << 30
_CACHED: Final = 1 << 17


class _Combined:
    """A state of the automaton with a memory beside it, and what is known of it."""

    __slots__ = ("banned", "base", "is_known", "memory", "targets")

    def __init__(self, base: int, memory: Memory) -> None:
        self.base = base
        self.memory = memory
        self.targets: dict[int, int] = {}
        self.banned: frozenset[int] | None = None
        self.is_known = False


class Distinct:
    """The states of one automaton and vocabulary, with what must not come again. One thread at a time may use it.

    Any method that takes a state raises `GrammarLimitError` for one that was forgotten.
    """

    def __init__(self, automaton: ByteAutomaton, vocabulary: Vocabulary, *, capacity: int = 100_000) -> None:
        """`capacity`: combined states that are kept, of about 1 KiB each."""
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._capacity = capacity
        self._endings = Endings(automaton, vocabulary.preferred_bytes)
        self._bans = Bans(automaton, vocabulary, self._endings)
        self._combined: OrderedDict[int, _Combined] = OrderedDict()
        self._ids: dict[tuple[int, Memory], int] = {}
        self._made = 0
        self._targets: dict[int, int | None] = {}  # from the automaton's own states, by state and token
        self._banned: dict[int, frozenset[int] | None] = {}  # in the automaton's own states
        self.start = automaton.start

    def base(self, state: int) -> int:
        """The automaton's state of `state`."""
        return state if state < FIRST_COMBINED else self._get(state).base

    def memory(self, state: int) -> Memory:
        """What the text up to `state` obliges to."""
        return EMPTY if state < FIRST_COMBINED else self._get(state).memory

    def advance(self, state: int, token_id: int) -> int | None:
        """The state after an ordinary token, or None if the automaton does not allow it or it completes a duplicate.

        Tokens that are banned only since nothing could follow them are advanced.
        """
        if state < FIRST_COMBINED:
            key = state << 24 | token_id
            known = self._targets.get(key, -1)
            if known is None or 0 <= known < FIRST_COMBINED or known in self._combined:
                return known
            if len(self._targets) >= _CACHED:
                self._targets.clear()
            target = self._targets[key] = self._advance(state, EMPTY, token_id)
            return target
        here = self._get(state)
        known = here.targets.get(token_id, -1)
        if 0 <= known < FIRST_COMBINED or known in self._combined:
            return known
        target = self._advance(here.base, here.memory, token_id)
        if target is not None:
            here.targets[token_id] = target
        return target

    def banned(self, state: int) -> frozenset[int] | None:
        """Tokens that must not come in `state` although the automaton may allow them; None where there are none.

        They would complete a duplicate, or something that can only be completed to one. Tokens that the automaton does
        not allow may be among them.
        """
        if state >= FIRST_COMBINED:
            here = self._get(state)
            if not here.is_known:
                here.banned = self._bans.find(here.base, here.memory)
                here.is_known = True
            return here.banned
        if not self._bans.may_ban_without_memory:
            return None
        if state not in self._banned:
            if len(self._banned) >= _CACHED:
                self._banned.clear()
            self._banned[state] = self._bans.find(state, EMPTY)
        return self._banned[state]

    def shortest_ending_bytes(self, state: int, *, is_any: bool = False) -> bytes:
        """A shortest text that completes `state` and repeats nothing; empty where it is complete.

        With `is_any`, and where too many are nearly as short, it may be a little longer, and is found fast.

        Raises:
            GrammarLimitError: there is none, or none was found in bounded time. Never after tokens that were not
                banned.
        """
        ending = self._endings.ending(self.base(state), self.memory(state), is_any=is_any)
        if ending is None:
            raise GrammarLimitError("no ending without a duplicate key or element was found")
        return ending

    def forced_bytes(self, state: int) -> bytes:
        """The bytes that every continuation of `state` in the automaton begins with, up to where one would repeat."""
        base, memory = self.base(state), self.memory(state)
        forced = bytearray()
        while not self._automaton.is_accepting(base):
            allowed = self._automaton.next_bytes(base)
            if allowed.bit_count() != 1:
                break
            byte = allowed.bit_length() - 1
            following = self._endings.follow(base, memory, byte)
            if following is None:
                break
            forced.append(byte)
            base, memory = self._automaton.step(base, byte), following
        return bytes(forced)

    def _get(self, state: int) -> _Combined:
        known = self._combined.get(state)
        if known is None:
            raise GrammarLimitError(
                f"what the text so far obliges to was forgotten: {self._capacity} other states were used since"
            )
        self._combined.move_to_end(state)
        return known

    def _combine(self, base: int, memory: Memory) -> int:
        if memory == EMPTY:
            return base
        state = self._ids.get((base, memory))
        if state is None:
            state = self._ids[base, memory] = FIRST_COMBINED + self._made
            self._made += 1
            self._combined[state] = _Combined(base, memory)
            if len(self._combined) > self._capacity:
                _, old = self._combined.popitem(last=False)
                del self._ids[old.base, old.memory]
        else:
            self._combined.move_to_end(state)
        return state

    def _advance(self, base: int, memory: Memory, token_id: int) -> int | None:
        token = self._vocabulary.bytes_of(token_id)
        if token is None:
            return None
        after = self._bans.run(base, memory, token)
        return None if after is None or after[1] is None else self._combine(after[0], after[1])
