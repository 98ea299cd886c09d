"""The automaton's hot loops over plain arrays: closures, states, transitions, and the walk of the token trie.

Compiled by numba where it is installed; the same functions run as plain Python where it is not. They never call back:
a function that meets something it cannot do (a full array, a graph not yet expanded) leaves a `Need` in
``counts[NEED]``, returns a negative number, and is called again once automaton.py has seen to it. Everything that was
done before stays valid, so nothing is done twice.
"""

# Numbers here are numba's: numpy's and Python's are one type to it, not to mypy.
# mypy: disable-error-code="no-any-return,return-value,assignment,arg-type"

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .vocabulary import TokenTrie

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    """`function` as machine code that releases the GIL, kept between processes where some cache folder is writable."""
    try:
        import numba
    except ImportError:
        return function
    try:
        kept: Function = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder for its cache
        kept = numba.njit(nogil=True)(function)
    return kept


def _entry(function: Function) -> Function:
    """As `_compiled`, but without counting references to arrays, which would take most of the time of small calls."""
    try:
        import numba
    except ImportError:
        return function
    try:
        kept: Function = numba.njit(cache=True, nogil=True, _nrt=False)(function)
    except RuntimeError:  # numba found no folder for its cache
        kept = numba.njit(nogil=True, _nrt=False)(function)
    return kept


def _inner(function: Function) -> Function:
    """`function` for compiled functions only, which takes a fraction of the time to compile."""
    try:
        import numba
    except ImportError:
        return function
    inner: Function = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(function)
    return inner


def _part(function: Function) -> Function:
    """`function` as a part of the one compiled function that calls it, which is compiled and optimised once."""
    try:
        import numba
    except ImportError:
        return function
    part: Function = numba.njit(inline="always", _nrt=False)(function)
    return part


UNKNOWN = -1
DEAD = -2
FAILED = -3
BOTTOM = 0  # the frame under which the start rule runs

# Op and Field of program.py as plain numbers, which numba folds into the code.
_BYTES, _SPLIT, _CALL, _REPEAT, _RETURN, _GRAPH, _EXCEPT = range(7)
_OP, _NEXT, _BODY, _LOW, _HIGH, _TARGETS, _COUNT, _MASK, _FLAGS, _LOOPS = range(10)
_INFINITE = 1 << 40
SHIFT = 24
_SHIFT = np.int64(SHIFT)
_HERE = np.int64((1 << SHIFT) - 1)
_ONE = np.int64(1)
_ZERO = np.int64(0)  # a plain 0 would be a type of its own to numba, and every function compiled once more for it

# Columns of the arrays of `Tables`.
OWNER, PAYLOAD, BELOW = range(3)
FIRST, SIZE, ENDS, KNOWN_STATE = range(4)
STATE_FLAGS = 3
GRAPH_FIRST, GRAPH_SIZE, GRAPH_ENDS = range(3)
WORD_FIRST, WORD_SIZE, WORD_BYTE, IS_WORD = range(4)

# Entries of `Tables.counts`.
FRAMES, CLOSURES, CLOSURE_CONFIGS, STATES, STATE_CONFIGS, NEED, DETAIL, STAMP, MAX_CONFIGS, MAX_STATES = range(10)
SEEN, WORK, MAX_WORK, HORIZON = range(10, 14)


class Need(IntEnum):
    """Why a function stopped."""

    NOTHING = 0
    FRAMES = 1
    CLOSURES = 2
    CLOSURE_CONFIGS = 3
    STATES = 4
    STATE_CONFIGS = 5
    SCRATCH = 6
    GRAPH = 7  # expand graph state DETAIL
    WORDS = 8  # make the trie of the EXCEPT at position DETAIL
    COVER = 9  # find out what the loop or repetition at position DETAIL covers
    FEWER_CONFIGS = 10  # a limit was met
    FEWER_STATES = 11  # a limit was met
    LESS_WORK = 12  # a limit was met
    NEAR = 13  # find out what graph state DETAIL is near to


# The same for numba, of one type: for each plain number that is passed, a function would be compiled once more.
_NEED_FRAMES, _NEED_CLOSURES, _NEED_CLOSURE_CONFIGS, _NEED_STATES, _NEED_STATE_CONFIGS, _NEED_SCRATCH = (
    np.int64(number) for number in range(1, 7)
)
_NEED_GRAPH, _NEED_WORDS, _NEED_COVER, _NEED_FEWER_CONFIGS, _NEED_FEWER_STATES, _NEED_LESS_WORK, _NEED_NEAR = (
    np.int64(number) for number in range(7, 14)
)

LANES = 6  # slices that a state may cover, a byte each in its cover
MANY = 127  # in a lane: no bound on the characters


