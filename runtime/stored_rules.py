"""Rules as bytes: what a worker process sends, and what the grammar cache on disk holds.

All nodes stand in one flat table, children before parents, each written once however often it is used; so sharing and
depth cost nothing. The table is msgpack of plain values. States of graphs and their specs are values too: frozen
dataclasses of `palmette.constrained`, written as their names and fields. Nothing that is read is ever executed; a spec
that is no such dataclass can cross the private pipe between our own processes by pickle, but is never stored.
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

from palmette.constrained.errors import PalmetteError
from palmette.constrained.rules import (
    ByteClass,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    StateGraph,
    children,
)

FORMAT = 1
"""Of the bytes; one more with every change."""

_CLASSES = "palmette.constrained."
_DEEPEST = 32
_LARGEST = (1 << 63) - 1
_PAUSE_NODES = 512
_DAMAGE = (ValueError, TypeError, AttributeError, ImportError, RecursionError)

_LITERAL, _CLASS, _SEQUENCE, _CHOICE, _REPEAT, _REF, _EXCEPT, _FLAGGED, _GRAPH = range(9)


class UnreadableRulesError(ValueError):
    """Bytes that are not what `pack_rules` of this version wrote."""


@dataclass(frozen=True, slots=True)
class PackedRules:
    """Rules as bytes.

    Attributes:
        data: what `unpack_rules` reads.
        is_plain: whether anybody may read it, so that it may be stored; else it is for a private pipe alone.
    """

    data: bytes
    is_plain: bool


def pack_rules(rules: Rules) -> PackedRules:
    """`rules` as bytes."""
    packing = _Packing()
    for root in rules.rules.values():
        packing.add(root)
    roots = [packing.index(root) for root in rules.rules.values()]
    table = [FORMAT, text_bytes(rules.start), list(map(text_bytes, rules.rules)), roots, packing.rows]
    return PackedRules(msgspec.msgpack.encode(table), packing.is_plain)


def unpack_rules(data: bytes, *, is_private: bool = False, pause: Callable[[], None] | None = None) -> Rules:
    """The rules that `pack_rules` has written. They are not verified again.

    Args:
        data: the bytes.
        is_private: they come from our own child process; else pickled specs are refused unread.
        pause: called every few hundred nodes, to let other threads go on or to end this by an exception.

    Raises:
        UnreadableRulesError: they are damaged, or of another version.
    """
    try:
        version, start, names, roots, rows = msgspec.msgpack.decode(data)
        if version != FORMAT:
            raise UnreadableRulesError(f"the rules are of format {version}, not {FORMAT}")
        nodes: list[Node] = []
        for place, row in enumerate(rows):
            if pause is not None and place % _PAUSE_NODES == 0:
                pause()
            nodes.append(_READERS[row[0]](row, nodes, is_private))
        roots = [nodes[index] for index in roots]
        return Rules(bytes_text(start), dict(zip(map(bytes_text, names), roots, strict=True)))
    except (UnreadableRulesError, PalmetteError):  # the latter from `pause`
        raise
    except (msgspec.MsgspecError, ArithmeticError, LookupError, *_DAMAGE) as error:
        raise UnreadableRulesError(f"the rules are damaged: {error}") from error


def text_bytes(text: str) -> bytes:
    """Any text as bytes, half a surrogate pair included, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The text that `text_bytes` has written."""
    return data.decode("utf-8", "surrogatepass")


# -- writing ------------------------------------------------------------------------------------------------------


class _Packing:
    """The rows so far; `is_plain` falls with the first spec that had to be pickled."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.is_plain = True
        self._places: dict[int, int] = {}  # by id() of a node; the rules keep them all alive
        self._specs: dict[int, Any] = {}

    def index(self, node: Node) -> int:
        return self._places[id(node)]

    def add(self, root: Node) -> None:
        """Rows for `root` and everything below it that has none yet."""
        todo: list[tuple[Node, bool]] = [(root, False)]
        while todo:
            node, is_ready = todo.pop()
            if id(node) in self._places:
                continue
            if is_ready:
                self._places[id(node)] = len(self.rows)
                self.rows.append(self._row(node))
            else:
                todo.append((node, True))
                todo.extend((child, False) for child in children(node))

    def _row(self, node: Node) -> list[Any]:
        match node:
            case Literal(value):
                return [_LITERAL, value]
            case ByteClass(mask):
                return [_CLASS, mask.to_bytes(32, "little")]
            case Sequence(parts):
                return [_SEQUENCE, *map(self.index, parts)]
            case Choice(options):
                return [_CHOICE, *map(self.index, options)]
            case Repeat(body, least, most):
                return [_REPEAT, self.index(body), _plain(least), _plain(most)]
            case RuleRef(name):
                return [_REF, text_bytes(name)]
            case Except(body, words):
                return [_EXCEPT, self.index(body), *sorted(words)]
            case Flagged(body, flags):
                return [_FLAGGED, self.index(body), flags]
            case Graph(spec, bodies, state):
                return [_GRAPH, self._spec(spec), self._value(state), *map(self.index, bodies)]

    def _spec(self, spec: StateGraph) -> Any:
        if id(spec) not in self._specs:
            self._specs[id(spec)] = self._value(spec)
        return self._specs[id(spec)]

    def _value(self, value: Hashable) -> Any:
        try:
            return _plain(value)
        except _NotPlainError:
            self.is_plain = False
            return ["pickle", pickle.dumps(value, protocol=5)]


