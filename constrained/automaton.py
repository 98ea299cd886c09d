"""The automaton of a grammar over bytes, made as far as it is used.

A state is a set of *configurations*: a position that takes a byte, and the stack of what returns afterwards. Stacks are
interned linked frames, one a call, a counted repetition, a graph or a text with words left out that is in progress, so
recursion and large counts need no unrolling. Only configurations that can reach an end are kept, so every state can.

machine.py does the work on arrays; this class owns them, makes them larger, and expands graphs when they are met.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import GrammarLimitError
from .limits import CompileLimits
from .plain_machine import load_machine
from .program import INFINITE, RETURN, Field, Op, Program
from .rules import ALL_BYTES, NOTHING
from .slices import MOST_COVERED, spellings
from .vocabulary import TokenTrie

DEAD = -2
UNKNOWN = -1
_FAILED = -3

_NO_TRIE = TokenTrie(np.zeros((1, 4), np.int32), np.zeros(0, np.int32))
_NO_LANDING = np.zeros(0, np.int32)
_NO_BITS = np.zeros(0, np.uint32)


class LazyAutomaton:
    """States by small ids, with memoised transitions.

    One thread at a time may use it. Any method that makes states may raise `GrammarLimitError`.

    Attributes:
        start: id of the first state.
    """

    def __init__(
        self,
        program: Program,
        limits: CompileLimits,
        preferred_bytes: Sequence[int],
        *,
        alphabet: int = ALL_BYTES,
        plain: bool = False,
    ) -> None:
        """`program` is this automaton's own from now on.

        Args:
            program: what to follow.
            limits: on states, and configurations of each.
            preferred_bytes: all 256; among equally short endings the first in this order is taken.
            alphabet: the bytes that texts are made of, all that some token has; bit b is byte b.
            plain: do without numba, some hundred times slower.
        """
        self._machine = load_machine(plain)
        self._program = program
        self._limits = limits
        self._preferred = tuple(preferred_bytes)
        self._graph_keys: list[tuple[int, Hashable]] = []  # (position of the GRAPH, state), by graph state
        self._graph_ids: dict[tuple[int, Hashable], int] = {}
        self._graph_costs: dict[int, list[float]] = {}
        self._endings: dict[int, tuple[int, int]] = {}
        self._covers: dict[int, int] = {}  # by position of what is repeated: slices whose characters all match it
        self._t = _new_tables(program, limits, alphabet, self._machine)
        self._kinds: list[int] = self._t.kind_of.tolist()
        self._edges = 0
        self._counts = bool(np.isin(program.positions[:, Field.OP], (Op.REPEAT, Op.GRAPH)).any())
        self._find_lengths()
        self.start = self._closure_state(program.start) if self.is_ready() else DEAD

    def is_ready(self) -> bool:
        """Whether some text matches, and no counted round may be empty: such rounds would count without reading."""
        program, shortest = self._program, self._t.shortest
        repeats = program.positions[program.positions[:, Field.OP] == Op.REPEAT]
        return bool(shortest[program.start] < INFINITE and (shortest[repeats[:, Field.BODY]] > 0).all())

    def __len__(self) -> int:
        """Number of states made so far."""
        return int(self._t.counts[self._machine.STATES])

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._t)

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or `DEAD`."""
        known: int = self._t.table.item(state, self._kinds[byte])  # twice as quick as indexing
        return known if known != UNKNOWN else self._run(self._machine.STEP, state, byte)

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""
        return bool(self._t.states.item(state, self._machine.ENDS))

    def flags(self, state: int) -> int:
        """The flags (rules.py) of the places that may take the next byte, joined."""
        return int(self._t.states[state, self._machine.STATE_FLAGS])

    def may_flag(self, flags: int) -> bool:
        """Whether any place of the grammar has one of `flags`."""
        return bool(self._program.flags & flags)

    def next_bytes(self, state: int) -> int:
        """Mask of the bytes that may follow `state`: bit b is byte b."""
        return int.from_bytes(self._t.state_bytes[state].tobytes(), "little")

    def ending_length(self, state: int) -> int:
        """Bytes of a shortest ending from `state`; 0 exactly where it is accepting."""
        length: int = self._t.state_length.item(state)
        return length

    def cover(self, state: int) -> int:
        """Byte k: how many characters of slice k may follow whatever they are, `machine.MANY` without bound."""
        return int(self._t.state_cover[state])

    def near(self, state: int, horizon: int) -> int:
        """A state that allows the same texts of up to `horizon` bytes as `state`; the same for many. One `horizon`."""
        if not self._counts:
            return state
        self._t.counts[self._machine.HORIZON] = horizon
        return self._run(self._machine.NEAR_STATE, state)

    def ending_step(self, state: int) -> tuple[int, int]:
        """First byte of a shortest ending from a `state` that is not accepting, and the state after it.

        The ending of the next state is the rest of this one's. Of bytes that begin one, the most preferred is taken.
        """
        known = self._endings.get(state)
        if known is None:
            known = self._endings[state] = self._make_ending_step(state)
        return known

    def _make_ending_step(self, state: int) -> tuple[int, int]:
        length = self.ending_length(state)
        mask = self.next_bytes(state)
        for byte in self._preferred:
            if mask >> byte & 1:
                following = self.step(state, byte)
                if following != DEAD and self._t.state_length[following] == length - 1:
                    return byte, following
        raise AssertionError(f"state {state} has no step towards its end")

    def walk_mask(self, trie: TokenTrie, state: int, path: NDArray[np.int32], bits: NDArray[np.uint32]) -> None:
        """Set in `bits` ([words] uint32) the tokens of `trie` that `state` allows; `path` is scratch."""
        self._walk(self._machine.WALK_MASK, trie, state, path, bits, _NO_LANDING)

    def walk_landing(self, trie: TokenTrie, state: int, path: NDArray[np.int32], landing: NDArray[np.int32]) -> None:
        """Write the state after each token of `trie` that `state` allows to `landing` ([tokens] int32)."""
        self._walk(self._machine.WALK_LANDING, trie, state, path, _NO_BITS, landing)

    def _walk(
        self,
        what: int,
        trie: TokenTrie,
        state: int,
        path: NDArray[np.int32],
        bits: NDArray[np.uint32],
        landing: NDArray[np.int32],
    ) -> None:
        path[0] = state
        self._t.counts[self._machine.WORK] = 0
        node, last = 0, len(trie.nodes) - 1
        while True:
            node = self._machine.run(self._t, what, node, 0, 0, trie, path, bits, landing)
            if node == last:
                return
            self._attend()

    def _run(self, what: int, a: int, b: int = 0, c: int = 0) -> int:
        """`machine.run` until it has what it needs."""
        self._t.counts[self._machine.WORK] = 0
        while True:
            result = self._machine.run(self._t, what, a, b, c, _NO_TRIE, _NO_LANDING, _NO_BITS, _NO_LANDING)
            if result != _FAILED:
                return int(result)
            self._attend()

    def _attend(self) -> None:
        """Do what a function of machine.py stopped for."""
        counts, need = self._t.counts, self._machine.Need
        detail = int(counts[self._machine.DETAIL])
        match need(int(counts[self._machine.NEED])):
            case need.GRAPH:
                self._expand(detail)
            case need.NEAR:
                position, state = self._graph_keys[detail]
                near = self._program.graphs[position].spec.near(state, int(counts[self._machine.HORIZON]))
                self._t.graph_near[detail] = self._graph_state(position, near)
            case need.WORDS:
                self._make_words(detail)
            case need.COVER:
                self._find_cover(detail)
            case need.FEWER_CONFIGS:
                self._limits.check("configurations", detail + 1, "alternatives that one state follows at once")
            case need.FEWER_STATES:
                self._limits.check("states", detail + 1, "states met while the grammar was used")
            case need.LESS_WORK:
                self._limits.check("work", detail, "alternatives followed for one mask or byte")
            case scarce:
                self._t = _larger(self._t, scarce, detail, self._machine)
                self._limits.check("memory_bytes", self.memory_bytes, "bytes of states met while the grammar was used")

    def _closure_state(self, config: int) -> int:
        return self._run(self._machine.CLOSURE_STATE, config)

    def _find_lengths(self) -> None:
        """Fewest bytes from every position: passes over all until none falls, graphs by their own costs between."""
        program, t = self._program, self._t
        costs = np.full(len(program.positions), INFINITE, np.int64)
        while True:
            while self._machine.shorten(program.positions, program.targets, costs, t.shortest):
                pass
            if not self._lower_costs(costs):
                break
        for position, graph in program.graphs.items():
            program.positions[position, Field.LOW] = self._graph_state(position, graph.state)

    def _lower_costs(self, costs: NDArray[np.int64]) -> bool:
        fell = False
        for position in self._program.graphs:
            graph = self._program.graphs[position]
            cost = graph.spec.cost(graph.state, self._body_costs(position))
            bounded = INFINITE if math.isinf(cost) else int(cost)
            fell = fell or bounded < costs[position]
            costs[position] = bounded
        for position, words in self._program.words.items():
            body = int(self._program.positions[position, Field.BODY])
            cost = int(self._t.shortest[body])
            if cost < costs[position] and cost < INFINITE and any(len(word) == cost for word in words):
                self._make_words(position)
                root = int(self._program.positions[position, Field.LOW])
                cost = self._run(self._machine.SHORTEST_WITHOUT, body, root)
            fell = fell or cost < costs[position]
            costs[position] = min(cost, costs[position])
        return fell

    def _body_costs(self, position: int) -> list[float]:
        """Fewest bytes of each body of the GRAPH at `position`, infinite where it matches nothing."""
        first, count = self._program.positions[position, [Field.TARGETS, Field.COUNT]].tolist()
        bodies = self._program.graphs[position].bodies
        lengths = self._t.shortest[self._program.targets[first : first + count]].tolist()
        return [
            math.inf if length >= INFINITE or body == NOTHING else float(length)
            for body, length in zip(bodies, lengths, strict=True)
        ]

    def _graph_state(self, position: int, state: Hashable) -> int:
        key = position, state
        known = self._graph_ids.get(key)
        if known is None:
            known = self._graph_ids[key] = len(self._graph_keys)
            self._graph_keys.append(key)
            if known == len(self._t.graphs):
                self._t = self._t._replace(
                    graphs=_doubled(self._t.graphs),
                    graph_cost=_doubled(self._t.graph_cost),
                    graph_cover=_doubled(self._t.graph_cover),
                    graph_near=_doubled(self._t.graph_near),
                )
            self._t.graphs[known] = self._t.graph_near[known] = -1
            cost = self._program.graphs[position].spec.cost(state, self._costs_of(position))
            self._t.graph_cost[known] = INFINITE if math.isinf(cost) else int(cost)
        return known

    def _costs_of(self, position: int) -> list[float]:
        known = self._graph_costs.get(position)
        if known is None:
            known = self._graph_costs[position] = self._body_costs(position)
        return known

    def _expand(self, graph_state: int) -> None:
        """Write down what may follow a graph state, but for ways that have no end."""
        position, state = self._graph_keys[graph_state]
        spec = self._program.graphs[position].spec
        first = int(self._program.positions[position, Field.TARGETS])
        bodies = self._program.targets
        edges = []
        for body, after in spec.edges(state):
            if self._costs_of(position)[body] < math.inf:
                following = self._graph_state(position, after)
                if self._t.graph_cost[following] < INFINITE:
                    edges.append((int(bodies[first + body]), following))
        first, self._edges = self._edges, self._edges + len(edges)
        if self._edges > len(self._t.edges):
            self._t = self._t._replace(edges=_doubled(self._t.edges, self._edges))
        self._t.edges[first : self._edges] = np.array(edges, np.int64).reshape(-1, 2)
        cover = 0
        for lane, characters in enumerate(spec.cover(state)):
            cover |= min(characters, MOST_COVERED) << 8 * lane
        self._t.graph_cover[graph_state] = cover
        self._t.graphs[graph_state] = first, len(edges), spec.ends(state)

    def _make_words(self, position: int) -> None:
        """The trie of the words of an EXCEPT, its nodes in breadth-first order so that children are neighbours."""
        if self._program.positions[position, Field.LOW] >= 0:
            return
        words = sorted(self._program.words[position])
        base = len(self._t.words)
        rows: list[tuple[int, int, int, bool]] = []
        masks: list[int] = []
        todo = [(0, len(words), 0, 0)]  # words from, to, that begin alike in so many bytes, the last of which is this
        for low, high, depth, byte in todo:  # grows while it is walked
            is_word = low < high and len(words[low]) == depth
            low += is_word
            first, mask = base + len(todo), 0
            while low < high:
                following = words[low][depth]
                end = _end_of(words, low, high, depth, following)
                todo.append((low, end, depth + 1, following))
                mask |= 1 << following
                low = end
            rows.append((first, base + len(todo) - first, byte, is_word))
            masks.append(mask)
        bits = np.frombuffer(b"".join(mask.to_bytes(32, "little") for mask in masks), "<i8").reshape(-1, 4)
        self._t = self._t._replace(
            words=np.concatenate([self._t.words, np.array(rows, np.int64)]),
            word_bytes=np.concatenate([self._t.word_bytes, bits]),
        )
        self._program.positions[position, Field.LOW] = base

    def _find_cover(self, position: int) -> None:
        """Which slices a loop or counted repetition covers: any character of them, and it may go on as before."""
        positions, targets = self._program.positions, self._program.targets
        self._t.covers[position] = 0  # until known: a loop may meet itself
        is_counted = positions[position, Field.OP] == Op.REPEAT
        body = int(positions[position, Field.BODY] if is_counted else targets[positions[position, Field.TARGETS]])
        is_rule = positions[body, Field.OP] == Op.CALL
        if not is_counted and not is_rule:  # its body does not end in a RETURN, but where it began
            below = self._run(self._machine.PUSH, RETURN, 1, 0)
            here = below << self._machine.SHIFT | position
            self._t.covers[position] = self._run(self._machine.COVERED, here, here)
            return
        body = int(positions[body, Field.BODY]) if is_rule else body
        if body not in self._covers:
            self._covers[body] = self._run(self._machine.COVERED, body, -1)
        self._t.covers[position] = self._covers[body]