class Tables(NamedTuple):
    """All arrays of one automaton. A *configuration* is ``frame << SHIFT | position``, an int64.

    Attributes:
        positions, targets, masks: of `Program`.
        shortest: [positions] int64, fewest bytes from a position to the RETURN of its rule, round, body or text.
        covers: [positions] int64 of SPLITs that loop and REPEATs: bit k, slice k is covered; -1 not known yet.
        frames: [capacity, 3] int64 interned stacks: OWNER position, PAYLOAD (rounds, graph state, trie node), BELOW.
        rest: [capacity] int64, fewest bytes after the frame's own rule or round has returned.
        near_frames: [capacity] int64, the frame that each is near to, see `_near`; -1 not known yet.
        frame_hash: [power of two] int32, frame ids or -1.
        closures: [capacity, 4] int64: FIRST and SIZE in closure_configs, ENDS, KNOWN_STATE (or -1).
        closure_keys: [capacity] int64, the configuration that each closure begins with.
        closure_cover: [capacity] int64, lanes as in `state_cover`.
        closure_configs: [capacity] int64, sorted.
        closure_hash: [power of two] int32.
        states: [capacity, 4] int64: FIRST and SIZE in state_configs, ENDS, STATE_FLAGS.
        state_configs: [capacity] int64, sorted.
        state_bytes: [capacity, 4] int64, the bytes that may come.
        state_length: [capacity] int64, bytes of a shortest ending.
        state_cover: [capacity] int64, byte k: how many characters of slice k are allowed whatever they are.
        state_hash: [power of two] int32.
        table: [capacity, kinds] int32, the next state, DEAD or UNKNOWN.
        kind_of: [256] int64, the kind of each byte: the grammar never tells bytes of a kind apart.
        kind_byte: [kinds] int64, a byte of each kind.
        spellings: [spellings, 17] int64 of the slices' characters, see slices.spellings.
        graphs: [capacity, 3] int64 of graph states: GRAPH_FIRST and GRAPH_SIZE (-1: not expanded) in edges, GRAPH_ENDS.
        graph_cost: [capacity] int64, fewest bytes to an end.
        graph_cover: [capacity] int64, lanes as in `state_cover`, of graph states that were expanded.
        graph_near: [capacity] int64, the graph state that may stand for each; -1 not known yet.
        edges: [capacity, 2] int64: position of the body, graph state after it.
        words: [capacity, 4] int64 of trie nodes: WORD_FIRST and WORD_SIZE of children, WORD_BYTE, IS_WORD.
        word_bytes: [capacity, 4] int64, the bytes of a node's children.
        todo, gathered: [capacity] int64 scratch.
        seen, seen_stamp: [power of two] int64 scratch.
        scratch_bytes: [4] int64 scratch.
        reached: [64] int64 scratch, states.
        counts: [16] int64: how much of each array is used, limits and needs.
    """

    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    masks: NDArray[np.int64]
    shortest: NDArray[np.int64]
    covers: NDArray[np.int64]
    frames: NDArray[np.int64]
    rest: NDArray[np.int64]
    near_frames: NDArray[np.int64]
    frame_hash: NDArray[np.int32]
    closures: NDArray[np.int64]
    closure_keys: NDArray[np.int64]
    closure_cover: NDArray[np.int64]
    closure_configs: NDArray[np.int64]
    closure_hash: NDArray[np.int32]
    states: NDArray[np.int64]
    state_configs: NDArray[np.int64]
    state_bytes: NDArray[np.int64]
    state_length: NDArray[np.int64]
    state_cover: NDArray[np.int64]
    state_hash: NDArray[np.int32]
    table: NDArray[np.int32]
    kind_of: NDArray[np.int64]
    kind_byte: NDArray[np.int64]
    spellings: NDArray[np.int64]
    graphs: NDArray[np.int64]
    graph_cost: NDArray[np.int64]
    graph_cover: NDArray[np.int64]
    graph_near: NDArray[np.int64]
    edges: NDArray[np.int64]
    words: NDArray[np.int64]
    word_bytes: NDArray[np.int64]
    todo: NDArray[np.int64]
    gathered: NDArray[np.int64]
    seen: NDArray[np.int64]
    seen_stamp: NDArray[np.int64]
    scratch_bytes: NDArray[np.int64]
    reached: NDArray[np.int64]
    counts: NDArray[np.int64]


@_inner
def _stop(t: Tables, need: int, detail: int) -> int:
    t.counts[NEED] = need
    t.counts[DETAIL] = detail
    return FAILED


@_inner
def _mixed(a: int, b: int) -> int:
    """A hash of two numbers. The multiplication overflows on purpose, and is cut to 31 bits first."""
    x = (a * 0x9E3779B1 + b * 0x85EBCA77) & 0x7FFFFFFFFFFF
    x ^= x >> 15
    x = (x & 0x7FFFFFFF) * 0x2C1B3C6D & 0x7FFFFFFFFFFF
    return x ^ (x >> 13)


@_inner
def _push(t: Tables, owner: int, payload: int, below: int) -> int:
    """The frame of these three, interned, or FAILED."""
    size = len(t.frame_hash)
    slot = _mixed(_mixed(owner, payload + 7), below) & (size - 1)
    while t.frame_hash[slot] >= 0:
        frame = np.int64(t.frame_hash[slot])
        if t.frames[frame, OWNER] == owner and t.frames[frame, PAYLOAD] == payload and t.frames[frame, BELOW] == below:
            return frame
        slot = (slot + 1) & (size - 1)
    frame = t.counts[FRAMES]
    if frame == len(t.frames) or 2 * frame >= size:
        return _stop(t, _NEED_FRAMES, _ZERO)
    t.frames[frame, OWNER] = owner
    t.frames[frame, PAYLOAD] = payload
    t.frames[frame, BELOW] = below
    t.rest[frame] = min(_INFINITE, t.rest[below] + _rest_of(t, owner, payload))
    t.near_frames[frame] = -1
    t.frame_hash[slot] = frame
    t.counts[FRAMES] = frame + 1
    return frame


@_inner
def _rest_of(t: Tables, owner: int, payload: int) -> int:
    """Fewest bytes from the RETURN under a frame of `owner` to the RETURN under the frame below."""
    rest = t.shortest[t.positions[owner, _NEXT]]
    op = t.positions[owner, _OP]
    if op == _GRAPH:
        rest += t.graph_cost[payload]
    elif op == _REPEAT:
        rounds = t.positions[owner, _LOW] - payload - 1
        if rounds > 0:
            rest += rounds * t.shortest[t.positions[owner, _BODY]]
    return min(rest, _INFINITE)


