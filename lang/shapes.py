"""Shapes: how one Python type stands in JSON, as a schema to hold a model to and as a reader of decoded values.

`annotations.shape_of` makes them from types. msgspec checks scalars and lengths. Records and unions are ours, since
msgspec refuses unions of several classes without tags, leaves objects open, and knows no Pydantic models.

Readers take what `json.loads` gives and name the place of a mistake as ``$.kids[0].age``. They recurse as deep as the
value nests; `types.AnswerType` turns a value that nests too deeply into an error.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Schema = dict[str, Any]

INTEGER_LIMIT = 10**18 - 1
"""The largest size of an `int` without constraints: 18 digits, which fit 64 bits and end."""


class Shape(ABC):
    """One type.

    Attributes:
        name: the type as a person would write it.
    """

    name: str

    @abstractmethod
    def schema(self, definitions: Definitions) -> Schema:
        """Its JSON Schema in a document whose `$defs` are `definitions`."""

    @abstractmethod
    def read(self, value: Any, where: str) -> Any:
        """The Python value of a decoded JSON value at `where`.

        Raises:
            ValueError: `value` is none of this type.
        """


class Definitions:
    """The `$defs` of one schema document. Each type gets one, under its own name.

    Attributes:
        bounds_integers: whether integers without constraints are held to `INTEGER_LIMIT`.
    """

    def __init__(self, *, bounds_integers: bool) -> None:
        self.bounds_integers = bounds_integers
        self._names: dict[Hashable, str] = {}
        self._pending: list[tuple[str, Defined]] = []

    def reference(self, shape: Defined) -> Schema:
        """A reference to the definition of `shape`, which is added if it is new."""
        name = self._names.get(shape.source)
        if name is None:
            name = self._names[shape.source] = self._free_name(shape.name)
            self._pending.append((name, shape))
        return {"$ref": f"#/$defs/{name}"}

    def complete(self) -> dict[str, Schema]:
        """Everything that was referred to, and what that refers to."""
        done: dict[str, Schema] = {}
        while self._pending:
            name, shape = self._pending.pop(0)
            done[name] = shape.definition(name, self)
        return done

    def _free_name(self, wanted: str) -> str:
        stem = "".join(char if char.isascii() and char.isalnum() else "_" for char in wanted)
        name, count = stem, 1
        while name in self._names.values():
            count += 1
            name = f"{stem}_{count}"
        return name


def document(shape: Shape, *, bounds_integers: bool = True) -> Schema:
    """The JSON Schema of `shape`, whole in itself. One that is only to be read needs no bounds on every integer."""
    definitions = Definitions(bounds_integers=bounds_integers)
    schema = shape.schema(definitions)
    defined = definitions.complete()
    return {**schema, "$defs": defined} if defined else schema


class Defined(Shape):
    """A shape that schemas refer to by name; `source` tells one from another."""

    source: Hashable

    def schema(self, definitions: Definitions) -> Schema:
        return definitions.reference(self)

    @abstractmethod
    def definition(self, name: str, definitions: Definitions) -> Schema:
        """The schema under ``#/$defs/name``."""


@dataclass(slots=True)
class Named(Defined):
    """A class or alias. `target` is set once it is known, so that the type may contain itself."""

    source: Hashable
    name: str
    target: Shape = field(init=False)

    def definition(self, name: str, definitions: Definitions) -> Schema:
        return self.target.schema(definitions)

    def read(self, value: Any, where: str) -> Any:
        return self.target.read(value, where)


@dataclass(frozen=True, slots=True)
class AnyShape(Shape):
    """Any JSON value, as `json.loads` reads it."""

    name: str = "Any"

    def schema(self, definitions: Definitions) -> Schema:
        return {}

    def read(self, value: Any, where: str) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class ScalarShape(Shape):
    """A str, int, float, bool or None, with msgspec's constraints. `checked` is the type that msgspec checks."""

    name: str
    checked: Any
    keywords: Mapping[str, Any]

    def schema(self, definitions: Definitions) -> Schema:
        if definitions.bounds_integers and self.keywords == {"type": "integer"}:
            return {"type": "integer", "minimum": -INTEGER_LIMIT, "maximum": INTEGER_LIMIT}
        return dict(self.keywords)

    def read(self, value: Any, where: str) -> Any:
        if isinstance(value, float) and value.is_integer() and self.keywords.get("type") == "integer":
            value = int(value)  # 1.0 is an integer in JSON
        return _checked(value, self.checked, where)


@dataclass(frozen=True, slots=True)
class ConstantsShape(Shape):
    """One of some JSON scalars, each with the Python value that it is read as: a Literal or an Enum."""

    name: str
    values: tuple[tuple[Any, Any], ...]

    def schema(self, definitions: Definitions) -> Schema:
        return {"enum": [constant for constant, _ in self.values]}

    def read(self, value: Any, where: str) -> Any:
        for constant, meant in self.values:
            if constant == value and isinstance(constant, bool) == isinstance(value, bool):
                return meant
        raise _wrong(where, f"one of {', '.join(json.dumps(constant) for constant, _ in self.values)}", value)


@dataclass(frozen=True, slots=True)
class ListShape(Shape):
    """An array of one kind of element, each of them once where it is built into a set.

    Attributes:
        length: the type by which msgspec checks its length.
        build: what makes the value of a list.
    """

    name: str
    element: Shape
    length: Any
    build: Callable[[Iterable[Any]], Any]

    def schema(self, definitions: Definitions) -> Schema:
        items = self.element.schema(definitions)
        once = {"uniqueItems": True} if self.build in (set, frozenset) else {}
        return {**msgspec.json.schema(self.length), **once, **({"items": items} if items else {})}

    def read(self, value: Any, where: str) -> Any:
        _checked(value, self.length, where)
        return _built(self.build, where, [self.element.read(item, f"{where}[{i}]") for i, item in enumerate(value)])


