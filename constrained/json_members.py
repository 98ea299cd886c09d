"""What a conjunction says of the members of an object: named ones, classes of other keys, counts and needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from .errors import UnsupportedGrammarError
from .json_document import Document
from .json_evaluator import Evaluator
from .json_strings import Strings, StringSet, Test
from .json_terms import STRING, Flat, Keywords, Term, Terms, holds, only

MAX_CLASSES = 64
"""Classes of undeclared keys: combinations of patterns that differ in what they say of the value."""
MAX_WORDS = 64
"""Keys of a class up to which they become named ones where keys are counted."""


@dataclass(frozen=True, slots=True)
class Named:
    """A member with a key that the schema names; `needs` are those that it may meet, as a mask."""

    key: str
    terms: Terms
    required: bool
    needs: int


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Other keys, which have the same conjunction of their values; `needs` are those that they may meet, as a mask."""

    keys: StringSet
    terms: Terms
    needs: int


@dataclass(frozen=True, slots=True)
class Members:
    """All that is said of the members of an object.

    Attributes:
        named: in the order in which they are written.
        classes: of the other keys that there may be.
        needs: conjunctions that the value of some member meets.
        low: how many members there are at least.
        high: and at most; None is no bound.
    """

    named: tuple[Named, ...]
    classes: tuple[KeyClass, ...]
    needs: tuple[Terms, ...]
    low: int
    high: int | None


FlatsOf = Callable[[Terms], list[Flat]]
"""Gives the branches of a conjunction without unions."""


