"""Whether, and how, a text can be completed without a duplicate.

A *place* is a state of the grammar's automaton with a `Memory` beside it. Places whose memory is `EMPTY` can always be
completed: the grammar sees to that. For others the automaton's own shortest ending mostly does; where it would repeat
something, a search finds the shortest ending that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from .json_follow import (
    BACKSLASH,
    EMPTY,
    KEY,
    KEY_ESCAPE,
    QUOTE,
    SKIP,
    SKIP_ESCAPE,
    STRING,
    Follower,
    Frame,
    Memory,
)
from .json_watch import alike, bytes_to_watch, may_repeat
from .rules import OPEN_KEY, UNIQUE_ARRAY

DEAD: Final = -2
_SHORTEST_PLACES: Final = 150
"""Places that a search for the shortest ending may try."""
_ANY_PLACES: Final = 3000
"""Places that a search for any ending may try. A state after which it finds none counts as a dead end."""
_CACHED: Final = 1 << 16
_COMMA: Final = ord(",")
DELIMITERS: Final = 1 << QUOTE | 1 << BACKSLASH

Place = tuple[int, Memory]


class ByteAutomaton(Protocol):
    """What is needed of automaton.py."""

    start: int

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or `DEAD`."""

    def flags(self, state: int) -> int:
        """The flags (rules.py) of the places that may take the next byte, joined."""

    def may_flag(self, flags: int) -> bool:
        """Whether any place has one of `flags`."""

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""

    def next_bytes(self, state: int) -> int:
        """Mask of the bytes that may follow."""

    def ending_length(self, state: int) -> int:
        """Bytes of a shortest ending."""

    def ending_step(self, state: int) -> tuple[int, int]:
        """First byte of the shortest ending, and the state after it."""