@_inner
def _visit(t: Tables, config: int, waiting: int) -> int:
    """Put `config` on the todo list of `waiting` entries unless it was there or can reach no end. The new length."""
    if t.shortest[config & _HERE] + t.rest[config >> _SHIFT] >= _INFINITE:
        return waiting
    size = len(t.seen)
    slot = _mixed(config, config >> 32) & (size - 1)
    stamp = t.counts[STAMP]
    while t.seen_stamp[slot] == stamp:
        if t.seen[slot] == config:
            return waiting
        slot = (slot + 1) & (size - 1)
    t.counts[SEEN] += 1
    t.counts[WORK] += 1
    if waiting + 1 >= len(t.todo) or 2 * t.counts[SEEN] >= size:
        return _stop(t, _NEED_SCRATCH, _ZERO)
    t.seen[slot] = config
    t.seen_stamp[slot] = stamp
    t.todo[waiting] = config
    return waiting + 1


@_inner
def _with_lanes(cover: int, slices: int, characters: int) -> int:
    """`cover` with at least `characters` in the lanes of `slices`."""
    for lane in range(LANES):
        if slices >> lane & 1 and (cover >> 8 * lane & 255) < characters:
            cover = (cover & ~(255 << 8 * lane)) | characters << 8 * lane
    return cover


@_inner
def _widest(first: int, second: int) -> int:
    """The larger of each lane of two covers."""
    for lane in range(LANES):
        wide = second >> 8 * lane & 255
        if (first >> 8 * lane & 255) < wide:
            first = (first & ~(255 << 8 * lane)) | wide << 8 * lane
    return first


@_inner
def _rounds(t: Tables, owner: int, done: int, below: int, waiting: int) -> int:
    """Visit what may follow `done` rounds of the REPEAT at `owner`."""
    low = t.positions[owner, _LOW]
    high = t.positions[owner, _HIGH]
    if high < 0:
        done = min(done, low)
    if done >= low:
        waiting = _visit(t, below << _SHIFT | t.positions[owner, _NEXT], waiting)
    if waiting >= 0 and (high < 0 or done < high):
        frame = _push(t, owner, done, below)
        if frame < 0:
            return FAILED
        waiting = _visit(t, frame << _SHIFT | t.positions[owner, _BODY], waiting)
    return waiting


@_inner
def _graph_moves(t: Tables, owner: int, state: int, below: int, waiting: int) -> int:
    """Visit what may follow the graph at `owner` in a graph state."""
    if t.graphs[state, GRAPH_SIZE] < 0:
        return _stop(t, _NEED_GRAPH, state)
    if t.graphs[state, GRAPH_ENDS]:
        waiting = _visit(t, below << _SHIFT | t.positions[owner, _NEXT], waiting)
    first = t.graphs[state, GRAPH_FIRST]
    for edge in range(first, first + t.graphs[state, GRAPH_SIZE]):
        if waiting < 0:
            return waiting
        frame = _push(t, owner, t.edges[edge, 1], below)
        if frame < 0:
            return FAILED
        waiting = _visit(t, frame << _SHIFT | t.edges[edge, 0], waiting)
    return waiting


@_inner
def _returned(t: Tables, frame: int, waiting: int) -> int:
    """Visit what comes after the RETURN under `frame`, which is not BOTTOM."""
    owner = t.frames[frame, OWNER]
    payload = t.frames[frame, PAYLOAD]
    below = t.frames[frame, BELOW]
    op = t.positions[owner, _OP]
    if op == _REPEAT:
        return _rounds(t, owner, payload + 1, below, waiting)
    if op == _GRAPH:
        return _graph_moves(t, owner, payload, below, waiting)
    if op == _EXCEPT and payload >= 0 and t.words[payload, IS_WORD]:
        return waiting
    return _visit(t, below << _SHIFT | t.positions[owner, _NEXT], waiting)


@_inner
def _follow(t: Tables, frame: int, here: int, waiting: int) -> int:
    """Visit what comes after position `here`, which takes no byte and is no RETURN."""
    op = t.positions[here, _OP]
    if op == _SPLIT:
        first = t.positions[here, _TARGETS]
        for index in range(first, first + t.positions[here, _COUNT]):
            if waiting >= 0:
                waiting = _visit(t, frame << _SHIFT | t.targets[index], waiting)
        return waiting
    if op == _REPEAT:
        return _rounds(t, here, _ZERO, frame, waiting)
    if op == _GRAPH:
        return _graph_moves(t, here, t.positions[here, _LOW], frame, waiting)
    payload = 0
    if op == _EXCEPT:
        payload = t.positions[here, _LOW]
        if payload < 0:
            return _stop(t, _NEED_WORDS, here)
    elif t.positions[here, _NEXT] == 0:
        # A tail call returns where its caller would: no frame, so chains of rules do not grow the stack.
        return _visit(t, frame << _SHIFT | t.positions[here, _BODY], waiting)
    frame = _push(t, here, payload, frame)
    if frame < 0:
        return FAILED
    return _visit(t, frame << _SHIFT | t.positions[here, _BODY], waiting)


@_inner
def _cover_at(t: Tables, frame: int, here: int, cover: int) -> int:
    """`cover`, widened by the loop or graph at `here`, or FAILED while it is not known what that covers."""
    if t.positions[here, _OP] == _SPLIT and t.positions[here, _LOOPS]:
        if t.covers[here] < 0:
            return _stop(t, _NEED_COVER, here)
        return _with_lanes(cover, t.covers[here], MANY)
    owner = t.frames[frame, OWNER]
    state = -1
    if t.positions[here, _OP] == _GRAPH:
        state = t.positions[here, _LOW]
    elif here == 0 and frame != BOTTOM and t.positions[owner, _OP] == _GRAPH:
        state = t.frames[frame, PAYLOAD]
    if state >= 0:
        if t.graphs[state, GRAPH_SIZE] < 0:
            return _stop(t, _NEED_GRAPH, state)
        return _widest(cover, t.graph_cover[state])
    if frame != BOTTOM and t.positions[owner, _OP] == _REPEAT and here == t.positions[owner, _BODY]:
        if t.covers[owner] < 0:
            return _stop(t, _NEED_COVER, owner)
        high = t.positions[owner, _HIGH]
        left = MANY if high < 0 else min(MANY, high - t.frames[frame, PAYLOAD])
        return _with_lanes(cover, t.covers[owner], left)
    return cover