class MemberPlan:
    """Works out the `Members` of one flat conjunction."""

    def __init__(
        self, flat: Flat, document: Document, evaluator: Evaluator, strings: Strings, flats: FlatsOf, is_open: bool
    ) -> None:
        self._flat = flat
        self._schema = document.schema
        self._evaluator = evaluator
        self._strings = strings
        self._flats = flats
        self._parts = [(pointer, cast("Keywords", document.schema(pointer))) for pointer in flat.objects]
        self._is_open = is_open
        self._names = tuple(flat.names)

    def members(self) -> Members | None:
        """The members; None where there can be no such object.

        Raises:
            UnsupportedGrammarError: too many combinations of patterns.
        """
        flat = self._flat
        keys = self._named_keys()
        name_sets = [found for flat_names in self._name_flats() for found in self._string_sets(flat_names, keys)]
        named: dict[str, Named] = {}
        for key in keys:
            terms = self._value(key)
            if terms is not None:
                named[key] = Named(key, terms, key in flat.required, self._needs_of_key(key))
            elif key in flat.required:
                return None
        classes = self._classes(frozenset(keys), name_sets)
        if flat.low_members or flat.needs:
            classes = self._spelled_out(classes, named)
        needs = tuple(need.value for need in flat.needs)
        high = flat.high_members
        if sum(member.required for member in named.values()) > (len(named) if high is None else high):
            return None
        return Members(tuple(named.values()), tuple(classes), needs, flat.low_members, high)

    def _named_keys(self) -> dict[str, None]:
        flat = self._flat
        keys: dict[str, None] = {}
        for _, schema in self._parts:
            keys.update(dict.fromkeys(schema.get("properties", ())))
        keys.update(dict.fromkeys(flat.required))
        keys.update(dict.fromkeys(flat.members))
        keys.update(dict.fromkeys(sorted(flat.absent)))
        for others in flat.others:
            keys.update(dict.fromkeys(sorted(others.names)))
        for need in flat.needs:
            keys.update(dict.fromkeys(sorted(need.names)))
            for found in self._flats((*need.key, only(STRING))) if need.key else ():
                self._string_sets(found, keys)
        return keys

    def _matches(self, pattern: str, key: str, pointer: str) -> bool:
        return self._evaluator.matches(pattern, key, f"{pointer}/patternProperties")

    def _value(self, key: str) -> Terms | None:
        """The conjunction of the value of a named member; None where there can be no such member."""
        if key in self._flat.absent or (self._names and not self._evaluator.admits(key, self._names)):
            return None
        pointers: dict[Term, None] = {}
        for pointer, schema in self._parts:
            found = [schema["properties"][key]] if key in schema.get("properties", ()) else []
            for pattern, inner in schema.get("patternProperties", {}).items():
                if self._matches(pattern, key, pointer):
                    found.append(inner)
            if not found:
                found = self._additional(schema)
            for inner in found:
                known = self._schema(inner)
                if known is False:
                    return None
                if known is not True:
                    pointers[holds(inner)] = None
        for term in self._flat.members.get(key, ()):
            pointers[term] = None
        for others in self._flat.others:
            if key not in others.names and not any(self._matches(p, key, "") for p in others.patterns):
                pointers.update(dict.fromkeys(others.terms))
        return tuple(pointers)

    def _additional(self, schema: Keywords) -> list[str]:
        return [schema["additionalProperties"]] if "additionalProperties" in schema else []

    def _is_closed(self, schema: Keywords) -> bool:
        if "additionalProperties" in schema:
            return self._schema(schema["additionalProperties"]) is False
        return not self._is_open and "properties" in schema

    def _needs_of_key(self, key: str) -> int:
        mask = 0
        for index, need in enumerate(self._flat.needs):
            if (
                key not in need.names
                and (need.pattern is None or self._matches(need.pattern, key, need.pointer))
                and not any(self._matches(pattern, key, need.pointer) for pattern in need.patterns)
                and self._evaluator.admits(key, need.key)
            ):
                mask |= 1 << index
        return mask

    def _name_flats(self) -> list[Flat]:
        """What `propertyNames` leaves of strings, in branches."""
        return self._flats((*self._names, only(STRING))) if self._names else [Flat(types=STRING)]

    def _string_sets(self, flat: Flat, keys: dict[str, None]) -> list[StringSet]:
        """The set of the strings of a branch of `propertyNames`; listed ones become named keys."""
        if flat.listed is not None:
            keys.update(dict.fromkeys(value for value in flat.listed if isinstance(value, str)))
            return []
        return [string_set(flat)]

    def _classes(self, names: frozenset[str], name_sets: list[StringSet]) -> list[KeyClass]:
        """The classes of the keys that are none of `names`."""
        if any(self._is_closed(schema) and not schema.get("patternProperties") for _, schema in self._parts):
            return []
        patterns = self._patterns()
        found: list[KeyClass] = []
        for signs in self._sign_vectors(list(patterns)):
            terms = self._class_value(signs)
            if terms is None:
                continue
            required = tuple(Test("pattern", text, patterns[text]) for text, sign in signs.items() if sign)
            forbidden = tuple(Test("pattern", text, patterns[text]) for text, sign in signs.items() if not sign)
            for names_of in name_sets:
                keys = replace(
                    names_of,
                    required=(*names_of.required, *required),
                    forbidden=(*names_of.forbidden, *forbidden),
                    excluded=names_of.excluded | names,
                )
                if not (required or names_of.required) or not self._strings.is_empty(keys):
                    found.extend(self._with_needs(keys, terms, signs))
        return found

    def _patterns(self) -> dict[str, str]:
        """Patterns that say something of values, with where they stand."""
        patterns: dict[str, str] = {}
        for pointer, schema in self._parts:
            for pattern in schema.get("patternProperties", ()):
                patterns.setdefault(pattern, f"{pointer}/patternProperties")
        for others in self._flat.others:
            for pattern in others.patterns:
                patterns.setdefault(pattern, "")
        for need in self._flat.needs:
            for pattern in (*need.patterns, *((need.pattern,) if need.pattern is not None else ())):
                patterns.setdefault(pattern, need.pointer)
        return patterns

    def _sign_vectors(self, patterns: list[str]) -> list[dict[str, bool]]:
        """Which patterns a key matches and which not, as far as some key does."""
        vectors: list[dict[str, bool]] = [{}]
        for pattern in patterns:
            grown = []
            for vector in vectors:
                for sign in (True, False):
                    longer = {**vector, pattern: sign}
                    if not any(longer.values()) or sum(longer.values()) == 1 == len(longer) or self._occurs(longer):
                        grown.append(longer)
            vectors = grown
            if len(vectors) > MAX_CLASSES:
                raise UnsupportedGrammarError(
                    f"more than {MAX_CLASSES} combinations of patterns of keys are not supported",
                    pointer=next(iter(self._patterns().values())),
                )
        return vectors

    def _occurs(self, signs: dict[str, bool]) -> bool:
        required = tuple(Test("pattern", text, "") for text, sign in signs.items() if sign)
        forbidden = tuple(Test("pattern", text, "") for text, sign in signs.items() if not sign)
        return not self._strings.is_empty(StringSet(required=required, forbidden=forbidden))

    def _class_value(self, signs: dict[str, bool]) -> Terms | None:
        terms: dict[Term, None] = {}
        for _, schema in self._parts:
            found = [inner for pattern, inner in schema.get("patternProperties", {}).items() if signs[pattern]]
            if not found and self._is_closed(schema):
                return None
            for inner in found or self._additional(schema):
                known = self._schema(inner)
                if known is False:
                    return None
                if known is not True:
                    terms[holds(inner)] = None
        for others in self._flat.others:
            if not any(signs[pattern] for pattern in others.patterns):
                terms.update(dict.fromkeys(others.terms))
        return tuple(terms)

    def _with_needs(self, keys: StringSet, terms: Terms, signs: dict[str, bool]) -> list[KeyClass]:
        """The class of `keys`; where a need asks more of the key, those that meet it and those that may not."""
        classes = [KeyClass(keys, terms, 0)]
        for index, need in enumerate(self._flat.needs):
            if (need.pattern is not None and not signs[need.pattern]) or any(signs[p] for p in need.patterns):
                continue
            if not need.key:
                classes = [replace(found, needs=found.needs | 1 << index) for found in classes]
                continue
            for flat in self._flats((*need.key, only(STRING))):
                if flat.listed is not None:
                    continue  # its keys are named
                narrow = string_set(flat)
                classes += [
                    replace(found, keys=_both(found.keys, narrow), needs=found.needs | 1 << index)
                    for found in list(classes)
                ]
        return [found for found in classes if not self._strings.is_empty(found.keys)] if len(classes) > 1 else classes

    def _spelled_out(self, classes: list[KeyClass], named: dict[str, Named]) -> list[KeyClass]:
        """`classes` without those of few keys, which are added to `named`."""
        kept = []
        for found in classes:
            keys = found.keys
            words = self._strings.words(keys, MAX_WORDS) if keys.required or keys.high is not None else None
            if words is None:
                kept.append(found)
                continue
            for word in words:
                before = named.get(word)
                needs = found.needs | (before.needs if before is not None else 0)
                named[word] = Named(word, found.terms, False, needs)
        return kept


def _both(first: StringSet, second: StringSet) -> StringSet:
    highs = [bound for bound in (first.high, second.high) if bound is not None]
    return StringSet(
        (*first.required, *second.required),
        (*first.forbidden, *second.forbidden),
        max(first.low, second.low),
        min(highs) if highs else None,
        first.excluded | second.excluded,
    )


def string_set(flat: Flat) -> StringSet:
    """The strings of a flat conjunction."""
    return StringSet(
        tuple(flat.passed),
        tuple(flat.failed),
        flat.low_chars,
        flat.high_chars,
        frozenset(value for value in flat.excluded if isinstance(value, str)),
    )
