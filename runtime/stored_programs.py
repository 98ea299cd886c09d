"""Programs of grammars as bytes: what a worker process sends, and what the grammar cache on disk holds.

A program is arrays, which are written as they are, and a few values: the graphs that it goes through, their states, and
words that are left out. Graphs and states are frozen dataclasses and named tuples of `palmette.constrained`, written as
their names and fields. Nothing that is read is ever executed; a value that is neither can cross the private pipe
between our own processes by pickle, but is never stored.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from palmette.constrained.program import Field, Op, Program
from palmette.constrained.rules import EMPTY, Graph, StateGraph

FORMAT = 3
"""Of the bytes; one more with every change."""

_CLASSES = "palmette.constrained."
_DEEPEST = 32
_LARGEST = (1 << 63) - 1
_DAMAGE = (ValueError, TypeError, AttributeError, ImportError, RecursionError, ArithmeticError, LookupError)


class UnreadableProgramError(ValueError):
    """Bytes that are not what `pack_program` of this version wrote."""


@dataclass(frozen=True, slots=True)
class PackedProgram:
    """A program as bytes.

    Attributes:
        data: what `unpack_program` reads.
        is_plain: whether anybody may read it, so that it may be stored; else it is for a private pipe alone.
    """

    data: bytes
    is_plain: bool


def pack_program(program: Program) -> PackedProgram:
    """`program` as bytes. It must be new: an automaton writes into the one that it follows."""
    packing = _Packing()
    graphs = [packing.graph(position, graph) for position, graph in program.graphs.items()]
    words = [[position, *sorted(left_out)] for position, left_out in program.words.items()]
    arrays = [array.astype(kind).tobytes() for array, kind in _arrays(program)]
    table = [FORMAT, arrays, program.start, program.rules, program.flags, packing.specs, graphs, words]
    return PackedProgram(msgspec.msgpack.encode(table), packing.is_plain)


def unpack_program(data: bytes, *, is_private: bool = False) -> Program:
    """The program that `pack_program` has written, but that its graphs stand without the nodes of their bodies.

    Args:
        data: the bytes.
        is_private: they come from our own child process; else pickled values are refused unread.

    Raises:
        UnreadableProgramError: they are damaged, or of another version.
    """
    try:
        version, arrays, start, rules, flags, specs, graphs, words = msgspec.msgpack.decode(data)
        if version != FORMAT:
            raise UnreadableProgramError(f"the program is of format {version}, not {FORMAT}")
        positions, targets, masks = (
            np.frombuffer(array, kind).astype(np.int64) for array, kind in zip(arrays, _KINDS, strict=True)
        )
        positions, masks = positions.reshape(-1, len(Field)), masks.reshape(-1, 4)
        _check_places(positions, targets, masks, start)
        known = [_spec(spec, is_private) for spec in specs]
        counts = positions[:, Field.COUNT].tolist()
        return Program(
            positions,
            targets,
            masks,
            start,
            {at: Graph(known[spec], (EMPTY,) * counts[at], _value(state, is_private)) for at, spec, state in graphs},
            {at: frozenset(left_out) for at, *left_out in words},
            rules,
            flags,
        )
    except UnreadableProgramError:
        raise
    except (msgspec.MsgspecError, *_DAMAGE) as error:
        raise UnreadableProgramError(f"the program is damaged: {error}") from error


def text_bytes(text: str) -> bytes:
    """Any text as bytes, half a surrogate pair included, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The text that `text_bytes` has written."""
    return data.decode("utf-8", "surrogatepass")


_KINDS = ("<i4", "<i4", "<i8")


def _arrays(program: Program) -> list[tuple[NDArray[np.int64], str]]:
    return list(zip((program.positions, program.targets, program.masks), _KINDS, strict=True))


def _check_places(
    positions: NDArray[np.int64], targets: NDArray[np.int64], masks: NDArray[np.int64], start: int
) -> None:
    """Raise `UnreadableProgramError` where the compiled loops would read past the end of an array."""
    op, first, count = (positions[:, field] for field in (Field.OP, Field.TARGETS, Field.COUNT))
    places = np.concatenate([positions[:, Field.NEXT], positions[:, Field.BODY], targets, [start]])
    bounds = [(places, len(positions)), (op, len(Op)), (positions[:, Field.MASK], len(masks))]
    bounds += [(first, len(targets) + 1), (count, len(targets) + 1), (first + count, len(targets) + 1)]
    for values, end in bounds:
        if values.min() < 0 or values.max() >= end:
            raise UnreadableProgramError("the program is damaged: it leads to a place that does not exist")


# -- writing ------------------------------------------------------------------------------------------------------


class _Packing:
    """The graphs' specs so far, each once; `is_plain` falls with the first value that had to be pickled."""

    def __init__(self) -> None:
        self.specs: list[Any] = []
        self.is_plain = True
        self._places: dict[int, int] = {}  # by id() of a spec; the program keeps them all alive

    def graph(self, position: int, graph: Graph) -> list[Any]:
        place = self._places.get(id(graph.spec))
        if place is None:
            place = self._places[id(graph.spec)] = len(self.specs)
            self.specs.append(self._value(graph.spec))
        return [position, place, self._value(graph.state)]

    def _value(self, value: Hashable) -> Any:
        try:
            return _plain(value)
        except _NotPlainError:
            self.is_plain = False
            return ["pickle", pickle.dumps(value, protocol=5)]


