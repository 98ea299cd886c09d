"""What a JSON text so far obliges the rest of it to: the keys and elements that must not come again.

`Follower.follow` reads the text byte by byte beside an automaton that knows its grammar, so it trusts the syntax. It
wakes at the first byte of a key flagged `OPEN_KEY` or at a ``[`` flagged `UNIQUE_ARRAY` and falls asleep, back to
`EMPTY`, when the last container that it watches closes. Only what can matter is kept, so that texts that differ in
nothing else share a memory: of keys only those that rules do not name (both their quotes are flagged), and values only
inside arrays whose elements must differ. Keys have one spelling each and are kept as they are spelled; values
are kept as JSON equality sees them.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from .json_equality import Content, Value, number, with_unit
from .rules import OPEN_KEY, UNIQUE_ARRAY

QUOTE: Final = ord('"')
BACKSLASH: Final = ord("\\")
_OPEN: Final = frozenset(b"{[")
_CLOSE: Final = frozenset(b"}]")
_SCALAR: Final = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_LITERALS: Final = frozenset((b"true", b"false", b"null"))
ESCAPED: Final = dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True))
"""What the letter of a short escape says."""

BETWEEN: Final = 0
"""Outside strings, and outside scalars that are kept."""
SKIP: Final = 1
"""In a string that is not kept."""
SKIP_ESCAPE: Final = 2
KEY: Final = 3
"""In a key; `Memory.text` is its spelling so far."""
KEY_ESCAPE: Final = 4
STRING: Final = 5
"""In a string value that is kept; `Memory.text` is what it says so far, in UTF-8, `Memory.escape` a begun escape."""
SCALAR: Final = 6
"""In a number, true, false or null that is kept."""

_NO_VALUES: Final[frozenset[Value]] = frozenset()


class Frame:
    """An open container. Equal frames are one object; made by `Follower` only.

    Attributes:
        below: the container around it; None for the outermost that is watched.
        keys: keys so far of an object with keys that rules do not name; None for all else.
        used: elements so far of an array whose elements must differ; None for all else.
        inside: whether values directly inside are kept.
        parts: elements so far of an array that is itself kept.
        members: members so far of an object that is kept; None for all else.
        pending: the key whose value comes next, of an object that is kept.
        candidates: values that this container must not become and still may.
        expected: values that would, as the next one inside, repeat an element or keep a candidate possible.
    """

    __slots__ = (
        "__weakref__", "below", "candidates", "expected", "inside", "keys", "members", "parts", "pending", "used",
    )  # fmt: skip

    def __init__(self, shape: _Shape) -> None:
        self.below, self.keys, self.used, self.parts, self.members, self.pending = shape
        self.inside: bool = self.used is not None or (self.below is not None and self.below.inside)
        self.candidates = _NO_VALUES
        self.expected = self.used or _NO_VALUES
        if self.below is not None and self.below.expected:
            self._compare(self.below.expected)

    def _compare(self, others: frozenset[Value]) -> None:
        count = len(self.parts)
        found: set[Value] = set()
        following: set[Value] = set()
        for value in others:
            elements, members = value.elements(), value.members()
            if members is not None and self.members is not None and self.members <= members:
                found.add(value)
                following.update(member for key, member in members if key == self.pending)
            elif elements is not None and self.members is None and elements[:count] == self.parts:
                found.add(value)
                following.update(elements[count : count + 1])
        self.candidates = frozenset(found)
        self.expected |= following

    @property
    def watched(self) -> int:
        """How many keys or elements must not come again."""
        return len(self.keys or ()) or len(self.used or ())

    def names(self) -> frozenset[bytes]:
        """Keys that matter when they come: used ones, and those of the candidates."""
        names = self.keys or frozenset()
        if not self.candidates:
            return names
        return names.union(*({key for key, _ in value.members() or ()} for value in self.candidates))


class _Shape(NamedTuple):
    below: Frame | None
    keys: frozenset[bytes] | None = None
    used: frozenset[Value] | None = None
    parts: tuple[Value, ...] = ()
    members: frozenset[tuple[bytes, Value]] | None = None
    pending: bytes | None = None


class Memory(NamedTuple):
    """What the text so far obliges to; a value. `frame` is the innermost open container that is watched."""

    frame: Frame | None
    mode: int = BETWEEN
    text: bytes = b""
    escape: bytes = b""


EMPTY: Final = Memory(None)
"""Nothing: no key or element that was may matter again."""


class Follower:
    """Makes memories. Frames and values live as long as a memory holds them."""

    def __init__(self) -> None:
        self._frames: WeakValueDictionary[_Shape, Frame] = WeakValueDictionary()
        self._values: WeakValueDictionary[tuple[str, Content], Value] = WeakValueDictionary()
        self.new_object = Memory(self._frame(_Shape(None, keys=frozenset())))
        self.new_array = Memory(self._frame(_Shape(None, used=frozenset())))

    def follow(self, memory: Memory, byte: int, flags: int) -> Memory | None:
        """The memory after `byte`, which came where the automaton had `flags`; None if it completes a duplicate."""
        frame, mode, text, _ = memory
        if mode == BETWEEN:
            return self._between(memory, byte, flags)
        if mode == SKIP:
            return memory if byte not in b'"\\' else Memory(frame, BETWEEN if byte == QUOTE else SKIP_ESCAPE)
        if mode == SKIP_ESCAPE:
            return Memory(frame, SKIP)
        if mode == STRING:
            return self._in_string(memory, byte)
        if mode == SCALAR:
            if byte in _SCALAR:
                return self._in_scalar(frame, text + bytes((byte,)))
            finished = self._deliver(frame, self._value("number", number(text)))
            return finished and self._between(finished, byte, flags)
        if byte == QUOTE and mode == KEY:
            return self._finish_key(frame, text, flags)
        return Memory(frame, KEY_ESCAPE if byte == BACKSLASH and mode == KEY else KEY, text + bytes((byte,)))

    def _between(self, memory: Memory, byte: int, flags: int) -> Memory | None:
        frame = memory.frame
        if byte == QUOTE:
            if flags & OPEN_KEY or (frame and frame.members is not None and frame.pending is None):
                return Memory(frame, KEY)
            if frame is None:
                return EMPTY
            return Memory(frame, STRING if frame.inside else SKIP)
        if byte in _OPEN:
            return self._open(frame, byte, flags)
        if frame is None:
            return EMPTY
        if byte in _CLOSE:
            return self._close(frame)
        if frame.inside and byte in _SCALAR:
            return self._in_scalar(frame, bytes((byte,)))
        return memory

    def _open(self, frame: Frame | None, byte: int, flags: int) -> Memory:
        if byte == ord("[") and flags & UNIQUE_ARRAY:
            return Memory(self._frame(_Shape(frame, used=_NO_VALUES)))
        if frame is None:
            return EMPTY
        is_object = byte == ord("{") and frame.inside
        return Memory(self._frame(_Shape(frame, members=frozenset() if is_object else None)))

    def _close(self, frame: Frame) -> Memory | None:
        below = frame.below
        if below is None:
            return EMPTY
        if not below.inside:
            return Memory(below)
        if frame.members is not None:
            return self._deliver(below, self._value("object", frame.members))
        return self._deliver(below, self._value("array", frame.parts))

    def _finish_key(self, frame: Frame | None, text: bytes, flags: int) -> Memory | None:
        if frame is None:
            return Memory(self._frame(_Shape(None, keys=frozenset((text,))))) if flags & OPEN_KEY else EMPTY
        shape = _shape(frame)
        if flags & OPEN_KEY:
            keys = frame.keys or frozenset()
            if text in keys:
                return None
            shape = shape._replace(keys=keys | {text})
        if frame.members is not None:
            shape = shape._replace(pending=text)
        return Memory(self._frame(shape))

    def _in_string(self, memory: Memory, byte: int) -> Memory | None:
        frame, _, text, escape = memory
        if not escape:
            if byte == QUOTE:
                return self._deliver(frame, self._value("string", text))
            if byte == BACKSLASH:
                return Memory(frame, STRING, text, b"\\")
            return Memory(frame, STRING, text + bytes((byte,)))
        escape += bytes((byte,))
        if len(escape) == 2 and byte != ord("u"):
            return Memory(frame, STRING, text + bytes((ESCAPED.get(byte, byte),)))
        if len(escape) < 6:
            return Memory(frame, STRING, text, escape)
        return Memory(frame, STRING, with_unit(text, int(escape[2:], 16)))

    def _in_scalar(self, frame: Frame | None, text: bytes) -> Memory | None:
        if text in _LITERALS:
            return self._deliver(frame, self._value("literal", text))
        return Memory(frame, SCALAR, text)

    def _deliver(self, frame: Frame | None, value: Value) -> Memory | None:
        """Add a finished `value` to the container of `frame`."""
        assert frame is not None
        shape = _shape(frame)
        if frame.used is not None:
            if value in frame.used:
                return None
            shape = shape._replace(used=frame.used | {value})
        if frame.members is not None:
            assert frame.pending is not None
            shape = shape._replace(members=frame.members | {(frame.pending, value)}, pending=None)
        elif frame.below is not None and frame.below.inside:
            shape = shape._replace(parts=(*frame.parts, value))
        return Memory(self._frame(shape))

    def _frame(self, shape: _Shape) -> Frame:
        known = self._frames.get(shape)
        if known is None:
            known = self._frames[shape] = Frame(shape)
        return known

    def _value(self, kind: str, content: Content) -> Value:
        known = self._values.get((kind, content))
        if known is None:
            known = self._values[kind, content] = Value(kind, content)
        return known


def _shape(frame: Frame) -> _Shape:
    return _Shape(frame.below, frame.keys, frame.used, frame.parts, frame.members, frame.pending)