@_inner
def _sort(numbers: NDArray[np.int64], first: int, end: int) -> None:
    """Sort a part of `numbers`: by insertion, from afar where it is long (Shell 1959, gaps of Knuth)."""
    gap = 1
    while gap < (end - first) // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for index in range(first + gap, end):
            number = numbers[index]
            place = index
            while place >= first + gap and numbers[place - gap] > number:
                numbers[place] = numbers[place - gap]
                place -= gap
            numbers[place] = number
        gap //= 3


@_inner
def _closure(t: Tables, start: int) -> int:
    """Index of the closure of configuration `start`: the configurations that take a byte, without taking one."""
    size = len(t.closure_hash)
    place = _mixed(start, start >> 32) & (size - 1)
    while t.closure_hash[place] >= 0:
        index = np.int64(t.closure_hash[place])
        if t.closure_keys[index] == start:
            return index
        place = (place + 1) & (size - 1)
    if t.counts[WORK] > t.counts[MAX_WORK]:
        return _stop(t, _NEED_LESS_WORK, t.counts[WORK])
    index = t.counts[CLOSURES]
    if index == len(t.closures) or 2 * index >= size:
        return _stop(t, _NEED_CLOSURES, _ZERO)
    first = t.counts[CLOSURE_CONFIGS]
    found = first
    ends = _ZERO
    cover = _ZERO
    t.counts[STAMP] += 1
    t.counts[SEEN] = 0
    waiting = _visit(t, start, _ZERO)
    while waiting > 0:
        waiting -= 1
        config = t.todo[waiting]
        frame = config >> _SHIFT
        here = config & _HERE
        cover = _cover_at(t, frame, here, cover)
        if cover < 0:
            return FAILED
        op = t.positions[here, _OP]
        if op == _BYTES:
            if found == len(t.closure_configs):
                return _stop(t, _NEED_CLOSURE_CONFIGS, _ZERO)
            if found - first >= t.counts[MAX_CONFIGS]:
                return _stop(t, _NEED_FEWER_CONFIGS, found - first)
            t.closure_configs[found] = config
            found += 1
        elif op == _RETURN:
            if frame == BOTTOM:
                ends = 1
            else:
                waiting = _returned(t, frame, waiting)
        else:
            waiting = _follow(t, frame, here, waiting)
    if waiting < 0:
        return FAILED
    _sort(t.closure_configs, first, found)
    found = _without_dead_words(t, first, found)
    if found < 0:
        return FAILED
    t.closures[index, FIRST] = first
    t.closures[index, SIZE] = found - first
    t.closures[index, ENDS] = ends
    t.closures[index, KNOWN_STATE] = -1
    t.closure_keys[index] = start
    t.closure_cover[index] = cover
    t.closure_hash[place] = index
    t.counts[CLOSURES] = index + 1
    t.counts[CLOSURE_CONFIGS] = found
    return index


@_inner
def _without_dead_words(t: Tables, first: int, end: int) -> int:
    """Drop the configurations of a closure that can only go on to a word of their EXCEPT. The new end, or FAILED."""
    kept = first
    for index in range(first, end):
        config = t.closure_configs[index]
        length = _length(t, config >> _SHIFT, config & _HERE)
        if length < 0:
            return FAILED
        if length < _INFINITE:
            t.closure_configs[kept] = config
            kept += 1
    return kept


@_inner
def _state_of(t: Tables, count: int, ends: int, cover: int) -> int:
    """The state of the `count` sorted, distinct configurations in `gathered`; DEAD for none where nothing ends."""
    if count == 0 and ends == 0:
        return DEAD
    size = len(t.state_hash)
    hashed = _mixed(count, ends)
    for index in range(count):
        hashed = _mixed(hashed ^ (t.gathered[index] & 0x7FFFFFFF), t.gathered[index] >> 31)
    slot = hashed & (size - 1)
    while t.state_hash[slot] >= 0:
        state = np.int64(t.state_hash[slot])
        if t.states[state, SIZE] == count and t.states[state, ENDS] == ends:
            first = t.states[state, FIRST]
            same = True
            for index in range(count):
                if t.state_configs[first + index] != t.gathered[index]:
                    same = False
                    break
            if same:
                return state
        slot = (slot + 1) & (size - 1)
    state = t.counts[STATES]
    if state >= t.counts[MAX_STATES]:
        return _stop(t, _NEED_FEWER_STATES, state)
    if state == len(t.states) or 2 * state >= size:
        return _stop(t, _NEED_STATES, _ZERO)
    if t.counts[STATE_CONFIGS] + count > len(t.state_configs):
        return _stop(t, _NEED_STATE_CONFIGS, count)
    if not _fill_state(t, state, count, ends, cover):
        return FAILED
    t.state_hash[slot] = state
    t.counts[STATES] = state + 1
    return state


@_part
def _fill_state(t: Tables, state: int, count: int, ends: int, cover: int) -> bool:
    first = t.counts[STATE_CONFIGS]
    flags = 0
    length = _INFINITE
    for word in range(4):
        t.state_bytes[state, word] = 0
    for index in range(count):
        config = t.gathered[index]
        t.state_configs[first + index] = config
        frame = config >> _SHIFT
        here = config & _HERE
        if not _add_bytes(t, state, config):
            return False
        flags |= t.positions[here, _FLAGS]
        rest = _length(t, frame, here)
        if rest < 0:
            return False
        length = min(length, rest + t.rest[frame])
    t.states[state, FIRST] = first
    t.states[state, SIZE] = count
    t.states[state, ENDS] = ends
    t.states[state, STATE_FLAGS] = flags
    t.state_cover[state] = cover
    t.state_length[state] = 0 if ends else length
    t.counts[STATE_CONFIGS] = first + count
    for kind in range(len(t.kind_byte)):
        byte = t.kind_byte[kind]
        t.table[state, kind] = UNKNOWN if t.state_bytes[state, byte >> 6] >> (byte & 63) & 1 else DEAD
    t.counts[WORK] += len(t.kind_byte) // 8 + count
    return True


