"""Schemas of one document that say the same in the same words, though they stand in different places."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, cast

from .errors import GrammarError
from .json_document import Document
from .json_terms import Keywords, Term, Terms
from .json_values import json_key

_ONE = frozenset(
    ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else")
) | frozenset(("unevaluatedProperties", "unevaluatedItems"))
"""Keywords whose value is one schema."""
_MANY = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_NAMED = frozenset(("properties", "patternProperties", "dependentSchemas"))


class Alike:
    """Finds, for a schema, the first one that was met and is equal to it. What they refer to is told by its place."""

    def __init__(self, document: Document, *, active: bool) -> None:
        """If it is not `active`, every schema is taken for the only one of its kind, which costs nothing."""
        self._schema = document.schema
        self._active = active
        self._firsts: dict[str, str] = {}  # by pointer
        self._known: dict[Hashable, str] = {}  # by what a schema says

    def of(self, pointer: str) -> str:
        """The pointer of the first schema that is equal to the one at `pointer`."""
        if not self._active:
            return pointer
        first = self._firsts.get(pointer)
        if first is None:
            self._read(pointer)
            first = self._firsts[pointer]
        return first

    def terms(self, terms: Terms) -> Terms:
        """`terms` about the first schemas that are equal to theirs."""
        return tuple(Term(term.kind, self.of(term.pointer)) if term.kind in _ABOUT else term for term in terms)

    def _read(self, start: str) -> None:
        todo = [start]
        entered: set[str] = set()
        while todo:
            pointer = todo[-1]
            if pointer in self._firsts:
                todo.pop()
                continue
            try:
                schema = self._schema(pointer)
            except GrammarError:  # which whoever needs the schema meets again
                self._firsts[pointer] = pointer
                continue
            if pointer not in entered:
                entered.add(pointer)
                todo.extend(inner for inner in _inside(schema) if inner not in self._firsts and inner not in entered)
            else:
                self._firsts[pointer] = self._known.setdefault(self._said(schema), pointer)

    def _said(self, schema: object) -> Hashable:
        if isinstance(schema, bool):
            return schema
        return tuple((keyword, self._value(keyword, value)) for keyword, value in cast("Keywords", schema).items())

    def _value(self, keyword: str, value: Any) -> Hashable:
        first = self._firsts
        if keyword in _ONE:
            return first.get(cast("str", value), cast("str", value))
        if keyword in _MANY:
            return tuple([first.get(inner, inner) for inner in value])
        if keyword in _NAMED:
            return tuple([(name, first.get(inner, inner)) for name, inner in value.items()])
        if keyword == "enum":
            return tuple([json_key(one) for one in value])
        if keyword == "dependentRequired":
            return tuple([(name, tuple(others)) for name, others in value.items()])
        return tuple(value) if isinstance(value, list) else cast("Hashable", value)


_ABOUT = ("holds", "fails")


def _inside(schema: object) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    for keyword, value in cast("Keywords", schema).items():
        if keyword in _ONE:
            yield value
        elif keyword in _MANY:
            yield from value
        elif keyword in _NAMED:
            yield from value.values()
