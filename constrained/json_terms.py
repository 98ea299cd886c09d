"""What the front end of JSON Schema reasons about: terms, conjunctions of them, and the facets that these settle.

A conjunction is a tuple of terms that must hold together. A term is a schema that holds or fails, one keyword of one,
or a fact that came out of taking a keyword apart. Terms are values: equal sets of them are one rule.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from .json_numbers import Bounds
from .json_strings import Test
from .json_values import json_key

NULL, BOOLEAN, INTEGER, FRACTION, STRING, ARRAY, OBJECT = (1 << bit for bit in range(7))
NUMBER = INTEGER | FRACTION
"""Types are bits of a mask. Numbers are two: what JSON Schema calls integers, and the others."""
ANY_TYPE = (1 << 7) - 1

TYPE_MASKS = {
    "null": NULL,
    "boolean": BOOLEAN,
    "integer": INTEGER,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}

TermKind = Literal[
    "holds",  # the schema at `pointer`
    "fails",  # the schema at `pointer` does not hold
    "own",  # the assertions of the schema at `pointer`, its applicators in place left aside
    "keyword",  # `value` is an applicator in place of the schema at `pointer`: (keyword, key or "")
    "unevaluated",  # `value` is `json_unevaluated.Decisions` of the schema at `pointer`
    "either",  # `value` is a tuple of conjunctions, one of which holds
    "denied",  # the assertion `value` of the schema at `pointer` does not hold
    "types",  # `value` is a mask of types
    "differs",  # `value` is the `json_key` of an array or object
    "required",  # the object has the key `value`
    "absent",  # the object has not the key `value`
    "member",  # `value` is (key, conjunction of its value where it is there)
    "others",  # `value` is (names, patterns, conjunction of the values of all other keys)
    "some",  # `value` is a `Need`
    "items",  # `value` is (low, high), the number of elements
    "element",  # `value` is (index, conjunction of that element where it is there)
    "tail",  # `value` is (index, conjunction of all elements from there on)
    "contained",  # `value` is a `Count`
]


class Term(NamedTuple):
    """One thing that must hold; `kind` says what `pointer` and `value` are."""

    kind: TermKind
    pointer: str = ""
    value: Hashable = None


Terms = tuple[Term, ...]

Keywords = Mapping[str, Any]
"""A canonical schema that is no boolean: values as `json_document.Schema` says, read by names that are not literals."""


class Count(NamedTuple):
    """From the element `start` on, `low` to `high` elements are of `terms`."""

    start: int
    terms: Terms
    low: int
    high: int | None
    pointer: str


class Need(NamedTuple):
    """Some key, none of `names`, matches `pattern`, none of `patterns`, is of `key`, and its value is of `value`."""

    names: frozenset[str]
    patterns: tuple[str, ...]
    pattern: str | None
    key: Terms
    value: Terms
    pointer: str


class Others(NamedTuple):
    """Values of the keys that are none of `names` and match none of `patterns` are of `terms`."""

    names: frozenset[str]
    patterns: tuple[str, ...]
    terms: Terms


def only(types: int) -> Term:
    """The value is of one of `types`."""
    return Term("types", "", types)


def holds(pointer: str) -> Term:
    """The schema at `pointer` holds."""
    return Term("holds", pointer)


def fails(pointer: str) -> Term:
    """The schema at `pointer` does not hold."""
    return Term("fails", pointer)


def type_bit(value: Any) -> int:
    """The type of a JSON value."""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | Decimal):
        return INTEGER if isinstance(value, int) or is_whole(value) else FRACTION
    if isinstance(value, str):
        return STRING
    if isinstance(value, list):
        return ARRAY
    return NULL if value is None else OBJECT


def is_whole(value: Decimal) -> bool:
    """Whether `value` is an integer; never makes its digits."""
    parts = value.as_tuple()
    assert isinstance(parts.exponent, int)
    return parts.exponent >= 0 or not any(parts.digits[parts.exponent :])


def types_of(names: Iterable[str]) -> int:
    """The mask of JSON Schema's `type`."""
    mask = 0
    for name in names:
        mask |= TYPE_MASKS[name]
    return mask


@dataclass(slots=True)
class Flat:
    """A conjunction taken apart: what its terms say of each type, and the unions that are still open.

    Attributes:
        pieces: its terms, applicators in place aside.
        unions: terms of which one option each must hold.
        seen: schemas that hold (True) or fail (False), by the pointer of the first one that is equal (json_alike.py).
        impossible: whether nothing can be of it.
        types: the types that it allows.
        listed: the values that `enum` leaves, other terms aside; None where nothing is listed.
        arrays: schemas whose keywords of elements hold.
        repeats: pointer of a schema whose `uniqueItems` does not hold.
        objects: schemas whose keywords of members hold.
    """

    pieces: dict[Term, None] = field(default_factory=dict)
    unions: dict[Term, None] = field(default_factory=dict)
    seen: dict[tuple[str, bool], Term] = field(default_factory=dict)
    impossible: bool = False
    types: int = ANY_TYPE
    listed: list[Any] | None = None
    excluded: list[Any] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    multiples: list[Decimal] = field(default_factory=list)
    not_multiples: list[Decimal] = field(default_factory=list)
    passed: dict[Test, None] = field(default_factory=dict)
    failed: dict[Test, None] = field(default_factory=dict)
    low_chars: int = 0
    high_chars: int | None = None
    arrays: list[str] = field(default_factory=list)
    elements: dict[int, list[Term]] = field(default_factory=dict)
    tails: list[tuple[int, Terms]] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    low_items: int = 0
    high_items: int | None = None
    unique: bool = False
    repeats: str | None = None
    objects: list[str] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    members: dict[str, list[Term]] = field(default_factory=dict)
    others: list[Others] = field(default_factory=list)
    names: dict[Term, None] = field(default_factory=dict)
    needs: dict[Need, None] = field(default_factory=dict)
    low_members: int = 0
    high_members: int | None = None

    def list_only(self, values: Iterable[Any]) -> None:
        """Only `values` are left."""
        known = {json_key(value): value for value in values}
        if self.listed is not None:
            known = {key: value for value in self.listed if (key := json_key(value)) in known}
        self.listed = list(known.values())
        mask = 0
        for value in self.listed:
            mask |= type_bit(value)
        self.types &= mask


def tighter(first: int | None, second: int | None) -> int | None:
    """The lower of two upper bounds, None being none."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