@_part
def _add_bytes(t: Tables, state: int, config: int) -> bool:
    """Add to the bytes of `state` those that `config` takes, but those after which its EXCEPT leaves nothing."""
    frame = config >> _SHIFT
    mask = t.positions[config & _HERE, _MASK]
    for word in range(4):
        t.scratch_bytes[word] = t.masks[mask, word]
    node = t.frames[frame, PAYLOAD]
    if frame != BOTTOM and t.positions[t.frames[frame, OWNER], _OP] == _EXCEPT and node >= 0:
        first = t.words[node, WORD_FIRST]
        for child in range(first, first + t.words[node, WORD_SIZE]):
            byte = t.words[child, WORD_BYTE]
            if t.scratch_bytes[byte >> 6] >> (byte & 63) & 1:
                length = _shortest_without(t, t.positions[config & _HERE, _NEXT], child)
                if length < 0:
                    return False
                if length >= _INFINITE:
                    t.scratch_bytes[byte >> 6] &= ~(_ONE << (byte & 63))
    for word in range(4):
        t.state_bytes[state, word] |= t.scratch_bytes[word]
    return True


@_inner
def _length(t: Tables, frame: int, here: int) -> int:
    """Fewest bytes from `here` to the RETURN under `frame`; an EXCEPT must not spell one of its words."""
    owner = t.frames[frame, OWNER]
    node = t.frames[frame, PAYLOAD]
    if frame == BOTTOM or t.positions[owner, _OP] != _EXCEPT or node < 0:
        return t.shortest[here]
    return _shortest_without(t, here, node)


@_inner
def _shortest_without(t: Tables, start: int, node: int) -> int:
    """Fewest bytes from position `start` of a flat body, at a trie node, to a RETURN that is no word. FAILED as ever.

    Goes by length: `gathered` beyond its half holds the (position, node) pairs of one length, `todo` those of the next.
    """
    nodes = len(t.words) + 1
    t.counts[STAMP] += 1
    t.counts[SEEN] = 0
    half = len(t.gathered) // 2
    t.gathered[half] = start * nodes + node + 1
    level = _ZERO + 1
    for length in range(1 << 20):
        following = _ZERO
        done = 0
        while done < level:
            here = t.gathered[half + done] // nodes
            at = t.gathered[half + done] % nodes - 1
            done += 1
            op = t.positions[here, _OP]
            if op == _RETURN:
                if at < 0 or not t.words[at, IS_WORD]:
                    return length
            elif op == _BYTES:
                following = _spelled(t, here, at, nodes, following)
            elif op == _CALL:
                level = _noted(t, t.positions[here, _BODY] * nodes + at + 1, half, level)
            else:
                first = t.positions[here, _TARGETS]
                for index in range(first, first + t.positions[here, _COUNT]):
                    if level >= 0:
                        level = _noted(t, t.targets[index] * nodes + at + 1, half, level)
            if following < 0 or level < 0:
                return FAILED
        if following == 0 or half + following >= len(t.gathered):
            return _INFINITE if following == 0 else _stop(t, _NEED_SCRATCH, _ZERO)
        t.counts[STAMP] += 1
        t.counts[SEEN] = 0
        level = _ZERO
        for index in range(following):
            level = _noted(t, t.todo[index], half, level)
            if level < 0:
                return FAILED
    return _INFINITE


@_inner
def _noted(t: Tables, pair: int, half: int, level: int) -> int:
    """Add `pair` to the pairs of this length in `gathered`, unless it is there."""
    size = len(t.seen)
    slot = _mixed(pair, pair >> 32) & (size - 1)
    while t.seen_stamp[slot] == t.counts[STAMP]:
        if t.seen[slot] == pair:
            return level
        slot = (slot + 1) & (size - 1)
    t.counts[SEEN] += 1
    if 2 * t.counts[SEEN] >= size or half + level >= len(t.gathered):
        return _stop(t, _NEED_SCRATCH, _ZERO)
    t.seen[slot] = pair
    t.seen_stamp[slot] = t.counts[STAMP]
    t.gathered[half + level] = pair
    return level + 1


@_inner
def _spelled(t: Tables, here: int, at: int, nodes: int, following: int) -> int:
    """Add to `todo` what one byte of position `here` leads to: every word's next byte, and any other."""
    then = t.positions[here, _NEXT]
    mask = t.positions[here, _MASK]
    others = False
    for word in range(4):
        told_apart = t.word_bytes[at, word] if at >= 0 else 0
        if t.masks[mask, word] & ~told_apart:
            others = True
    if at >= 0:
        first = t.words[at, WORD_FIRST]
        for child in range(first, first + t.words[at, WORD_SIZE]):
            byte = t.words[child, WORD_BYTE]
            if t.masks[mask, byte >> 6] >> (byte & 63) & 1:
                if following == len(t.todo):
                    return _stop(t, _NEED_SCRATCH, _ZERO)
                t.todo[following] = then * nodes + child + 1
                following += 1
    if others:
        if following == len(t.todo):
            return _stop(t, _NEED_SCRATCH, _ZERO)
        t.todo[following] = then * nodes
        following += 1
    return following


@_inner
def _state_of_closure(t: Tables, index: int) -> int:
    """The state of one closure alone."""
    known = t.closures[index, KNOWN_STATE]
    if known >= 0:
        return known
    count = t.closures[index, SIZE]
    if count > len(t.gathered) // 2:
        return _stop(t, _NEED_SCRATCH, _ZERO)
    first = t.closures[index, FIRST]
    for place in range(count):
        t.gathered[place] = t.closure_configs[first + place]
    state = _state_of(t, count, t.closures[index, ENDS], t.closure_cover[index])
    if state >= 0:
        t.closures[index, KNOWN_STATE] = state
    return state


