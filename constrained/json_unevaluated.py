"""`unevaluatedProperties` and `unevaluatedItems`: what the schemas in place that hold leave unevaluated.

Which of them hold must be known, so a conjunction with such a keyword is split by each that may hold and evaluates
something. What was decided travels in the value of the term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from .json_document import Document
from .json_terms import ARRAY, OBJECT, Count, Flat, Keywords, Need, Others, Term, Terms, fails, holds, only


class Decisions(NamedTuple):
    """The value of an "unevaluated" term.

    Attributes:
        keyword: which of the two.
        known: schemas in place that are known to hold or to fail.
        is_denied: whether something unevaluated is not what the keyword says, rather than all of it being so. Where
            the schema fails for another reason, a term with this may hold or not.
    """

    keyword: str
    known: frozenset[tuple[str, bool]] = frozenset()
    is_denied: bool = False


@dataclass(slots=True)
class _Seen:
    """What is evaluated: everything, or these keys, or the elements before `start` and those of `contains`."""

    everything: bool = False
    names: set[str] = field(default_factory=set)
    patterns: dict[str, None] = field(default_factory=dict)
    start: int = 0
    contains: dict[str, None] = field(default_factory=dict)
    known: dict[tuple[str, bool], None] = field(default_factory=dict)
    open: str | None = None


Probe = Callable[[Flat, str], bool | None]

_IN_PLACE = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"))
_MEMBERS = frozenset(("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"))
_ELEMENTS = frozenset(("prefixItems", "items", "contains", "unevaluatedItems"))
_KEY = "?"  # before a key in `Decisions.known`: whether the object has it


class Unevaluated:
    """Settles the terms of one document."""

    def __init__(self, document: Document, probe: Probe) -> None:
        """`probe` says whether a schema surely holds, surely fails or may hold with a flat conjunction."""
        self._schema = document.schema
        self._probe = probe

    def updated(self, flat: Flat, term: Term) -> Term:
        """`term` with what `flat` decides; to be kept, since parts of `flat` forget which schemas they are of."""
        decisions = cast("Decisions", term.value)
        seen = self._walk(flat, term.pointer, decisions)
        known = frozenset(seen.known)
        return term if known == decisions.known else term._replace(value=decisions._replace(known=known))

    def options(self, flat: Flat, term: Term) -> tuple[Terms, ...]:
        """The conjunctions of which one holds where `term` does."""
        decisions = cast("Decisions", term.value)
        is_object = decisions.keyword == "unevaluatedProperties"
        if not flat.types & (OBJECT if is_object else ARRAY):
            return () if decisions.is_denied else ((),)
        seen = self._walk(flat, term.pointer, decisions)
        if seen.everything:
            return () if decisions.is_denied else ((),)
        if seen.open is not None:
            return tuple(self._decided(term, decisions, seen.open, verdict) for verdict in (True, False))
        value = cast("Keywords", self._schema(term.pointer))[decisions.keyword]
        if decisions.is_denied:
            return (_denied(seen, value, f"{term.pointer}/{decisions.keyword}", is_object=is_object),)
        if is_object:
            others = Others(frozenset(seen.names), tuple(seen.patterns), (holds(value),))
            return ((Term("others", term.pointer, others),),)
        terms: Terms = (holds(value),)
        if seen.contains:
            terms = (Term("either", "", (terms, *((holds(inner),) for inner in seen.contains))),)
        return ((Term("tail", "", (seen.start, terms)),),)

    def _decided(self, term: Term, decisions: Decisions, name: str, verdict: bool) -> Terms:
        known = decisions.known | {(name, verdict)}
        after = term._replace(value=decisions._replace(known=known))
        if name.startswith(_KEY):
            return (Term("required" if verdict else "absent", "", name[1:]), after)
        return (holds(name) if verdict else fails(name), after)

    def _walk(self, flat: Flat, start: str, decisions: Decisions) -> _Seen:
        """What is evaluated as far as it is known; `open` is the first schema that is not."""
        seen = _Seen(known=dict.fromkeys(decisions.known))
        todo = [start]
        walked = {start}
        while todo:
            pointer = todo.pop()
            schema = self._schema(pointer)
            if isinstance(schema, bool):
                continue
            keywords = cast("Keywords", schema)
            self._own(seen, keywords, decisions.keyword, is_start=pointer == start)
            for inner in self._holding(flat, keywords, seen, decisions.keyword):
                if inner not in walked:
                    walked.add(inner)
                    todo.append(inner)
        return seen

    @staticmethod
    def _own(seen: _Seen, schema: Keywords, keyword: str, *, is_start: bool) -> None:
        """Add what the keywords of `schema` itself evaluate."""
        if keyword == "unevaluatedProperties":
            seen.everything |= "additionalProperties" in schema or (keyword in schema and not is_start)
            seen.names.update(schema.get("properties", ()))
            seen.patterns.update(dict.fromkeys(schema.get("patternProperties", ())))
        else:
            seen.everything |= "items" in schema or (keyword in schema and not is_start)
            seen.start = max(seen.start, len(schema.get("prefixItems", ())))
            if "contains" in schema:
                seen.contains[schema["contains"]] = None

    def _holding(self, flat: Flat, schema: Keywords, seen: _Seen, keyword: str) -> list[str]:
        """The schemas in place of `schema` that hold."""
        found = [schema["$ref"]] if "$ref" in schema else []
        found += schema.get("allOf", [])
        found += [
            part for part in schema.get("anyOf", ()) if self._may_say(part, keyword) and self._is(flat, part, seen)
        ]
        options = schema.get("oneOf", ())
        if any(self._may_say(part, keyword) for part in options):
            verdicts = [self._known(flat, part, seen) for part in options]
            if True in verdicts:
                found.append(options[verdicts.index(True)])
            else:
                found += [part for part in options if self._is(flat, part, seen)]
        if "if" in schema:
            found += self._conditional(flat, schema, seen, keyword)
        for key, part in schema.get("dependentSchemas", {}).items():
            if self._may_say(part, keyword) and self._is(flat, _KEY + key, seen):
                found.append(part)
        return found

    def _conditional(self, flat: Flat, schema: Keywords, seen: _Seen, keyword: str) -> list[str]:
        parts = [schema[name] for name in ("if", "then", "else") if name in schema]
        if not any(self._may_say(part, keyword) for part in parts):
            return []
        passed = self._is(flat, schema["if"], seen)
        branch = "then" if passed else "else"
        return [*([schema["if"]] if passed else []), *([schema[branch]] if branch in schema else [])]

    def _may_say(self, pointer: str, keyword: str) -> bool:
        """Whether the schema may evaluate something."""
        schema = self._schema(pointer)
        relevant = _MEMBERS if keyword == "unevaluatedProperties" else _ELEMENTS
        return not isinstance(schema, bool) and not schema.keys().isdisjoint(_IN_PLACE | relevant)

    def _known(self, flat: Flat, name: str, seen: _Seen) -> bool | None:
        for verdict in (True, False):
            if (name, verdict) in seen.known:
                return verdict
        if name.startswith(_KEY):
            key = name[1:]
            found = True if key in flat.required else False if key in flat.absent else None
        else:
            found = self._probe(flat, name)
        if found is not None:
            seen.known[name, found] = None
        return found

    def _is(self, flat: Flat, name: str, seen: _Seen) -> bool:
        """Whether a schema holds; one that may or may not is noted as open, and taken to fail."""
        known = self._known(flat, name, seen)
        if known is None and seen.open is None:
            seen.open = name
        return bool(known)


def _denied(seen: _Seen, value: str, where: str, *, is_object: bool) -> Terms:
    """Something that is not evaluated is not of the schema at `value`."""
    if is_object:
        need = Need(frozenset(seen.names), tuple(seen.patterns), None, (), (fails(value),), where)
        return (Term("some", "", need),)
    terms = (fails(value), *(fails(inner) for inner in seen.contains))
    return (only(ARRAY), Term("contained", "", Count(seen.start, terms, 1, None, where)))
