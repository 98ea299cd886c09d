"""The automaton of a grammar over bytes, made as far as it is used.

A state is a set of *configurations*: a position that takes a byte, and the stack of what returns afterwards. Stacks are
interned linked frames, one a call or a counted repetition in progress, so recursion and large counts need no unrolling.
Every configuration can reach an end (`simplify` removed what cannot), so every state can.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import GrammarLimitError
from .limits import CompileLimits
from .program import RETURN, Op, Program, Words, shortest_without
from .rules import NOTHING

UNKNOWN = -1
DEAD = -2

_Config = int  # frame * len(positions) + position
_Closure = tuple[frozenset[_Config], bool]  # configurations that take a byte, and whether the text may end here


class LazyAutomaton:
    """States by small ids, with memoised transitions.

    Attributes:
        table: [capacity, 256] int32, `table[state, byte]` the next state, `DEAD`, or `UNKNOWN` until `step` was asked.
            Replaced by a larger array when it is full: do not keep a reference.
        start: id of the first state.
    """

    def __init__(self, program: Program, limits: CompileLimits, preferred_bytes: Sequence[int]) -> None:
        """`preferred_bytes` orders all 256 bytes; among equally short endings the first in this order is taken."""
        self._program = program
        self._limits = limits
        self._preferred = tuple(preferred_bytes)
        self._frames = _Frames(program)
        self._closures: dict[_Config, _Closure] = {}
        self._ids: dict[_Closure, int] = {}
        self._configs: list[tuple[_Config, ...]] = []
        self._accepting: list[bool] = []
        self._bytes: list[int] = []  # mask of the bytes that may follow
        self._endings: list[tuple[int, int] | None] = []
        self._members: dict[int, NDArray[np.bool_]] = {}
        self.table: NDArray[np.int32] = np.full((64, 256), UNKNOWN, np.int32)
        self.start = self._intern([program.start])

    def __len__(self) -> int:
        """Number of states made so far."""
        return len(self._configs)

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or `DEAD`."""
        known = int(self.table[state, byte])
        return known if known != UNKNOWN else self._make_transition(state, byte)

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""
        return self._accepting[state]

    def next_bytes(self, state: int) -> int:
        """Mask of the bytes that may follow `state`: bit b is byte b."""
        return self._bytes[state]

    def flags(self, state: int) -> int:
        """The flags (rules.py) of the places that may take the next byte, joined."""
        flags = 0
        for config in self._configs[state]:
            flags |= self._program.positions[config % len(self._program.positions)].flags
        return flags

    def ending_length(self, state: int) -> int:
        """Bytes of a shortest ending from `state`; 0 exactly where it is accepting."""
        if self._accepting[state]:
            return 0
        return min(self._length(config) for config in self._configs[state])

    def ending_step(self, state: int) -> tuple[int, int]:
        """First byte of the shortest ending from a `state` that is not accepting, and the state after it.

        Of all shortest endings this follows the one that is first in the preferred order of bytes, so the ending of the
        next state is the rest of this one's.
        """
        known = self._endings[state]
        if known is None:
            known = self._endings[state] = self._make_ending_step(state)
        return known

    def _make_ending_step(self, state: int) -> tuple[int, int]:
        length = self.ending_length(state)
        mask = 0
        for config in self._configs[state]:
            if self._length(config) == length:
                mask |= self._position_mask(config)
        byte = next(byte for byte in self._preferred if mask >> byte & 1)
        return byte, self.step(state, byte)

    def _length(self, config: _Config) -> int:
        frame, here = divmod(config, len(self._program.positions))
        return self._frames.length(here, frame) + self._frames.rest[frame]

    def _position_mask(self, config: _Config) -> int:
        return self._program.positions[config % len(self._program.positions)].mask

    def _make_transition(self, state: int, byte: int) -> int:
        """Follow `byte`, and fill in every byte that all configurations of `state` treat alike."""
        positions = self._program.positions
        targets = []
        alike = self._bytes[state]
        for config in self._configs[state]:
            frame, here = divmod(config, len(positions))
            mask = positions[here].mask
            told_apart = self._frames.told_apart(frame)
            alike &= 1 << byte if told_apart >> byte & 1 else ~told_apart
            if mask >> byte & 1:
                alike &= mask
                targets.append(self._frames.step(frame, byte) * len(positions) + positions[here].next)
            else:
                alike &= ~mask
        target = self._intern(targets)
        self.table[state, self._bytes_of(alike)] = target
        return target

    def _bytes_of(self, mask: int) -> NDArray[np.bool_]:
        known = self._members.get(mask)
        if known is None:
            packed = np.frombuffer(mask.to_bytes(32, "little"), np.uint8)
            known = self._members[mask] = np.unpackbits(packed, bitorder="little").astype(np.bool_)
        return known

    def _intern(self, targets: Iterable[_Config]) -> int:
        configs: set[_Config] = set()
        accepting = False
        for target in targets:
            found, ends = self._closure(target)
            configs |= found
            accepting = accepting or ends
        key = (frozenset(configs), accepting)
        known = self._ids.get(key)
        return known if known is not None else self._add_state(key)

    def _add_state(self, key: _Closure) -> int:
        configs, accepting = key
        state = len(self._configs)
        if state >= self._limits.states or len(configs) > self._limits.configurations:
            raise GrammarLimitError(
                f"the grammar met {state} states, the last with {len(configs)} configurations; the limits are "
                f"{self._limits.states} and {self._limits.configurations} (CompileLimits.states, .configurations)"
            )
        mask = 0
        for config in configs:
            mask |= self._position_mask(config)
        self._grow(state + 1)
        self.table[state, ~self._bytes_of(mask)] = DEAD
        self._ids[key] = state
        self._configs.append(tuple(configs))
        self._accepting.append(accepting)
        self._bytes.append(mask)
        self._endings.append(None)
        return state

    def _grow(self, states: int) -> None:
        if states > len(self.table):
            larger = np.full((2 * len(self.table), 256), UNKNOWN, np.int32)
            larger[: len(self.table)] = self.table
            self.table = larger

    def _closure(self, start: _Config) -> _Closure:
        known = self._closures.get(start)
        if known is None:
            known = self._closures[start] = self._make_closure(start)
        return known

    def _make_closure(self, start: _Config) -> _Closure:
        count = len(self._program.positions)
        found: set[_Config] = set()
        ends = False
        seen = {start}
        todo = [start]
        while todo:
            config = todo.pop()
            frame, here = divmod(config, count)
            if self._program.positions[here].op is Op.BYTES:
                found.add(config)
            elif here == RETURN and frame == _Frames.BOTTOM:
                ends = True
            else:
                for then, below in self._frames.follow(here, frame):
                    following = below * count + then
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return frozenset(found), ends