@_inner
def _after_byte(t: Tables, config: int, byte: int) -> int:
    """The configuration after `config` took `byte`: an EXCEPT right above follows its words. FAILED as ever."""
    frame = config >> _SHIFT
    then = t.positions[config & _HERE, _NEXT]
    owner = t.frames[frame, OWNER]
    node = t.frames[frame, PAYLOAD]
    if frame == BOTTOM or t.positions[owner, _OP] != _EXCEPT or node < 0:
        return frame << _SHIFT | then
    after = -1
    if t.word_bytes[node, byte >> 6] >> (byte & 63) & 1:
        low = t.words[node, WORD_FIRST]
        high = low + t.words[node, WORD_SIZE] - 1
        while low < high:
            middle = (low + high) >> 1
            if t.words[middle, WORD_BYTE] < byte:
                low = middle + 1
            else:
                high = middle
        after = low
    frame = _push(t, owner, after, t.frames[frame, BELOW])
    return FAILED if frame < 0 else frame << _SHIFT | then


@_inner
def _step(t: Tables, state: int, byte: int) -> int:
    """The state after `byte`, DEAD, or FAILED with a `Need`. Fills in every byte that the state treats alike."""
    known = np.int64(t.table[state, t.kind_of[byte]])
    if known != UNKNOWN:
        return known
    word = byte >> 6
    bit = byte & 63
    alike0 = t.state_bytes[state, 0]
    alike1 = t.state_bytes[state, 1]
    alike2 = t.state_bytes[state, 2]
    alike3 = t.state_bytes[state, 3]
    count, ends, cover, only = _ZERO, _ZERO, _ZERO, _ZERO
    closures = 0
    first = t.states[state, FIRST]
    for place in range(first, first + t.states[state, SIZE]):
        config = t.state_configs[place]
        mask = t.positions[config & _HERE, _MASK]
        takes = t.masks[mask, word] >> bit & 1
        flip = 0 if takes else -1
        alike0 &= t.masks[mask, 0] ^ flip
        alike1 &= t.masks[mask, 1] ^ flip
        alike2 &= t.masks[mask, 2] ^ flip
        alike3 &= t.masks[mask, 3] ^ flip
        if not takes:
            continue
        frame = config >> _SHIFT
        node = t.frames[frame, PAYLOAD]
        if frame != BOTTOM and t.positions[t.frames[frame, OWNER], _OP] == _EXCEPT and node >= 0:
            keep = 0
            if t.word_bytes[node, word] >> bit & 1:
                keep = -1
            alike0 &= t.word_bytes[node, 0] ^ ~keep
            alike1 &= t.word_bytes[node, 1] ^ ~keep
            alike2 &= t.word_bytes[node, 2] ^ ~keep
            alike3 &= t.word_bytes[node, 3] ^ ~keep
            if keep:  # a byte of its own
                alike0 = 0
                alike1 = 0
                alike2 = 0
                alike3 = 0
        target = _after_byte(t, config, byte)
        if target < 0:
            return FAILED
        index = _closure(t, target)
        if index < 0:
            return FAILED
        if closures == 0:
            only = index
        closures += 1
        ends |= t.closures[index, ENDS]
        cover = _widest(cover, t.closure_cover[index])
        t.counts[WORK] += t.closures[index, SIZE]
        if count + t.closures[index, SIZE] > len(t.gathered) // 2:
            return _stop(t, _NEED_SCRATCH, _ZERO)
        begin = t.closures[index, FIRST]
        for each in range(begin, begin + t.closures[index, SIZE]):
            t.gathered[count] = t.closure_configs[each]
            count += 1
    target = _state_of_closure(t, only) if closures == 1 else _united(t, count, ends, cover)
    if target == FAILED:
        return FAILED
    t.table[state, t.kind_of[byte]] = target
    for kind in range(len(t.kind_byte)):
        other = t.kind_byte[kind]
        alike = alike0 if other < 64 else alike1 if other < 128 else alike2 if other < 192 else alike3
        if alike >> (other & 63) & 1:
            t.table[state, kind] = target
    return target


@_inner
def _united(t: Tables, count: int, ends: int, cover: int) -> int:
    """The state of the `count` configurations in `gathered`, which may repeat and come in any order."""
    _sort(t.gathered, _ZERO, count)
    distinct = _ZERO
    for index in range(count):
        if index == 0 or t.gathered[index] != t.gathered[distinct - 1]:
            t.gathered[distinct] = t.gathered[index]
            distinct += 1
    if distinct > t.counts[MAX_CONFIGS]:
        return _stop(t, _NEED_FEWER_CONFIGS, distinct)
    return _state_of(t, distinct, ends, cover)


@_inner
def _near(t: Tables, state: int) -> int:
    """A state that allows the same as `state` for HORIZON bytes: counts far from their bounds stand at one number.

    So the states of a long string have few masks, and what follows each of them is made but once.
    """
    count = t.states[state, SIZE]
    if count > len(t.gathered) // 2:
        return _stop(t, _NEED_SCRATCH, _ZERO)
    first = t.states[state, FIRST]
    same = True
    for index in range(count):
        config = t.state_configs[first + index]
        frame = _near_frame(t, config >> _SHIFT)
        if frame < 0:
            return FAILED
        same = same and frame == config >> _SHIFT
        t.gathered[index] = frame << _SHIFT | config & _HERE
    if same:
        return state
    cover = _ZERO
    for lane in range(LANES):  # one character takes one round at most
        cover |= min(t.state_cover[state] >> 8 * lane & 255, min(MANY, t.counts[HORIZON])) << 8 * lane
    return _united(t, count, t.states[state, ENDS], cover)