@dataclass(frozen=True, slots=True)
class DictShape(Shape):
    """An object with one kind of key, for which `is_text` holds, and one of value.

    Attributes:
        length: the type by which msgspec checks its length.
    """

    name: str
    keys: Shape
    element: Shape
    length: Any

    def schema(self, definitions: Definitions) -> Schema:
        others, names = self.element.schema(definitions), self.keys.schema(definitions)
        schema = {**msgspec.json.schema(self.length), **({"additionalProperties": others} if others else {})}
        return schema if names == {"type": "string"} else {**schema, "propertyNames": names}

    def read(self, value: Any, where: str) -> Any:
        _checked(value, self.length, where)
        return {
            self.keys.read(key, f"{where}: key {key!r}"): self.element.read(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }


@dataclass(frozen=True, slots=True)
class TupleShape(Shape):
    """An array with a kind of its own for every place, the first `required` of which are always there."""

    name: str
    places: tuple[Shape, ...]
    required: int
    build: Callable[[Iterable[Any]], Any]

    def schema(self, definitions: Definitions) -> Schema:
        bounds: Schema = {"type": "array", "minItems": self.required, "maxItems": len(self.places)}
        prefix = [place.schema(definitions) for place in self.places]
        return {**bounds, "prefixItems": prefix} if prefix else bounds

    def read(self, value: Any, where: str) -> Any:
        if not isinstance(value, list) or not self.required <= len(value) <= len(self.places):
            raise _wrong(where, f"an array of {self._count()}", value)
        items = [place.read(item, f"{where}[{i}]") for i, (place, item) in enumerate(zip(self.places, value))]  # noqa: B905 (the last may be absent)
        return _built(self.build, where, items)

    def _count(self) -> str:
        most = len(self.places)
        return f"{most} elements" if most == self.required else f"{self.required} to {most} elements"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a record.

    Attributes:
        key: its key in JSON.
        name: the argument it is built with, or None for a tag, which is no argument.
    """

    key: str
    name: str | None
    shape: Shape
    required: bool


@dataclass(frozen=True, slots=True)
class RecordShape(Shape):
    """An object with these members and no others. `build` makes its value of those that are there."""

    name: str
    members: tuple[Member, ...]
    build: Callable[..., Any]

    def schema(self, definitions: Definitions) -> Schema:
        return {
            "type": "object",
            "properties": {member.key: member.shape.schema(definitions) for member in self.members},
            "required": [member.key for member in self.members if member.required],
            "additionalProperties": False,
        }

    def read(self, value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, f"an object for {self.name}", value)
        self._check_keys(value, where)
        there = [(member, value[member.key]) for member in self.members if member.key in value]
        read = {member.name: member.shape.read(item, f"{where}.{member.key}") for member, item in there}
        return _built(self.build, where, **{name: item for name, item in read.items() if name is not None})

    def _check_keys(self, value: dict[str, Any], where: str) -> None:
        missing = [member.key for member in self.members if member.required and member.key not in value]
        unknown = sorted(value.keys() - {member.key for member in self.members})
        if missing or unknown:
            found = f"lacks {missing}" if missing else f"has the unknown keys {unknown}"
            raise ValueError(f"{where}: the object for {self.name} {found}")


@dataclass(frozen=True, slots=True)
class UnionShape(Shape):
    """The first of `options` that can read the value."""

    name: str
    options: tuple[Shape, ...]

    def schema(self, definitions: Definitions) -> Schema:
        return {"anyOf": [option.schema(definitions) for option in self.options]}

    def read(self, value: Any, where: str) -> Any:
        found: list[str] = []
        for option in self.options:
            try:
                return option.read(value, where)
            except ValueError as error:
                found.append(f"{option.name} ({error})")
        raise ValueError(f"{where}: fits none of {self.name}: {'; '.join(found)}")


@dataclass(frozen=True, slots=True)
class DescribedShape(Shape):
    """A shape with a description for whoever reads the schema."""

    name: str
    inner: Shape
    description: str

    def schema(self, definitions: Definitions) -> Schema:
        return {**self.inner.schema(definitions), "description": self.description}

    def read(self, value: Any, where: str) -> Any:
        return self.inner.read(value, where)


def is_text(shape: Shape) -> bool:
    """Whether every value of `shape` is a JSON string."""
    inner = bare(shape)
    if isinstance(inner, ConstantsShape):
        return all(isinstance(constant, str) for constant, _ in inner.values)
    return isinstance(inner, ScalarShape) and inner.keywords.get("type") == "string"


def bare(shape: Shape) -> Shape:
    """The shape itself, without names and descriptions around it."""
    while isinstance(shape, Named | DescribedShape):
        shape = shape.target if isinstance(shape, Named) else shape.inner
    return shape


def _checked(value: Any, wanted: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error


def _built(build: Callable[..., Any], where: str, /, *args: Any, **arguments: Any) -> Any:
    """What the type's own constructor makes; it may have checks of its own."""
    try:
        return build(*args, **arguments)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _wrong(where: str, wanted: str, value: Any) -> ValueError:
    shown = json.dumps(value, ensure_ascii=False)
    return ValueError(f"{where}: expected {wanted}, not {shown if len(shown) <= 100 else shown[:100] + '…'}")
