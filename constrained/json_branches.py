"""Conjunctions of schemas as branches: unions are settled where only one option is left, the smallest is kept open."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

from .json_alike import Alike
from .json_denials import Denials
from .json_document import Document
from .json_evaluator import Evaluator
from .json_flat import Flattening
from .json_summaries import Listed, Summaries, Summary, are_disjoint, both
from .json_terms import OBJECT, Flat, Keywords, Term, Terms, fails, holds, types_of
from .json_unevaluated import Unevaluated


@dataclass(frozen=True, slots=True)
class Branches:
    """A conjunction taken apart.

    Attributes:
        flat: what all of it says.
        options: conjunctions of which one must hold, each with all the rest; None where no union is left.
    """

    flat: Flat
    options: tuple[Terms, ...] | None


class Branching:
    """Takes conjunctions over one document apart."""

    def __init__(self, document: Document, evaluator: Evaluator, alike: Alike) -> None:
        self._schema = document.schema
        self._document = document
        self._evaluator = evaluator
        self._denials = Denials(document)
        self._alike = alike
        self._summaries = Summaries(document)
        self._unevaluated = Unevaluated(document, self._probe_schema)
        self._exclusive: dict[tuple[str, int], tuple[Terms, ...]] = {}

    def branches(self, terms: Terms) -> Branches:
        """Take `terms` apart.

        Raises:
            GrammarError: a schema refers to itself and to nothing else.
            UnsupportedGrammarError: a keyword that is not supported, by name and JSON pointer.
        """
        flat = Flat()
        flattening = Flattening(self._document, self._denials, self._alike, flat)
        flattening.add(terms)
        while not flat.impossible and flat.types and flat.listed is None:
            kept = self._settle(flattening)
            if kept is None:
                break
            if not kept:
                flat.impossible |= self._contradicts_itself(flat)
                return Branches(flat, None)
            if kept is not True:
                flat.impossible |= self._contradicts_itself(flat)
                return Branches(flat, self._expanded(flat, kept))
        flat.impossible |= not flat.types
        return Branches(flat, None)

    def _settle(self, flattening: Flattening) -> dict[Term, list[Terms]] | bool | None:
        """The options of each open union; True where some were settled, None where nothing can be."""
        flat = flattening.flat
        kept: dict[Term, list[Terms]] = {}
        progress = False
        for union in list(flat.unions):
            if union not in flat.unions:
                continue  # another one became the same
            if union.kind == "unevaluated":
                del flat.unions[union]
                union = self._unevaluated.updated(flat, union)
                flat.unions[union] = None
            options = self._surviving(flat, union)
            if options is None:
                del flat.unions[union]
            elif not options:
                flat.impossible = True
                return None
            elif len(options) == 1:
                del flat.unions[union]
                flattening.add(options[0])
                progress = True
                if flat.impossible or not flat.types:
                    return None
            else:
                kept[union] = options
        return True if progress else kept

    def _expanded(self, flat: Flat, kept: dict[Term, list[Terms]]) -> tuple[Terms, ...]:
        union = min(kept, key=lambda term: len(kept[term]))
        others = tuple(other for other in kept if other != union)
        pieces = tuple(flat.pieces)
        result = []
        for option in kept[union]:
            rest = pieces
            if len(option) == 1 and not others and len(pieces) == 1 and option[0].kind == "holds":
                mask = self._types_only(pieces[0])
                if mask is not None and not self._summaries.of(option[0].pointer).types & ~mask:
                    rest = ()
            result.append((*rest, *others, *option))
        return tuple(result)

    def _types_only(self, term: Term) -> int | None:
        """The types of a term that says nothing else."""
        if term.kind == "types":
            return cast("int", term.value)
        if term.kind != "own":
            return None
        schema = cast("Keywords", self._schema(term.pointer))
        if "type" in schema and not schema.keys() - _TYPE_AND_UNIONS:
            return types_of(schema["type"])
        return None

    def _surviving(self, flat: Flat, union: Term) -> list[Terms] | None:
        """The options of `union` that may hold with `flat`; None where one surely does."""
        kept = []
        for option in self._options(flat, union):
            if any(self._is_around(term, flat, union) for term in option):
                continue  # a schema that is one of its own options: they add nothing
            verdict = self._probe(flat, option)
            if verdict is True:
                return None
            if verdict is None:
                kept.append(option)
        return kept

    def _options(self, flat: Flat, union: Term) -> tuple[Terms, ...]:
        if union.kind == "fails":
            return self._denials.options(union.pointer)
        if union.kind == "differs":
            return self._denials.different(union.value)
        if union.kind == "unevaluated":
            return self._unevaluated.options(flat, union)
        if union.kind == "either":
            return cast("tuple[Terms, ...]", union.value)
        keyword, key = cast("tuple[str, str]", union.value)
        schema = cast("Keywords", self._schema(union.pointer))
        if keyword == "anyOf":
            return tuple((holds(option),) for option in schema["anyOf"])
        if keyword == "oneOf":
            return self._exactly_one(union.pointer, schema["oneOf"], flat.types)
        if keyword == "if":
            condition, then, otherwise = schema["if"], schema.get("then"), schema.get("else")
            return (
                (holds(condition), *((holds(then),) if then is not None else ())),
                (fails(condition), *((holds(otherwise),) if otherwise is not None else ())),
            )
        present = Term("required", "", key)
        more: Terms
        if keyword == "dependentSchemas":
            more = (holds(schema[keyword][key]),)
        else:
            more = tuple(Term("required", "", other) for other in schema[keyword][key])
        return ((Term("absent", "", key),), (present, *more))

    def _exactly_one(self, pointer: str, options: list[str], types: int) -> tuple[Terms, ...]:
        found = self._exclusive.get((pointer, types))
        if found is None:
            overlaps = self._overlaps([self._summaries.of(option) for option in options], types)
            found = tuple(
                (holds(option), *(fails(options[other]) for other in sorted(overlaps[index])))
                for index, option in enumerate(options)
            )
            self._exclusive[pointer, types] = found
        return found

    def _overlaps(self, views: list[Summary], types: int) -> list[set[int]]:
        """For each view, the others that are not surely disjoint from it; near linear where tags tell them apart."""
        found: list[set[int]] = [set() for _ in views]
        for group in self._groups(views, types):
            for position, first in enumerate(group):
                for second in group[:position]:
                    if second not in found[first] and not are_disjoint(views[first], views[second], types):
                        found[first].add(second)
                        found[second].add(first)
        return found

    def _groups(self, views: list[Summary], types: int) -> list[list[int]]:
        """Indices of views such that two that may overlap are together in one of the lists."""
        by_type: dict[int, list[int]] = {}
        for index, view in enumerate(views):
            for bit in range(7):
                if view.types & types & 1 << bit:
                    by_type.setdefault(1 << bit, []).append(index)
        groups: list[list[int]] = []
        for bit, members in by_type.items():
            if len(members) > 1:
                groups.extend(_by_tag(views, members) if bit == OBJECT else _by_value(views, members))
        return groups

    def _is_around(self, term: Term, flat: Flat, union: Term) -> bool:
        """Whether the schema that `term` says holds is one that `union` is there for."""
        if term.kind != "holds" or (self._alike.of(term.pointer), True) not in flat.seen:
            return False
        todo = [term.pointer]
        known = {term.pointer}
        for pointer in todo:  # grows while it is walked
            if pointer == union.pointer:
                return True
            schema = self._schema(pointer)
            if isinstance(schema, bool):
                continue
            for inner in (*([schema["$ref"]] if "$ref" in schema else ()), *schema.get("allOf", ())):
                if inner not in known:
                    known.add(inner)
                    todo.append(inner)
        return False

    def _probe(self, flat: Flat, option: Terms) -> bool | None:
        """Whether `option` surely holds with `flat` (True), surely does not (False), or may."""
        sure = True
        for term in option:
            verdict = self._probe_term(flat, term)
            if verdict is False:
                return False
            sure = sure and verdict is True
        return True if sure else None

    def _probe_term(self, flat: Flat, term: Term) -> bool | None:
        kind = term.kind
        if kind == "holds":
            return self._probe_schema(flat, term.pointer)
        if kind == "fails":
            verdict = self._probe_schema(flat, term.pointer)
            return None if verdict is None else not verdict
        if kind == "types":
            mask = cast("int", term.value)
            return False if not flat.types & mask else True if not flat.types & ~mask else None
        if kind == "required":
            if term.value in flat.absent or not flat.types & OBJECT:
                return False
            return True if term.value in flat.required and flat.types == OBJECT else self._may_have(flat, term.value)
        if kind == "absent":
            if not flat.types & OBJECT or term.value in flat.absent:
                return True
            return False if term.value in flat.required else None
        if kind == "member":
            return self._probe_member(flat, *cast("tuple[str, Terms]", term.value))
        return True if term in flat.pieces else None

    def _may_have(self, flat: Flat, key: object) -> bool | None:
        """Whether an object of `flat` may have `key`: False where a schema closes it out."""
        for pointer in flat.objects:
            schema = cast("Keywords", self._schema(pointer))
            inner = schema.get("properties", {}).get(key)
            if inner is not None:
                if self._schema(inner) is False:
                    return False
            elif (
                "patternProperties" not in schema
                and "additionalProperties" in schema
                and self._schema(schema["additionalProperties"]) is False
            ):
                return False
        return None

    def _probe_schema(self, flat: Flat, pointer: str) -> bool | None:
        first = self._alike.of(pointer)
        if (first, True) in flat.seen:
            return True
        if (first, False) in flat.seen:
            return False
        schema = self._schema(pointer)
        if isinstance(schema, bool):
            return schema
        if not schema:
            return True
        view = self._summaries.of(pointer)
        if not view.types & flat.types:
            return False
        if flat.types == OBJECT and self._objects_differ(flat, view):
            return False
        keywords = schema.keys()
        if keywords == {"type"} and not flat.types & ~view.types:
            return True
        if keywords == {"required"} and flat.types == OBJECT and view.required <= flat.required.keys():
            return True
        return None

    def _objects_differ(self, flat: Flat, view: Summary) -> bool:
        if not view.required.isdisjoint(flat.absent):
            return True
        if view.closed is not None and not flat.required.keys() <= view.closed:
            return True
        if any(self._may_have(flat, key) is False for key in view.required):
            return True
        return any(
            not self._candidates(flat, key, values)
            for key, values in view.tags.items()
            if key in view.required or key in flat.required
        )

    def _candidates(self, flat: Flat, key: str, values: Listed | None, more: Terms = ()) -> Listed | None:
        """The values that a member may have, if they are listed, in `flat` or in `values`."""
        for pointer in flat.objects:
            inner = cast("Keywords", self._schema(pointer)).get("properties", {}).get(key)
            if inner is not None:
                values = both(values, self._summaries.listed(inner))
        terms = (*flat.members.get(key, ()), *more)
        if values is None or not terms:
            return values
        return {name: value for name, value in values.items() if self._evaluator.admits(value, terms)}

    def _probe_member(self, flat: Flat, key: str, terms: Terms) -> bool | None:
        before = self._candidates(flat, key, None)
        if before is None:
            return None
        after = self._candidates(flat, key, before, terms)
        assert after is not None
        return False if not after else True if len(after) == len(before) else None

    def _contradicts_itself(self, flat: Flat) -> bool:
        """Whether a required member has surely no value."""
        if flat.types != OBJECT:
            return False
        if not flat.absent.isdisjoint(flat.required):
            return True
        if len(flat.objects) < 2 and not flat.members:
            return False
        for key in flat.required:
            candidates = self._candidates(flat, key, None)
            if candidates is not None and not candidates:
                return True
        return False


_TYPE_AND_UNIONS = frozenset(("type", "anyOf", "oneOf", "$ref", "allOf", "not", "if", "then", "else"))


def _by_value(views: list[Summary], members: list[int]) -> list[list[int]]:
    """Groups of the views that list a value in common; those that list none are in each."""
    listed: dict[Hashable, list[int]] = {}
    others: list[int] = []
    for index in members:
        values = views[index].values
        if values is None:
            others.append(index)
        for key in values or ():
            listed.setdefault(key, []).append(index)
    return [*_with(others, listed)]


def _by_tag(views: list[Summary], members: list[int]) -> list[list[int]]:
    """Groups of the views that have a value of their commonest required tag in common; those without it are in each."""
    counts: dict[str, int] = {}
    for index in members:
        for key in views[index].tags:
            if key in views[index].required:
                counts[key] = counts.get(key, 0) + 1
    if not counts:
        return [members]
    tag = max(counts, key=lambda key: counts[key])
    listed: dict[Hashable, list[int]] = {}
    others: list[int] = []
    for index in members:
        if tag not in views[index].tags or tag not in views[index].required:
            others.append(index)
            continue
        for value in views[index].tags[tag]:
            listed.setdefault(value, []).append(index)
    return _with(others, listed)


def _with(others: list[int], listed: dict[Hashable, list[int]]) -> list[list[int]]:
    if not others:
        return [group for group in listed.values() if len(group) > 1]
    return [[*others, *group] for group in listed.values()] or [others]
