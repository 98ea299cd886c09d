"""Takes conjunctions of schemas apart into `Flat`: follows references and `allOf`, gathers assertions, keeps unions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from .errors import GrammarError, GrammarLimitError
from .json_alike import Alike
from .json_denials import Denials
from .json_document import Document
from .json_numbers import Bounds
from .json_strings import Test
from .json_terms import (
    ANY_TYPE,
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Count,
    Flat,
    Keywords,
    Need,
    Others,
    Term,
    Terms,
    fails,
    holds,
    tighter,
    types_of,
)
from .json_unevaluated import Decisions
from .json_values import json_key

UNION_KEYWORDS = ("anyOf", "oneOf", "if", "dependentRequired", "dependentSchemas")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_IN_PLACE = frozenset(("$ref", "allOf", "not", "then", "else", *_UNEVALUATED, *UNION_KEYWORDS))
_MAX_PARTS = 100_000


class Flattening:
    """Adds terms to one `Flat`."""

    def __init__(self, document: Document, denials: Denials, alike: Alike, flat: Flat) -> None:
        self._schema = document.schema
        self._denials = denials
        self._first_alike = alike.of
        self.flat = flat
        self._todo: list[tuple[Term, tuple[Any, ...] | None]] = []  # a term, and those it comes from as a linked list

    def add(self, terms: Terms) -> None:
        """Add `terms`.

        Raises:
            GrammarError: a schema refers to itself and to nothing else.
            UnsupportedGrammarError: a keyword whose denial is not supported.
        """
        todo = self._todo
        todo.extend((term, None) for term in reversed(terms))
        while todo:
            term, above = todo.pop()
            kind = term.kind
            if kind == "holds":
                self._hold(term, above)
            elif kind == "fails":
                self._fail(term, above)
            elif kind == "differs" and not isinstance(self._denials.values[term.value], dict | list):
                self.flat.pieces[term] = None
                self.exclude([self._denials.values[term.value]], "")
            elif kind in ("keyword", "unevaluated", "either", "differs"):
                self.flat.unions[term] = None
            elif term not in self.flat.pieces:
                self.flat.pieces[term] = None
                _FACTS[kind](self, term)

    def _first_time(self, term: Term, above: tuple[Any, ...] | None) -> bool:
        """Whether the schema of `term` is new here. One that comes from itself says nothing."""
        pointer, holding = term.pointer, term.kind == "holds"
        first = self._first_alike(pointer)
        if (first, holding) not in self.flat.seen:
            if (first, not holding) in self.flat.seen:
                self.flat.impossible = True
            self.flat.seen[first, holding] = term
            if len(self.flat.seen) > _MAX_PARTS:
                raise GrammarLimitError(f"more than {_MAX_PARTS} schemas must hold at one place", pointer=pointer)
            return True
        while above is not None:
            if above[0] == term:
                raise GrammarError("the schema refers to itself and to nothing else", pointer=pointer)
            above = above[1]
        return False

    def _hold(self, term: Term, above: tuple[Any, ...] | None) -> None:
        pointer = term.pointer
        found = self._schema(pointer)
        if isinstance(found, bool):
            self.flat.impossible |= not found
            return
        schema = cast("Keywords", found)
        if not schema or not self._first_time(term, above):
            return
        if not schema.keys() <= _IN_PLACE:
            own = Term("own", pointer)
            if own not in self.flat.pieces:
                self.flat.pieces[own] = None
                self._own(own)
        if schema.keys() & _IN_PLACE:
            self._applicators(schema, pointer, (term, above))

    def _applicators(self, schema: Keywords, pointer: str, above: tuple[Any, ...]) -> None:
        inside: list[Term] = []
        if "$ref" in schema:
            inside.append(holds(schema["$ref"]))
        inside.extend(holds(part) for part in schema.get("allOf", ()))
        if "not" in schema:
            inside.append(fails(schema["not"]))
        self._todo.extend((part, above) for part in reversed(inside))
        for keyword in UNION_KEYWORDS:
            if keyword not in schema:
                continue
            if keyword.startswith("dependent"):
                for key in schema[keyword]:
                    self.flat.unions[Term("keyword", pointer, (keyword, key))] = None
            elif keyword != "if" or "then" in schema or "else" in schema:
                self.flat.unions[Term("keyword", pointer, (keyword, ""))] = None

        for keyword in _UNEVALUATED:
            if keyword in schema:
                self.flat.unions[Term("unevaluated", pointer, Decisions(keyword))] = None

    def _fail(self, term: Term, above: tuple[Any, ...] | None) -> None:
        schema = self._schema(term.pointer)
        if isinstance(schema, bool) or not schema:
            self.flat.impossible |= schema is not False
            return
        if not self._first_time(term, above):
            return
        options = self._denials.options(term.pointer)
        if not options:
            self.flat.impossible = True
        elif len(options) == 1:
            self._todo.extend((part, (term, above)) for part in reversed(options[0]))
        else:
            self.flat.unions[term] = None

    def _own(self, term: Term) -> None:
        pointer = term.pointer
        schema = cast("Keywords", self._schema(pointer))
        for keyword, value in schema.items():
            assertion = _ASSERTIONS.get(keyword)
            if assertion is not None:
                assertion(self.flat, value, pointer)
        if not schema.keys().isdisjoint(_MEMBERS):
            self.flat.objects.append(pointer)
        if not schema.keys().isdisjoint(_ELEMENTS):
            self.flat.arrays.append(pointer)
        if "contains" in schema:
            low = schema.get("minContains", 1)
            where = f"{pointer}/contains"
            count = Count(0, (holds(schema["contains"]),), low, schema.get("maxContains"), where)
            if low or count.high is not None:
                self.flat.counts.append(count)

    def _denied(self, term: Term) -> None:
        keyword = cast("str", term.value)
        schema = cast("Keywords", self._schema(term.pointer))
        types, refute = _REFUTATIONS[keyword]
        self.flat.types &= types
        refute(self, schema[keyword], term.pointer)

    def _types(self, term: Term) -> None:
        self.flat.types &= cast("int", term.value)

    def exclude(self, values: list[Any], pointer: str) -> None:
        """None of `values`, of the `enum` at `pointer`; arrays and objects become terms of their own."""
        if any(isinstance(value, dict | list) for value in values):
            self.flat.pieces.pop(Term("denied", pointer, "enum"), None)  # or those terms would come of it again
            for value in values:
                key = json_key(value)
                self._denials.values[key] = value
                self._todo.append((Term("differs", "", key), None))
            return
        flat = self.flat
        flat.excluded.extend(values)
        if None in values:
            flat.types &= ~NULL
        if {True, False} <= {value for value in flat.excluded if isinstance(value, bool)}:
            flat.types &= ~BOOLEAN

    def _required(self, term: Term) -> None:
        self.flat.required[cast("str", term.value)] = None
        self.flat.types &= OBJECT

    def _absent(self, term: Term) -> None:
        self.flat.absent.add(cast("str", term.value))

    def _member(self, term: Term) -> None:
        key, terms = cast("tuple[str, Terms]", term.value)
        self.flat.members.setdefault(key, []).extend(terms)

    def _others(self, term: Term) -> None:
        self.flat.others.append(cast("Others", term.value))

    def _some(self, term: Term) -> None:
        self.flat.needs[cast("Need", term.value)] = None
        self.flat.types &= OBJECT

    def _items(self, term: Term) -> None:
        low, high = cast("tuple[int, int | None]", term.value)
        self.flat.low_items = max(low, self.flat.low_items)
        self.flat.high_items = tighter(high, self.flat.high_items)

    def _element(self, term: Term) -> None:
        index, terms = cast("tuple[int, Terms]", term.value)
        self.flat.elements.setdefault(index, []).extend(terms)

    def _tail(self, term: Term) -> None:
        self.flat.tails.append(cast("tuple[int, Terms]", term.value))

    def _contained(self, term: Term) -> None:
        self.flat.counts.append(cast("Count", term.value))


_FACTS: Mapping[str, Callable[[Flattening, Term], None]] = {
    "own": Flattening._own,
    "denied": Flattening._denied,
    "types": Flattening._types,
    "required": Flattening._required,
    "absent": Flattening._absent,
    "member": Flattening._member,
    "others": Flattening._others,
    "some": Flattening._some,
    "items": Flattening._items,
    "element": Flattening._element,
    "tail": Flattening._tail,
    "contained": Flattening._contained,
}

_MEMBERS = frozenset(("properties", "patternProperties", "additionalProperties"))
_ELEMENTS = frozenset(("prefixItems", "items"))


def _type(flat: Flat, names: Any, _: str) -> None:
    flat.types &= types_of(names)


def _enum(flat: Flat, values: Any, _: str) -> None:
    flat.list_only(values)


def _bound(flat: Flat, bounds: Bounds) -> None:
    flat.bounds &= bounds


def _pattern(flat: Flat, text: Any, pointer: str) -> None:
    flat.passed[Test("pattern", text, f"{pointer}/pattern")] = None


def _format(flat: Flat, name: Any, pointer: str) -> None:
    flat.passed[Test("format", name, f"{pointer}/format")] = None


def _length(flat: Flat, low: int, high: int | None) -> None:
    flat.low_chars = max(flat.low_chars, low)
    flat.high_chars = tighter(flat.high_chars, high)


def _item_count(flat: Flat, low: int, high: int | None) -> None:
    flat.low_items = max(flat.low_items, low)
    flat.high_items = tighter(flat.high_items, high)


def _member_count(flat: Flat, low: int, high: int | None) -> None:
    flat.low_members = max(flat.low_members, low)
    flat.high_members = tighter(flat.high_members, high)


def _unique(flat: Flat, value: Any, _: str) -> None:
    flat.unique |= bool(value)


def _require(flat: Flat, keys: Any, _: str) -> None:
    flat.required.update(dict.fromkeys(keys))


def _property_names(flat: Flat, pointer: Any, _: str) -> None:
    flat.names[holds(pointer)] = None


_ASSERTIONS: Mapping[str, Callable[[Flat, Any, str], None]] = {
    "type": _type,
    "enum": _enum,
    "minimum": lambda flat, value, _: _bound(flat, Bounds(low=value)),
    "maximum": lambda flat, value, _: _bound(flat, Bounds(high=value)),
    "exclusiveMinimum": lambda flat, value, _: _bound(flat, Bounds(low=value, low_exclusive=True)),
    "exclusiveMaximum": lambda flat, value, _: _bound(flat, Bounds(high=value, high_exclusive=True)),
    "multipleOf": lambda flat, value, _: flat.multiples.append(value),
    "minLength": lambda flat, value, _: _length(flat, value, None),
    "maxLength": lambda flat, value, _: _length(flat, 0, value),
    "pattern": _pattern,
    "format": _format,
    "minItems": lambda flat, value, _: _item_count(flat, value, None),
    "maxItems": lambda flat, value, _: _item_count(flat, 0, value),
    "uniqueItems": _unique,
    "minProperties": lambda flat, value, _: _member_count(flat, value, None),
    "maxProperties": lambda flat, value, _: _member_count(flat, 0, value),
    "required": _require,
    "propertyNames": _property_names,
}

_Refutation = Callable[[Flattening, Any, str], None]


def _refuted_format(flattening: Flattening, name: Any, pointer: str) -> None:
    flattening.flat.failed[Test("format", name, f"{pointer}/format")] = None


def _refuted_pattern(flattening: Flattening, text: Any, pointer: str) -> None:
    flattening.flat.failed[Test("pattern", text, f"{pointer}/pattern")] = None


def _refuted_unique(flattening: Flattening, _: Any, pointer: str) -> None:
    flattening.flat.repeats = f"{pointer}/uniqueItems"
    _item_count(flattening.flat, 2, None)


def _at_most(count: Callable[[Flat, int, int | None], None]) -> _Refutation:
    def refute(flattening: Flattening, low: Any, _: str) -> None:
        if low == 0:
            flattening.flat.impossible = True
        count(flattening.flat, 0, low - 1)

    return refute


def _at_least(count: Callable[[Flat, int, int | None], None]) -> _Refutation:
    return lambda flattening, high, _: count(flattening.flat, high + 1, None)


_REFUTATIONS: Mapping[str, tuple[int, _Refutation]] = {
    "enum": (ANY_TYPE, Flattening.exclude),
    "minimum": (NUMBER, lambda to, value, _: _bound(to.flat, Bounds(high=value, high_exclusive=True))),
    "maximum": (NUMBER, lambda to, value, _: _bound(to.flat, Bounds(low=value, low_exclusive=True))),
    "exclusiveMinimum": (NUMBER, lambda to, value, _: _bound(to.flat, Bounds(high=value))),
    "exclusiveMaximum": (NUMBER, lambda to, value, _: _bound(to.flat, Bounds(low=value))),
    "multipleOf": (NUMBER, lambda to, value, _: to.flat.not_multiples.append(value)),
    "minLength": (STRING, _at_most(_length)),
    "maxLength": (STRING, _at_least(_length)),
    "pattern": (STRING, _refuted_pattern),
    "format": (STRING, _refuted_format),
    "minItems": (ARRAY, _at_most(_item_count)),
    "maxItems": (ARRAY, _at_least(_item_count)),
    "uniqueItems": (ARRAY, _refuted_unique),
    "minProperties": (OBJECT, _at_most(_member_count)),
    "maxProperties": (OBJECT, _at_least(_member_count)),
}