class _NotPlainError(ValueError):
    """A value that has no plain spelling."""


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as msgpack can hold it: containers, big numbers and records as lists that begin with their kind."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, str):
        return ["str", text_bytes(value)]
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else ["int", hex(value)]
    if depth > _DEEPEST:
        raise _NotPlainError("nested too deeply")
    if type(value) in (tuple, list, frozenset):
        return [type(value).__name__, *(_plain(item, depth + 1) for item in value)]
    if isinstance(value, Mapping):
        return ["dict", *(_plain(item, depth + 1) for pair in value.items() for item in pair)]
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if not _is_record(type(value)) or not name.startswith(_CLASSES):
        raise _NotPlainError(name)
    fields = value if isinstance(value, tuple) else [getattr(value, name) for name in _arguments(type(value))]
    return ["object", name, *(_plain(field, depth + 1) for field in fields)]


def _is_record(kind: type[Any]) -> bool:
    """Whether it is a dataclass or a NamedTuple."""
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _arguments(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


# -- reading ------------------------------------------------------------------------------------------------------


def _spec(written: Any, is_private: bool) -> StateGraph:
    spec = _value(written, is_private)
    if not isinstance(spec, StateGraph):
        raise UnreadableProgramError(f"{spec!r} is no graph")
    return spec


def _value(written: Any, is_private: bool) -> Any:
    """What `_plain` has written."""
    if not isinstance(written, list):
        return written
    kind, items = written[0], written[1:]
    if kind == "int":
        return int(items[0], 16)
    if kind == "str":
        return bytes_text(items[0])
    if kind == "pickle":
        if not is_private:
            raise UnreadableProgramError("pickled values are not read from a file")
        return pickle.loads(items[0])
    if kind == "object":
        return _record(items[0])(*(_value(item, is_private) for item in items[1:]))
    values = [_value(item, is_private) for item in items]
    if kind == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    return _CONTAINERS[kind](values)


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}


def _record(name: str) -> type[Any]:
    module, _, qualname = name.partition(":")
    if not module.startswith(_CLASSES):
        raise UnreadableProgramError(f"{name} is no class of a grammar")
    found = getattr(sys.modules.get(module) or import_module(module), qualname)
    if not isinstance(found, type) or not _is_record(found):
        raise UnreadableProgramError(f"{name} is no class of a grammar")
    return found