def _end_of(words: Sequence[bytes], low: int, high: int, depth: int, byte: int) -> int:
    """The first of sorted `words` from `low` to `high` whose byte at `depth` is not `byte`."""
    low += 1
    while low < high:
        middle = (low + high) // 2
        if words[middle][depth] == byte:
            low = middle + 1
        else:
            high = middle
    return low


def _new_tables(program: Program, limits: CompileLimits, alphabet: int, machine: Any) -> Any:
    """Small, empty arrays for `program`."""
    count = len(program.positions)

    def i32(*shape: int) -> NDArray[np.int32]:
        return np.full(shape, -1, np.int32)

    def i64(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, np.int64)

    operations = program.positions[:, Field.OP]
    loops = (operations == Op.REPEAT) | (program.positions[:, Field.LOOPS] == 1)
    graphs = 16 + len(program.graphs)
    kind_of, kind_byte = _kinds(program)
    t = machine.Tables(
        positions=program.positions,
        targets=program.targets,
        masks=program.masks,
        shortest=np.full(count, INFINITE, np.int64),
        covers=np.where(loops, -1, 0).astype(np.int64),
        frames=i64(512, 3),
        rest=i64(512),
        near_frames=i64(512),
        frame_hash=i32(1024),
        closures=i64(512, 4),
        closure_keys=i64(512),
        closure_cover=i64(512),
        closure_configs=i64(4096),
        closure_hash=i32(1024),
        states=i64(256, 4),
        state_configs=i64(2048),
        state_bytes=i64(256, 4),
        state_length=i64(256),
        state_cover=i64(256),
        state_hash=i32(512),
        table=i32(256, len(kind_byte)),
        kind_of=kind_of,
        kind_byte=kind_byte,
        spellings=spellings(alphabet),
        graphs=np.full((graphs, 3), -1, np.int64),
        graph_cost=np.full(graphs, INFINITE, np.int64),
        graph_cover=i64(graphs),
        graph_near=np.full(graphs, -1, np.int64),
        edges=i64(16, 2),
        words=np.full((0, 4), -1, np.int64),
        word_bytes=i64(0, 4),
        todo=i64(256),
        gathered=i64(512),
        seen=i64(512),
        seen_stamp=i64(512),
        scratch_bytes=i64(4),
        reached=i64(64),
        counts=i64(16),
    )
    t.frames[0] = RETURN, 0, 0
    t.counts[machine.FRAMES] = 1
    t.counts[machine.MAX_CONFIGS] = limits.configurations
    t.counts[machine.MAX_STATES] = limits.states
    t.counts[machine.MAX_WORK] = limits.work
    return t


