"""Reading Python's annotations: what `Annotated` holds, the types of a class's fields, type variables."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeVar, Union

import msgspec

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
_WRAPPERS = (Required, NotRequired, Final, typing.ClassVar)


def type_name(annotation: Any) -> str:
    """A type as a person would write it, without modules. It recurses as deep as the annotation nests."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_name, arguments))
    if origin is not None and arguments:
        return f"{type_name(origin)}[{', '.join(map(type_name, arguments))}]"
    if annotation is Ellipsis:
        return "..."
    return str(getattr(annotation, "__name__", annotation)).removeprefix("typing.")


@dataclasses.dataclass(frozen=True, slots=True)
class Notes:
    """What the metadata of `Annotated` says: constraints under msgspec's names, and a description."""

    constraints: dict[str, Any]
    description: str | None

    def on(self, base: Any) -> Any:
        """`base` with the constraints, for msgspec."""
        return Annotated[base, msgspec.Meta(**self.constraints)] if self.constraints else base


def unwrapped(annotation: Any) -> tuple[Any, Notes]:
    """The type inside `Annotated`, NewType and the qualifiers of fields, and what the metadata around it says."""
    constraints: dict[str, Any] = {}
    description = None
    while True:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            for item in annotation.__metadata__:
                constraints |= _constraints_of(item)
                description = _description_of(item) or description
            annotation = annotation.__origin__
        elif origin in _WRAPPERS or getattr(origin, "__name__", "") == "ReadOnly":
            (annotation,) = typing.get_args(annotation)
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation, Notes(constraints, description)


def merged(notes: Notes, outer: dict[str, Any]) -> Notes:
    """`notes` with the constraints of what is around; its own win."""
    return Notes({**outer, **notes.constraints}, notes.description)


def _constraints_of(item: Any) -> dict[str, Any]:
    """The constraints of a `msgspec.Meta`, of annotated-types' classes, or of a Pydantic `Field`."""
    found: dict[str, Any] = {}
    for part in (item, *getattr(item, "metadata", ())):
        found |= {name: getattr(part, name) for name in _CONSTRAINTS if getattr(part, name, None) is not None}
    return found


def _description_of(item: Any) -> str | None:
    if isinstance(item, str):
        return item
    text = getattr(item, "description", None) or getattr(item, "documentation", None)
    return text if isinstance(text, str) else None


def is_required(hint: Any, by_default: bool) -> bool:
    """Whether a TypedDict's key is required; asked of the hint, since `__required_keys__` misses quoted ones."""
    origin = typing.get_origin(hint)
    while origin is Annotated or getattr(origin, "__name__", "") == "ReadOnly":
        hint = typing.get_args(hint)[0]
        origin = typing.get_origin(hint)
    return origin is Required or (by_default and origin is not NotRequired)


def hints_of(cls: Any, base: Any) -> dict[str, Any]:
    """The types of a class's fields, or of a function's parameters; `base` is `cls` with its type arguments.

    Raises:
        TypeError: an annotation cannot be evaluated.
    """
    own_name = {cls.__name__: cls} if isinstance(cls, type) else None
    try:
        hints = typing.get_type_hints(cls, localns=own_name, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        why = f"has annotations that cannot be evaluated ({error}); define what they name at the top of its module"
        raise TypeError(why) from error
    arguments = type_arguments(base, getattr(cls, "__parameters__", ()))
    return {name: substituted(hint, arguments) for name, hint in hints.items()}


def type_arguments(base: Any, parameters: tuple[Any, ...]) -> dict[Any, Any]:
    """What `base`, such as ``Page[int]``, puts in the place of each type variable of its class."""
    return dict(zip(parameters, typing.get_args(base), strict=False))


def substituted(hint: Any, arguments: dict[Any, Any]) -> Any:
    """`hint` with its type variables replaced, those that `arguments` has."""
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type) or not arguments:
        return hint
    return hint[tuple(arguments.get(parameter, parameter) for parameter in parameters)]