@_inner
def _near_frame(t: Tables, frame: int) -> int:
    """The frame with counts that are near to those of `frame` and of all below."""
    waiting = 0
    while frame != BOTTOM and t.near_frames[frame] < 0:
        if waiting == len(t.todo):
            return _stop(t, _NEED_SCRATCH, _ZERO)
        t.todo[waiting] = frame
        waiting += 1
        frame = t.frames[frame, BELOW]
    near = _ZERO
    if frame != BOTTOM:
        near = t.near_frames[frame]
    while waiting > 0:
        waiting -= 1
        frame = t.todo[waiting]
        owner = t.frames[frame, OWNER]
        payload = t.frames[frame, PAYLOAD]
        if t.positions[owner, _OP] == _GRAPH:
            if t.graph_near[payload] < 0:
                return _stop(t, _NEED_NEAR, payload)
            payload = t.graph_near[payload]
        elif t.positions[owner, _OP] == _REPEAT:
            payload = _near_count(payload, t.positions[owner, _LOW], t.positions[owner, _HIGH], t.counts[HORIZON])
        near = _push(t, owner, payload, near)
        if near < 0:
            return FAILED
        t.near_frames[frame] = near
    return near


@_inner
def _near_count(done: int, low: int, high: int, horizon: int) -> int:
    """As many rounds as may stand for `done`, those before the present one: more than `horizon` from either bound."""
    if done < low:
        return max(done, low - 1 - horizon)
    return done if high < 0 else max(done, min(max(low, high - 1 - horizon), high - 1))


TRIE_BYTE, TRIE_END, TRIE_DEPTH, TRIE_FIRST = range(4)  # columns of TokenTrie.nodes


@_part
def _covered(t: Tables, start: int, wanted: int) -> int:
    """Slices any character of which leads from configuration `start` to all of `wanted`. Bit k: slice k.

    Args:
        t: tables of the automaton; states are made as they are met.
        start: a configuration.
        wanted: a configuration, or -1 for the end of the text.
    """
    index = _closure(t, start)
    before = index if index < 0 else _state_of_closure(t, index)
    after = before
    if before >= 0 and wanted >= 0:
        index = _closure(t, wanted)
        after = index if index < 0 else _state_of_closure(t, index)
    if before == FAILED or after == FAILED:
        return FAILED
    if before < 0 or after < 0:
        return 0
    failed = 0
    found = 0
    reached = t.reached
    for row in range(len(t.spellings)):
        lane = t.spellings[row, 0]
        if failed >> lane & 1:
            continue
        found |= 1 << lane
        reached[0] = before
        end = _spelled_out(t, row, reached)
        if end == FAILED:
            return FAILED
        for each in range(end):
            if not (_holds_all(t, reached[each], after) if wanted >= 0 else t.states[reached[each], ENDS]):
                end = 0
                break
        if end == 0:
            failed |= 1 << lane
    return found & ~failed


@_inner
def _spelled_out(t: Tables, row: int, reached: NDArray[np.int64]) -> int:
    """Overwrite ``reached[0]``, a state, with those after the characters of a spelling; how many, or 0 if some fails.

    More than half of `reached` is too many to follow.
    """
    half = len(reached) // 2
    count = 1
    for place in range(1, 17, 4):
        last = True
        for word in range(4):
            last = last and t.spellings[row, place + word] == 0
        if last:
            break
        after = 0
        for index in range(count):
            for word in range(4):
                if t.spellings[row, place + word] & ~t.state_bytes[reached[index], word]:
                    return 0
            for byte in range(256):
                if t.spellings[row, place + (byte >> 6)] >> (byte & 63) & 1 == 0:
                    continue
                following = _step(t, reached[index], _ZERO + byte)
                if following < 0:
                    return 0 if following == DEAD else FAILED
                new = True
                for other in range(half, half + after):
                    new = new and reached[other] != following
                if new:
                    if after == half:
                        return 0
                    reached[half + after] = following
                    after += 1
        for index in range(after):
            reached[index] = reached[half + index]
        count = after
    return count


@_inner
def _holds_all(t: Tables, state: int, wanted: int) -> bool:
    """Whether the configurations of `wanted` are among those of `state`."""
    place = t.states[state, FIRST]
    end = place + t.states[state, SIZE]
    first = t.states[wanted, FIRST]
    for index in range(first, first + t.states[wanted, SIZE]):
        while place < end and t.state_configs[place] < t.state_configs[index]:
            place += 1
        if place == end or t.state_configs[place] != t.state_configs[index]:
            return False
    return True


@_part
def _walk(
    t: Tables,
    trie: TokenTrie,
    path: NDArray[np.int32],
    bits: NDArray[np.uint32],
    landing: NDArray[np.int32],
    sets_bits: bool,
    node: int,
) -> int:
    """Find the tokens that the state in ``path[0]`` allows, from trie node `node` on.

    Args:
        t: tables of the automaton; states are made as they are met.
        trie: tokens to try.
        path: [longest token + 1] int32; ``path[d]`` is the state after d bytes. Written.
        bits: [words] uint32; bit ``i % 32`` of word ``i // 32`` is token i. Written if `sets_bits`.
        landing: [tokens] int32, the state after each allowed token. Written if not `sets_bits`; others are left alone.
        sets_bits: which of the two is asked for.
        node: 0, or what an earlier call returned.

    Returns:
        The number of nodes when done; else the node to go on from once ``counts[NEED]`` was seen to.
    """
    last = len(trie.nodes) - 1
    while node < last:
        depth = trie.nodes[node, TRIE_DEPTH]
        byte = trie.nodes[node, TRIE_BYTE]
        state = np.int64(t.table[path[depth - 1], t.kind_of[byte]])
        if state == UNKNOWN:
            state = _step(t, np.int64(path[depth - 1]), np.int64(byte))
            if state == FAILED:
                return node
        if state == DEAD:
            node = np.int64(trie.nodes[node, TRIE_END])
            continue
        path[depth] = state
        for index in range(trie.nodes[node, TRIE_FIRST], trie.nodes[node + 1, TRIE_FIRST]):
            token = trie.ids[index]
            if sets_bits:
                bits[token >> 5] |= np.uint32(1 << (token & 31))
            else:
                landing[token] = state
        node += 1
    return last