class _NotPlainError(ValueError):
    """A value that has no plain spelling."""


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as msgpack can hold it: containers, big numbers and dataclasses as lists that begin with their kind."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, str):
        return ["str", text_bytes(value)]
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else ["int", hex(value)]
    if depth > _DEEPEST:
        raise _NotPlainError("nested too deeply")
    if isinstance(value, tuple | list | frozenset):
        return [type(value).__name__, *(_plain(item, depth + 1) for item in value)]
    if isinstance(value, Mapping):
        return ["dict", *(_plain(item, depth + 1) for pair in value.items() for item in pair)]
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if not dataclasses.is_dataclass(value) or not name.startswith(_CLASSES):
        raise _NotPlainError(name)
    fields = [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    return ["object", name, *(_plain(field, depth + 1) for field in fields)]


# -- reading ------------------------------------------------------------------------------------------------------


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
            raise UnreadableRulesError("pickled values are not read from a file")
        return pickle.loads(items[0])
    if kind == "object":
        return _dataclass(items[0])(*(_value(item, is_private) for item in items[1:]))
    values = [_value(item, is_private) for item in items]
    if kind == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    return _CONTAINERS[kind](values)


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}


def _dataclass(name: str) -> type[Any]:
    module, _, qualname = name.partition(":")
    if not module.startswith(_CLASSES):
        raise UnreadableRulesError(f"{name} is no class of a grammar")
    found = getattr(sys.modules.get(module) or import_module(module), qualname)
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise UnreadableRulesError(f"{name} is no class of a grammar")
    return found


_Reader = Callable[[list[Any], list[Node], bool], Node]


def _read_graph(row: list[Any], nodes: list[Node], is_private: bool) -> Graph:
    spec = _value(row[1], is_private)
    if not isinstance(spec, StateGraph):
        raise UnreadableRulesError(f"{spec!r} is no graph")
    return Graph(spec, tuple([nodes[i] for i in row[3:]]), _value(row[2], is_private))


_READERS: Mapping[int, _Reader] = {
    _LITERAL: lambda row, nodes, _: Literal(row[1]),
    _CLASS: lambda row, nodes, _: ByteClass(int.from_bytes(row[1], "little")),
    _SEQUENCE: lambda row, nodes, _: Sequence(tuple([nodes[i] for i in row[1:]])),
    _CHOICE: lambda row, nodes, _: Choice(tuple([nodes[i] for i in row[1:]])),
    _REPEAT: lambda row, nodes, _: Repeat(nodes[row[1]], _value(row[2], False), _value(row[3], False)),
    _REF: lambda row, nodes, _: RuleRef(bytes_text(row[1])),
    _EXCEPT: lambda row, nodes, _: Except(nodes[row[1]], frozenset(row[2:])),
    _FLAGGED: lambda row, nodes, _: Flagged(nodes[row[1]], row[2]),
    _GRAPH: _read_graph,
}
