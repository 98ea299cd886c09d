"""Values of JSON Schema keywords, checked; and equality of JSON values. Source: the meta-schemas of the drafts.

A check is told the pointer of the schema and the steps from there to the value, the keyword first.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from typing import Literal, NoReturn

from .errors import GrammarError, GrammarLimitError

TypeName = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
TYPE_NAMES: tuple[TypeName, ...] = ("object", "array", "string", "number", "integer", "boolean", "null")

Json = None | bool | int | Decimal | str | list["Json"] | dict[str, "Json"]
"""A JSON value as it is parsed here: numbers are integers, or decimals, which are exact."""

_MAX_EXPONENT = 400


def pointer_to(pointer: str, *steps: str | int) -> str:
    """`pointer` extended by `steps`, each escaped. Source: RFC 6901."""
    for step in steps:
        text = str(step)
        if "~" in text or "/" in text:
            text = text.replace("~", "~0").replace("/", "~1")
        pointer = f"{pointer}/{text}"
    return pointer


def malformed(value: object, allowed: str, pointer: str, *steps: str | int) -> NoReturn:
    """Raise the error for a `value` that is not what is `allowed`, at `steps` of the schema at `pointer`."""
    shown = repr(value)
    raise GrammarError(
        f"{steps[0]!r} must be {allowed}, not {shown if len(shown) <= 80 else shown[:77] + '...'}",
        pointer=pointer_to(pointer, *steps),
    )


def checked_text(value: object, pointer: str, *steps: str | int) -> str:
    """`value`, which must be a string."""
    return value if isinstance(value, str) else malformed(value, "a string", pointer, *steps)


def checked_flag(value: object, pointer: str, *steps: str | int) -> bool:
    """`value`, which must be a boolean."""
    return value if isinstance(value, bool) else malformed(value, "a boolean", pointer, *steps)


def checked_list(value: object, pointer: str, *steps: str | int) -> list[object]:
    """`value`, which must be a list."""
    return value if isinstance(value, list) else malformed(value, "a list", pointer, *steps)


def checked_strings(value: object, pointer: str, *steps: str | int) -> list[str]:
    """`value`, which must be a list of strings; each once."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        malformed(value, "a list of strings", pointer, *steps)
    return list(dict.fromkeys(value))


def checked_object(value: object, pointer: str, *steps: str | int) -> dict[str, object]:
    """`value`, which must be an object."""
    return value if isinstance(value, dict) else malformed(value, "an object", pointer, *steps)


def checked_number(value: object, pointer: str, *steps: str | int) -> Decimal:
    """The exact value of a number.

    Raises:
        GrammarError: `value` is no number.
        GrammarLimitError: it has more digits than a grammar of numbers can hold.
    """
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        malformed(value, "a number", pointer, *steps)
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    if exact and (abs(exact.adjusted()) > _MAX_EXPONENT or not isinstance(exponent, int) or exponent < -_MAX_EXPONENT):
        raise GrammarLimitError(
            f"{steps[0]!r} has more than {_MAX_EXPONENT} digits", pointer=pointer_to(pointer, *steps)
        )
    return exact


def checked_count(value: object, pointer: str, *steps: str | int) -> int:
    """The value of a keyword that counts; ``2.0`` is one too."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    number = checked_number(value, pointer, *steps) if isinstance(value, Decimal) else None
    if number is None or number < 0 or number != number.to_integral_value():
        malformed(value, "a non-negative integer", pointer, *steps)
    return int(number)


def checked_types(value: object, pointer: str) -> tuple[TypeName, ...]:
    """The types that the value of `type` names, in the order of `TYPE_NAMES`; "number" stands for "integer" too."""
    if isinstance(value, str) and value in TYPE_NAMES:
        return (value,)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in TYPE_NAMES for name in names):
        malformed(value, f"one of {', '.join(TYPE_NAMES)}, or a list of them", pointer, "type")
    return tuple(name for name in TYPE_NAMES if name in names and not (name == "integer" and "number" in names))


def json_key(value: object) -> Hashable:
    """A key that two JSON values share exactly if they are equal: 1 and 1.0 are, and members have no order."""
    done: dict[int, Hashable] = {}
    order = [value]
    for inner in order:  # grows while it is walked: parents before children
        if isinstance(inner, list | dict):
            order.extend(inner.values() if isinstance(inner, dict) else inner)
    for inner in reversed(order):
        if isinstance(inner, list):
            done[id(inner)] = ("[", *(done[id(item)] for item in inner))
        elif isinstance(inner, dict):
            done[id(inner)] = ("{", frozenset((name, done[id(item)]) for name, item in inner.items()))
        else:
            done[id(inner)] = (type(inner).__name__ if isinstance(inner, bool | str | None) else "number", inner)
    return done[id(value)]