STEP, CLOSURE_STATE, PUSH, COVERED, SHORTEST_WITHOUT, WALK_MASK, WALK_LANDING, NEAR_STATE = range(8)
"""What `run` does."""


@_entry
def run(
    t: Tables,
    what: int,
    a: int,
    b: int,
    c: int,
    trie: TokenTrie,
    path: NDArray[np.int32],
    bits: NDArray[np.uint32],
    landing: NDArray[np.int32],
) -> int:
    """The one way into this module, so that what the loops share is compiled once.

    Args:
        t: tables of the automaton.
        what: STEP (a state, a byte), CLOSURE_STATE (a configuration), PUSH (owner, payload, below), COVERED (two
            configurations), SHORTEST_WITHOUT (position, trie node), NEAR_STATE (a state), WALK_MASK or WALK_LANDING
            (the trie node to go on from).
        a, b, c: as `what` says.
        trie, path, bits, landing: of the walks.
    """
    if what == STEP:
        return _step(t, a, b)
    if what in (WALK_MASK, WALK_LANDING):
        return _walk(t, trie, path, bits, landing, what == WALK_MASK, a)
    if what == CLOSURE_STATE:
        index = _closure(t, a)
        return index if index < 0 else _state_of_closure(t, index)
    if what == NEAR_STATE:
        return _near(t, a)
    if what == PUSH:
        return _push(t, a, b, c)
    if what == COVERED:
        return _covered(t, a, b)
    return _shortest_without(t, a, b)


@_compiled
def shorten(
    positions: NDArray[np.int64], targets: NDArray[np.int64], graph_cost: NDArray[np.int64], shortest: NDArray[np.int64]
) -> bool:
    """One pass of the fewest bytes from each position to its RETURN, given bounds from above. Whether any fell.

    Args:
        positions, targets: of `Program`.
        graph_cost: [positions] int64, the cost of each GRAPH by the present bounds; of an EXCEPT, its shortest text.
        shortest: [positions] int64 bounds, `INFINITE` at first. Written.
    """
    fell = False
    for here in range(len(positions) - 1, -1, -1):
        op = positions[here, _OP]
        best = _INFINITE
        if op == _RETURN:
            best = 0
        elif op == _SPLIT:
            first = positions[here, _TARGETS]
            for index in range(first, first + positions[here, _COUNT]):
                best = min(best, shortest[targets[index]])
        else:
            best = shortest[positions[here, _NEXT]]
            if op == _BYTES:
                best += 1 if positions[here, _MASK] else _INFINITE
            elif op == _CALL:
                best += shortest[positions[here, _BODY]]
            elif op == _REPEAT:
                if positions[here, _LOW]:
                    best += positions[here, _LOW] * shortest[positions[here, _BODY]]
            else:
                best += graph_cost[here]
        if best < shortest[here]:
            shortest[here] = best
            fell = True
    return fell


@_compiled
def frame_hashes(frames: NDArray[np.int64], used: int, size: int) -> NDArray[np.int32]:
    """`Tables.frame_hash` of `size` slots for the first `used` of `frames`. BOTTOM is found by nobody."""
    slots = np.full(size, -1, np.int32)
    for frame in range(1, used):
        hashed = _mixed(_mixed(frames[frame, OWNER], frames[frame, PAYLOAD] + 7), frames[frame, BELOW])
        slot = hashed & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = frame
    return slots


@_compiled
def closure_hashes(keys: NDArray[np.int64], used: int, size: int) -> NDArray[np.int32]:
    """`Tables.closure_hash` of `size` slots for the first `used` of `keys`."""
    slots = np.full(size, -1, np.int32)
    for index in range(used):
        slot = _mixed(keys[index], keys[index] >> 32) & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = index
    return slots


@_compiled
def state_hashes(states: NDArray[np.int64], configs: NDArray[np.int64], used: int, size: int) -> NDArray[np.int32]:
    """`Tables.state_hash` of `size` slots for the first `used` of `states`."""
    slots = np.full(size, -1, np.int32)
    for state in range(used):
        count = states[state, SIZE]
        first = states[state, FIRST]
        hashed = _mixed(count, states[state, ENDS])
        for index in range(first, first + count):
            hashed = _mixed(hashed ^ (configs[index] & 0x7FFFFFFF), configs[index] >> 31)
        slot = hashed & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = state
    return slots


@_compiled
def trie_nodes(spelled: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """`TokenTrie.nodes` of sorted tokens.

    Args:
        spelled: all tokens, one after the other.
        lengths: [tokens] bytes of each, at least 1.
    """
    nodes = np.zeros((len(spelled) + 1, 4), np.int32)
    path = np.zeros(lengths.max() + 1 if len(lengths) else 1, np.int32)  # path[d]: the node at depth d + 1
    count = 0
    before = 0
    before_length = 0
    begin = 0
    for index in range(len(lengths)):
        length = lengths[index]
        shared = 0
        while shared < min(before_length, length) and spelled[before + shared] == spelled[begin + shared]:
            shared += 1
        for depth in range(shared, before_length):
            nodes[path[depth], TRIE_END] = count
        for depth in range(shared, length):
            path[depth] = count
            nodes[count, TRIE_BYTE] = spelled[begin + depth]
            nodes[count, TRIE_DEPTH] = depth + 1
            nodes[count, TRIE_FIRST] = index
            count += 1
        before = begin
        before_length = length
        begin += length
    for depth in range(before_length):
        nodes[path[depth], TRIE_END] = count
    nodes[count, TRIE_FIRST] = len(lengths)
    return nodes[: count + 1].copy()