class Endings:
    """Endings without duplicates over one automaton. Its caches are emptied when they pass 65,536 entries."""

    def __init__(self, automaton: ByteAutomaton, preferred_bytes: Sequence[int]) -> None:
        """Of bytes that do equally well the first of `preferred_bytes` is taken."""
        self.follower = Follower()
        self._automaton = automaton
        self._preferred = tuple(preferred_bytes)
        self._alive: dict[Place, bool] = {}
        self._shortest: dict[Place, bytes | None] = {}
        self._any: dict[Place, bytes | None] = {}
        self._commas: dict[int, bool] = {}
        self._fragile: dict[tuple[int, Frame], bool] = {}
        self._words: dict[tuple[int, bool], int] = {}
        self._rooms: dict[int, int] = {}
        self._flags: dict[int, int] = {}
        self._groups: dict[int, list[tuple[int, int]]] = {}

    def follow(self, base: int, memory: Memory, byte: int) -> Memory | None:
        """The memory after `byte`, which came in the state `base`; None if it completes a duplicate."""
        flags = self._flags_of(base) if byte in b'"[' else 0  # no other byte's flags matter
        return self.follower.follow(memory, byte, flags)

    def _flags_of(self, base: int) -> int:
        known = self._flags.get(base)
        if known is None:
            known = self._flags[base] = self._automaton.flags(base)
        return known

    def is_alive(self, base: int, memory: Memory) -> bool:
        """Whether some ending of the place repeats nothing."""
        if memory.frame is None:
            return True
        known = self._alive.get((base, memory))
        if known is None:
            known = self._is_surely_alive(base, memory) or self.ending(base, memory, is_any=True) is not None
            _bound(self._alive)
            self._alive[base, memory] = known
        return known

    def _is_surely_alive(self, base: int, memory: Memory) -> bool:
        """True where what is in progress need not become a duplicate, and whatever must follow has choice enough."""
        if may_repeat(memory):
            watched = bytes_to_watch(memory)
            if memory.mode not in (KEY, STRING) or watched is None:
                return False
            if not self._automaton.next_bytes(base) & ~_mask(watched) & ~DELIMITERS:
                return False
        return not self.is_fragile(base, memory)

    def has_room(self, base: int, memory: Memory, words: int) -> bool:
        """Whether a string or key in progress may go on otherwise than any of so many `words`, and be completed."""
        room = self._rooms.get(base)
        if room is None:
            _bound(self._rooms)
            room = self._rooms[base] = (self._automaton.next_bytes(base) & ~DELIMITERS).bit_count()
        return room > words and not (self._comma_ahead(base) and self.is_fragile(base, memory))

    def ending(self, base: int, memory: Memory, *, is_any: bool = False) -> bytes | None:
        """An ending that repeats nothing, or None.

        It is a shortest one, or with `is_any`, or where so many are nearly as short that a search would try them all,
        one that repeats little of the automaton's own. Either says None for the same places.
        """
        place = base, memory
        known = self._shortest if not is_any else self._any
        if place not in known:
            ending = self._plain_ending(base, memory)
            if ending is None:
                ending = self._search_any(base, memory) if is_any else self._search_shortest(base, memory)
            _bound(known)
            known[place] = ending
        return known[place]

    def _plain_ending(self, base: int, memory: Memory) -> bytes | None:
        """The automaton's own shortest ending, where it repeats nothing."""
        text = bytearray()
        way = []
        while not self._automaton.is_accepting(base):
            way.append((base, memory))
            byte, after = self._automaton.ending_step(base)
            if memory != EMPTY or byte in b'"[':
                following = self.follow(base, memory, byte)
                if following is None:
                    return None
                memory = following
            base = after
            text.append(byte)
        _bound(self._alive)
        self._alive.update(dict.fromkeys(way, True))
        return bytes(text)

    def _search_shortest(self, base: int, memory: Memory) -> bytes | None:
        """Best-first by bytes so far and the automaton's ending, which is never longer than one without duplicates."""
        best: dict[Place, int] = {(base, alike(memory)): 0}
        came: dict[Place, tuple[Place, int]] = {}
        heap = [(self._automaton.ending_length(base), 0, 0, (base, memory))]
        tried = 0
        while heap and tried < _SHORTEST_PLACES:
            _, length, _, place = heappop(heap)
            if -length > best[place[0], alike(place[1])]:
                continue
            tried += 1
            rest = self._rest(place)
            if rest is not None:
                return self._spelled(came, place, rest)
            for byte in self._branches(*place):
                after = self._step(*place, byte)
                if after is None:
                    continue
                key = after[0], alike(after[1])
                if 1 - length < best.get(key, 1 << 60):
                    best[key] = 1 - length
                    came[after] = place, byte
                    total = 1 - length + self._automaton.ending_length(after[0])
                    heappush(heap, (total, length - 1, len(came), after))
        return self.ending(base, memory, is_any=True)

    def _search_any(self, base: int, memory: Memory) -> bytes | None:
        """Along the automaton's ending; where it would repeat something, from a late place with another short way."""
        seen = {(base, alike(memory))}
        came: dict[Place, tuple[Place, int]] = {}
        heap = [(2 * self._automaton.ending_length(base), 0, True, 0, (base, memory))]
        tried = pushed = 0
        while heap and tried < _ANY_PLACES:
            rank, order, is_new, length, place = heappop(heap)
            rest = self._rest(place) if is_new else None
            if rest is not None:
                return self._spelled(came, place, rest)
            if is_new:  # all its other ways come later
                heappush(heap, (rank, order, False, length, place))
                branches = [self._automaton.ending_step(place[0])[0]]
            else:
                tried += 1
                branches = list(self._branches(*place))
            for byte in branches:
                after = self._step(*place, byte)
                if after is not None and (key := (after[0], alike(after[1]))) not in seen:
                    seen.add(key)
                    came[after] = place, byte
                    pushed += 1
                    rank = length + 1 + 2 * self._automaton.ending_length(after[0])
                    heappush(heap, (rank, -pushed, True, length + 1, after))
        return None

    def _rest(self, place: Place) -> bytes | None:
        """How the automaton goes on to the end from a place where nothing can repeat any more; None elsewhere."""
        is_free = place[1] == EMPTY or self._automaton.is_accepting(place[0])
        return self._plain_ending(*place) if is_free else None

    def _spelled(self, came: dict[Place, tuple[Place, int]], place: Place, rest: bytes) -> bytes:
        """The text that goes on to `place` and then with `rest`; the places on its way are alive."""
        text = bytearray(rest[::-1])
        while place in came:
            place, byte = came[place]
            text.append(byte)
            self._alive[place] = True
        return bytes(text[::-1])

    def _step(self, base: int, memory: Memory, byte: int) -> Place | None:
        after = self._automaton.step(base, byte)
        following = self.follow(base, memory, byte) if after != DEAD else None
        return (after, following) if following is not None else None

    def _branches(self, base: int, memory: Memory) -> Iterator[int]:
        """Bytes to go on with; inside strings, of those that lead to the same state and cannot repeat, only one."""
        nothing = memory.mode == SKIP or memory.frame is None  # then there is nothing to repeat
        watched = frozenset[int]() if nothing else bytes_to_watch(memory)
        allowed = self._automaton.next_bytes(base)
        if memory.mode not in (SKIP, KEY, STRING) or memory.escape or watched is None:
            yield from (byte for byte in self._preferred if allowed >> byte & 1)
            return
        single = allowed & (DELIMITERS | _mask(watched))
        yield from (byte for byte in self._preferred if single >> byte & 1)
        for byte, mask in self._by_target(base):
            rest = mask & ~single
            if rest:
                yield byte if rest >> byte & 1 else next(other for other in self._preferred if rest >> other & 1)

    def _by_target(self, base: int) -> list[tuple[int, int]]:
        """(preferred byte, mask) for each state that may follow `base`."""
        known = self._groups.get(base)
        if known is None:
            groups: dict[int, tuple[int, int]] = {}
            allowed = self._automaton.next_bytes(base)
            for byte in self._preferred:
                if allowed >> byte & 1:
                    target = self._automaton.step(base, byte)
                    first, mask = groups.get(target, (byte, 0))
                    groups[target] = first, mask | 1 << byte
            _bound(self._groups)
            known = self._groups[base] = list(groups.values())
        return known

    def is_fragile(self, base: int, memory: Memory) -> bool:
        """Whether keys or elements that must still come may run short of choice: their possible values are few.

        False says that every ending of what is in progress, if it is no duplicate itself, leaves enough of them. It
        looks along the automaton's shortest ending, which stands for the others.
        """
        if memory.frame is None or not self._comma_ahead(base):
            return False
        key = base, memory.frame
        known = self._fragile.get(key)
        if known is None:
            _bound(self._fragile)
            known = self._fragile[key] = self._is_short_ahead(base, memory)
        return known

    def _comma_ahead(self, base: int) -> bool:
        """Whether the automaton's shortest ending holds a comma."""
        known = self._commas.get(base)
        if known is not None:
            return known
        way = []
        while base not in self._commas and not self._automaton.is_accepting(base):
            way.append(base)
            byte, base = self._automaton.ending_step(base)
            if byte == _COMMA:
                self._commas.update(dict.fromkeys(way, True))
                return True
        result = self._commas.get(base, False)
        self._commas.update(dict.fromkeys(way, result))
        return result

    def _is_short_ahead(self, base: int, memory: Memory) -> bool:
        frames = _chain(memory.frame)
        unique = [frame.used is not None for frame in frames]
        need = max(frame.watched for frame in frames) + 1
        in_string = memory.mode in (SKIP, SKIP_ESCAPE, KEY, KEY_ESCAPE, STRING)
        escaped = memory.mode in (SKIP_ESCAPE, KEY_ESCAPE) or len(memory.escape) == 1
        while unique and not self._automaton.is_accepting(base):
            byte, after = self._automaton.ending_step(base)
            if in_string:
                in_string = escaped or byte != QUOTE
                escaped = not escaped and byte == BACKSLASH
            elif byte == QUOTE:
                in_string = True
            elif byte in b"[{":
                unique.append(byte == ord("[") and bool(self._flags_of(base) & UNIQUE_ARRAY))
            elif byte in b"]}":
                unique.pop()
            elif byte == _COMMA:
                need += 1
                open_key = bool(self._flags_of(after) & OPEN_KEY)
                if (unique[-1] or open_key) and not self._has_choice(after, open_key and not unique[-1], need):
                    return True
            base = after
        return False

    def _has_choice(self, base: int, is_key: bool, need: int) -> bool:
        """Whether at least `need` different keys, or elements, may come in `base`. False also where it is not plain."""
        known = self._words.get((base, is_key), 0)
        if known < need:
            known = self._words[base, is_key] = self._count_words(base, is_key, need)
        return known >= need

    def _count_words(self, base: int, is_key: bool, most: int) -> int:
        """Different keys or elements that may come in `base`, counted up to `most`, and by limited trying."""
        blank = self.follower.new_object if is_key else self.follower.new_array
        words: set[object] = set()
        heap: list[tuple[int, int, Place]] = [(0, 0, (base, blank))]
        seen: set[Place] = set()
        tries = 100 + 20 * most
        while heap and len(words) < most and tries:
            tries -= 1
            place = heappop(heap)[2]
            for byte in self._branches(*place):
                after = self._step(*place, byte)
                if after is None or after[1].frame is None or (key := (after[0], alike(after[1]))) in seen:
                    continue
                seen.add(key)
                frame = after[1].frame
                if frame is blank.frame or frame.below is not None:
                    heappush(heap, (self._automaton.ending_length(after[0]), len(seen), after))
                else:
                    words.update(frame.keys or frame.used or ())
        return len(words)


def _chain(frame: Frame | None) -> list[Frame]:
    """The open containers, outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.below
    return frames[::-1]


def _mask(members: frozenset[int]) -> int:
    return sum(1 << byte for byte in members)


def _bound(cache: dict) -> None:  # type: ignore[type-arg]  # of any contents
    if len(cache) >= _CACHED:
        cache.clear()
