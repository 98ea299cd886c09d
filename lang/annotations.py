"""From Python's annotations to shapes: which types an answer can have, and how each stands in JSON."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from typing import Any, Literal, TypeVar, Union

import msgspec

from .errors import UnsupportedTypeError
from .pydantic_shape import pydantic_shape
from .shapes import (
    AnyShape,
    ConstantsShape,
    DescribedShape,
    DictShape,
    ListShape,
    Member,
    Named,
    RecordShape,
    ScalarShape,
    Shape,
    TupleShape,
    UnionShape,
    is_text,
)
from .text_types import TEXT_TYPES
from .type_hints import Notes, hints_of, is_required, merged, substituted, type_arguments, type_name, unwrapped

ALLOWED = (
    "str, int, float, bool, None, Literal, Enum, datetime, date, time, timedelta, UUID, Decimal, list, tuple, set, "
    "dict with keys that are strings, unions of them, dataclasses, TypedDict, NamedTuple, msgspec.Struct and Pydantic "
    "models"
)

_LISTS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    Sequence: list,
    MutableSequence: list,
    Iterable: list,
    set: set,
    Set: set,
    frozenset: frozenset,
}
_DICTS = (dict, Mapping, MutableMapping)
_SCALARS = (str, int, float, bool, type(None), *TEXT_TYPES)


def shape_of(annotation: Any, place: str = "") -> Shape:
    """The shape of a type.

    Args:
        annotation: a type as one would annotate with.
        place: what has this type, such as ``parameter 'day' of book()``, for messages.

    Raises:
        UnsupportedTypeError: it, or a part of it, has none.
    """
    return _Shapes().shape(annotation, place)


class _Shapes:
    """The shapes of one type and all its parts. It recurses as deep as annotations nest; classes are met once."""

    def __init__(self) -> None:
        self._named: dict[Any, Named] = {}

    def shape(self, annotation: Any, place: str) -> Shape:
        """The shape of `annotation`, a part at `place`."""
        base, notes = unwrapped(annotation)
        shape = self._constrained(base, notes, place)
        return DescribedShape(shape.name, shape, notes.description) if notes.description else shape

    def _constrained(self, base: Any, notes: Notes, place: str) -> Shape:
        origin = typing.get_origin(base) or base
        if base in _SCALARS or base is None:
            return _scalar(base, notes, place)
        if origin in _LISTS:
            return self._list(base, _LISTS[origin], notes, place)
        if origin is tuple and typing.get_args(base)[1:] == (Ellipsis,):
            return self._list(base, tuple, notes, place)
        if origin in _DICTS:
            return self._dict(base, notes, place)
        if origin in (Union, types.UnionType):
            return self._union(base, notes, place)
        if notes.constraints:
            raise _refusal(base, place, f"takes no constraints such as {next(iter(notes.constraints))!r}")
        return self._plain(base, origin, place)

    def _plain(self, base: Any, origin: Any, place: str) -> Shape:
        if base is Any or base is object:
            return AnyShape()
        if origin is Literal:
            return _constants(base, typing.get_args(base), place)
        if origin is tuple:
            return self._tuple(base, place)
        if isinstance(base, type) and issubclass(base, enum.Enum):
            return _constants(base, base, place)
        pydantic = pydantic_shape(base)
        if pydantic is not None:
            return pydantic
        make = self._maker(origin)
        if make is None:
            raise _refusal(base, place, _hint(base))
        return self._defined(base, make, place)

    def _maker(self, origin: Any) -> Callable[[Any, str], Shape] | None:
        """What makes the shape of a class or alias that may contain itself."""
        if hasattr(origin, "__value__"):
            return self._alias
        if typing.is_typeddict(origin):
            return self._typed_dict
        if not isinstance(origin, type) or hasattr(origin, "__pydantic_fields__"):
            return None
        if dataclasses.is_dataclass(origin):
            return self._dataclass
        if issubclass(origin, msgspec.Struct):
            return self._struct
        return self._named_tuple if issubclass(origin, tuple) and hasattr(origin, "_field_defaults") else None

    def _defined(self, base: Any, make: Callable[[Any, str], Shape], place: str) -> Shape:
        named = self._named.get(base)
        if named is None:
            named = self._named[base] = Named(base, type_name(base))
            named.target = make(base, place)
        return named

    def _list(self, base: Any, build: Callable[[Iterable[Any]], Any], notes: Notes, place: str) -> Shape:
        element = (typing.get_args(base) or (Any,))[0]
        length = _accepted(notes.on(list), base, place)
        return ListShape(type_name(base), self.shape(element, place), length, build)

    def _dict(self, base: Any, notes: Notes, place: str) -> Shape:
        key, element = typing.get_args(base) or (str, Any)
        keys = self.shape(str if key is Any else key, place)
        if not is_text(keys):
            raise _refusal(base, place, "has keys that are no strings")
        return DictShape(type_name(base), keys, self.shape(element, place), _accepted(notes.on(dict), base, place))

    def _tuple(self, base: Any, place: str) -> Shape:
        args = typing.get_args(base) or (() if base == tuple[()] else (Any, ...))
        if len(args) == 2 and args[1] is Ellipsis:
            return ListShape(type_name(base), self.shape(args[0], place), list, tuple)  # a bare tuple
        places = tuple(self.shape(arg, place) for arg in args)
        return TupleShape(type_name(base), places, len(places), tuple)

    def _union(self, base: Any, notes: Notes, place: str) -> Shape:
        # float reads every number, so it comes after int
        members = sorted(typing.get_args(base), key=lambda member: unwrapped(member)[0] is float)
        shapes = [
            self._constrained(inner, merged(own, {} if inner is type(None) else notes.constraints), place)
            for inner, own in map(unwrapped, members)
        ]
        return UnionShape(" | ".join(shape.name for shape in shapes), tuple(shapes))

    def _alias(self, base: Any, place: str) -> Shape:
        origin = typing.get_origin(base) or base
        return self.shape(substituted(origin.__value__, type_arguments(base, origin.__type_params__)), place)

    def _dataclass(self, base: Any, place: str) -> Shape:
        cls = typing.get_origin(base) or base
        hints = _fields(base, cls, place)
        fields = [item for item in dataclasses.fields(cls) if item.init]
        missing = dataclasses.MISSING
        needed = {item.name for item in fields if item.default is missing and item.default_factory is missing}
        return self._record(base, cls, [(item.name, item.name) for item in fields], hints, needed)

    def _typed_dict(self, base: Any, place: str) -> Shape:
        cls = typing.get_origin(base) or base
        hints = _fields(base, cls, place)
        needed = {key for key, hint in hints.items() if is_required(hint, key in cls.__required_keys__)}
        return self._record(base, dict, [(key, key) for key in hints], hints, needed)

    def _struct(self, base: Any, place: str) -> Shape:
        cls = typing.get_origin(base) or base
        config = cls.__struct_config__
        if config.array_like:
            raise _refusal(base, place, "is written as an array (array_like=True); use a NamedTuple")
        hints = _fields(base, cls, place)
        fields = msgspec.structs.fields(cls)
        record = self._record(
            base,
            cls,
            [(item.encode_name, item.name) for item in fields],
            hints,
            {item.name for item in fields if item.required},
        )
        if config.tag is None:
            return record
        tag = Member(config.tag_field, None, ConstantsShape("tag", ((config.tag, config.tag),)), True)
        return dataclasses.replace(record, members=(tag, *record.members))

    def _record(
        self, base: Any, build: Any, keys: list[tuple[str, str]], hints: dict[str, Any], needed: set[str]
    ) -> RecordShape:
        name = type_name(base)
        members = (
            Member(key, field, self.shape(hints[field], f"field {field!r} of {name}"), field in needed)
            for key, field in keys
        )
        return RecordShape(name, tuple(members), build)

    def _named_tuple(self, base: Any, place: str) -> Shape:
        cls = typing.get_origin(base) or base
        hints, name = _fields(base, cls, place), type_name(base)
        places = tuple(self.shape(hints[field], f"field {field!r} of {name}") for field in cls._fields)
        return TupleShape(name, places, len(places) - len(cls._field_defaults), lambda items: cls(*items))


def _scalar(base: Any, notes: Notes, place: str) -> Shape:
    if base in TEXT_TYPES and notes.constraints:
        raise _refusal(base, place, f"takes no constraints such as {next(iter(notes.constraints))!r}")
    checked = _accepted(notes.on(base), base, place)
    return ScalarShape(type_name(base), checked, TEXT_TYPES.get(base) or msgspec.json.schema(checked))


def _accepted(checked: Any, base: Any, place: str) -> Any:
    """`checked`, if msgspec takes its constraints."""
    try:
        msgspec.json.schema(checked)
    except TypeError as error:
        raise _refusal(base, place, f"has constraints that do not fit: {error}") from error
    return checked


def _constants(base: Any, values: Iterable[Any], place: str) -> Shape:
    """The shape of these values; a member of an Enum stands in JSON as its value."""
    constants = [(value.value if isinstance(value, enum.Enum) else value, value) for value in values]
    for constant, _ in constants:
        if not isinstance(constant, str | int | float | None):
            raise _refusal(base, place, f"holds {constant!r}, which is no JSON string, number, boolean or null")
    if not constants:
        raise _refusal(base, place, "has no values")
    return ConstantsShape(type_name(base), tuple(constants))


def _fields(base: Any, cls: Any, place: str) -> dict[str, Any]:
    try:
        return hints_of(cls, base)
    except TypeError as error:
        raise _refusal(base, place, str(error)) from error


def _hint(base: Any) -> str:
    if isinstance(base, TypeVar):
        return "is a type variable without a type; write the type in brackets, such as Page[int]"
    if isinstance(base, str | typing.ForwardRef):
        return "is a name that stands for no type here"
    if hasattr(base, "__pydantic_fields__"):
        return f"is a Pydantic dataclass; use a BaseModel, or type=pydantic.TypeAdapter({type_name(base)})"
    return "is no type that an answer can have"


def _refusal(base: Any, place: str, why: str) -> UnsupportedTypeError:
    where = f"{place}: " if place else ""
    return UnsupportedTypeError(f"{where}{type_name(base)} {why}. Allowed are {ALLOWED}")