def _kinds(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The kind of each byte, and a byte of each kind: sets of bytes that the program never tells apart."""
    rows = program.masks.astype("<i8").view(np.uint8)
    members = np.packbits(np.unpackbits(rows, axis=1, bitorder="little"), axis=0).T  # [bytes, masks / 8]
    apart = np.zeros((256, 2), np.uint8)
    for byte in set().union(*(set(b"".join(words)) for words in program.words.values())):
        apart[byte] = byte, 1  # a kind of its own
    keys = np.ascontiguousarray(np.concatenate([members, apart], axis=1))
    _, first, kinds = np.unique(keys.view(f"V{keys.shape[1]}").ravel(), return_index=True, return_inverse=True)
    return kinds.astype(np.int64), first.astype(np.int64)


def _doubled(array: NDArray[Any], least: int = 0) -> NDArray[Any]:
    """`array` with room for twice as many rows, and `least` at least. What is new in it is not written."""
    larger = np.empty((max(2 * len(array), least), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _larger(t: Any, scarce: Any, least: int, machine: Any) -> Any:
    """`t` with larger arrays of what was `scarce`."""
    need = machine.Need
    match scarce:
        case need.FRAMES:
            frames = _doubled(t.frames)
            used = int(t.counts[machine.FRAMES])
            hashes = machine.frame_hashes(frames, used, 2 * len(frames))
            return t._replace(
                frames=frames, rest=_doubled(t.rest), near_frames=_doubled(t.near_frames), frame_hash=hashes
            )
        case need.CLOSURES:
            keys = _doubled(t.closure_keys)
            used = int(t.counts[machine.CLOSURES])
            return t._replace(
                closures=_doubled(t.closures),
                closure_keys=keys,
                closure_cover=_doubled(t.closure_cover),
                closure_hash=machine.closure_hashes(keys, used, 2 * len(keys)),
            )
        case need.CLOSURE_CONFIGS:
            return t._replace(closure_configs=_doubled(t.closure_configs))
        case need.STATES:
            states = _doubled(t.states)
            used = int(t.counts[machine.STATES])
            return t._replace(
                states=states,
                state_bytes=_doubled(t.state_bytes),
                state_length=_doubled(t.state_length),
                state_cover=_doubled(t.state_cover),
                table=_doubled(t.table),
                state_hash=machine.state_hashes(states, t.state_configs, used, 2 * len(states)),
            )
        case need.STATE_CONFIGS:
            return t._replace(state_configs=_doubled(t.state_configs, len(t.state_configs) + least))
        case need.SCRATCH:
            if len(t.todo) > 1 << 22:
                raise GrammarLimitError("one step of this grammar follows too many alternatives; simplify it")
            return t._replace(
                todo=_doubled(t.todo),
                gathered=_doubled(t.gathered),
                seen=_doubled(t.seen),
                seen_stamp=np.zeros(2 * len(t.seen_stamp), np.int64),
            )
        case _:
            raise AssertionError(scarce)