class _Frames:
    """Interned stacks. A frame is (position of its CALL or REPEAT, rounds done, frame below)."""

    BOTTOM = 0

    def __init__(self, program: Program) -> None:
        self._program = program
        self._frames: list[tuple[int, int, int]] = [(RETURN, 0, self.BOTTOM)]
        self._ids: dict[tuple[int, int, int], int] = {}
        self._words: dict[int, Words] = {}  # of each EXCEPT
        self._graph_states: list[tuple[int, Hashable]] = []  # (owner, state), by id
        self._graph_ids: dict[tuple[int, Hashable], int] = {}
        self._graph_costs: dict[int, list[float]] = {}
        self.rest: list[int] = [0]  # [frames] fewest bytes after the frame's own rule or round has returned

    def follow(self, here: int, frame: int) -> list[tuple[int, int]]:
        """(position, frame) pairs one move after a position that takes no byte."""
        position = self._program.positions[here]
        match position.op:
            case Op.SPLIT:
                return [(target, frame) for target in position.targets]
            case Op.CALL:
                # A tail call returns where its caller would: no frame, so chains of rules do not grow the stack.
                below = frame if position.next == RETURN else self._push(here, 0, frame)
                return [(position.body, below)]
            case Op.REPEAT:
                return self._rounds(here, 0, frame)
            case Op.GRAPH:
                assert position.graph is not None
                return self._graph_moves(here, self._graph_id(here, position.graph.state), frame)
            case Op.EXCEPT:
                return [(position.body, self._push(here, 0, frame))]
            case _:
                return self._return(frame)

    def _return(self, frame: int) -> list[tuple[int, int]]:
        owner, payload, below = self._frames[frame]
        position = self._program.positions[owner]
        match position.op:
            case Op.CALL:
                return [(position.next, below)]
            case Op.GRAPH:
                return self._graph_moves(owner, payload, below)
            case Op.EXCEPT:
                return [(position.next, below)] if self._words_of(owner).allows_end(payload) else []
            case _:
                return self._rounds(owner, payload + 1, below)

    def step(self, frame: int, byte: int) -> int:
        """The frame after a byte was taken right under it: an EXCEPT follows its words."""
        owner, payload, below = self._frames[frame]
        if self._program.positions[owner].op is not Op.EXCEPT or payload < 0:
            return frame
        return self._push(owner, self._words_of(owner).step(payload, byte), below)

    def told_apart(self, frame: int) -> int:
        """Mask of the bytes that `step` tells apart."""
        owner, payload, _ = self._frames[frame]
        if self._program.positions[owner].op is not Op.EXCEPT or payload < 0:
            return 0
        return sum(1 << byte for byte in self._words_of(owner).after[payload])

    def length(self, here: int, frame: int) -> int:
        """Fewest bytes from a position to the RETURN of the rule, round, edge or body that `frame` stands for."""
        owner, payload, _ = self._frames[frame]
        if self._program.positions[owner].op is not Op.EXCEPT:
            return self._program.shortest[here]
        return shortest_without(self._program.positions, here, self._words_of(owner), payload)

    def _words_of(self, owner: int) -> Words:
        if owner not in self._words:
            self._words[owner] = Words(self._program.positions[owner].words)
        return self._words[owner]

    def _graph_id(self, owner: int, state: Hashable) -> int:
        key = owner, state
        if key not in self._graph_ids:
            self._graph_ids[key] = len(self._graph_states)
            self._graph_states.append(key)
        return self._graph_ids[key]

    def _graph_moves(self, owner: int, payload: int, below: int) -> list[tuple[int, int]]:
        position = self._program.positions[owner]
        state = self._graph_states[payload][1]
        assert position.graph is not None
        spec = position.graph.spec
        moves = [(position.next, below)] if spec.ends(state) else []
        for body, after in spec.edges(state):
            costs = self._costs_of(owner)
            if costs[body] < math.inf and spec.cost(after, costs) < math.inf:
                moves.append((position.targets[body], self._push(owner, self._graph_id(owner, after), below)))
        return moves

    def _costs_of(self, owner: int) -> list[float]:
        known = self._graph_costs.get(owner)
        if known is None:
            position = self._program.positions[owner]
            assert position.graph is not None
            known = self._graph_costs[owner] = [
                math.inf if body == NOTHING else float(self._program.shortest[target])
                for body, target in zip(position.graph.bodies, position.targets, strict=True)
            ]
        return known

    def _rounds(self, owner: int, done: int, below: int) -> list[tuple[int, int]]:
        position = self._program.positions[owner]
        if position.high is None:
            done = min(done, position.low)
        moves = []
        if done >= position.low:
            moves.append((position.next, below))
        if position.high is None or done < position.high:
            moves.append((position.body, self._push(owner, done, below)))
        return moves

    def _push(self, owner: int, done: int, below: int) -> int:
        key = (owner, done, below)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._frames)
            self._frames.append(key)
            self.rest.append(self._rest(owner, done) + self.rest[below])
        return known

    def _rest(self, owner: int, done: int) -> int:
        position = self._program.positions[owner]
        after = self._program.shortest[position.next]
        if position.op is Op.GRAPH:
            assert position.graph is not None
            return after + int(position.graph.spec.cost(self._graph_states[done][1], self._costs_of(owner)))
        if position.op is not Op.REPEAT:
            return after
        return after + max(0, position.low - done - 1) * self._program.shortest[position.body]
