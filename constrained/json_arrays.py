"""Rules for JSON arrays: elements by place, in number, counted by what they are, and distinct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from .errors import UnsupportedGrammarError
from .json_alike import Alike
from .json_array_graph import ArrayGraph, Bound
from .json_document import Document
from .json_options import JsonOptions
from .json_terms import Count, Flat, Keywords, Term, Terms, fails, holds, tighter
from .json_text import ANY_ARRAY, Spacing, comma_list, spacing
from .json_ways import Counted, ways
from .rules import EMPTY, NOTHING, UNIQUE_ARRAY, Flagged, Graph, Literal, Node, Repeat, Sequence, optional

MAX_STATES = 50_000
"""States of an array whose elements are counted."""


@dataclass(frozen=True, slots=True)
class Elements:
    """What a conjunction says of the elements of an array.

    Attributes:
        places: the conjunctions of the first elements.
        rest: and of all others.
    """

    places: tuple[Terms, ...]
    rest: Terms


def elements_of(flat: Flat, document: Document) -> Elements:
    """The conjunction of the element at every place."""
    parts = [cast("Keywords", document.schema(pointer)) for pointer in flat.arrays]
    starts = [
        *(len(schema.get("prefixItems", ())) for schema in parts),
        *(index + 1 for index in flat.elements),
        *(start for start, _ in flat.tails),
        *(count.start for count in flat.counts),
    ]
    most = max(starts, default=0)
    most = most if flat.high_items is None else min(most, flat.high_items)
    places = [_element(flat, parts, index) for index in range(most + 1)]
    rest = places.pop()
    return Elements(tuple(places), rest)


def _element(flat: Flat, parts: list[Keywords], index: int) -> Terms:
    found: dict[Term, None] = {}
    for schema in parts:
        prefix = schema.get("prefixItems", ())
        if index < len(prefix):
            found[holds(prefix[index])] = None
        elif "items" in schema:
            found[holds(schema["items"])] = None
    found.update(dict.fromkeys(flat.elements.get(index, ())))
    for start, terms in flat.tails:
        if index >= start:
            found.update(dict.fromkeys(terms))
    return tuple(found)


class ArrayRules:
    """Makes the rules of arrays of one grammar. `value` gives the node of a conjunction, `domain` its number of values
    where it is finite and known."""

    def __init__(
        self,
        document: Document,
        options: JsonOptions,
        value: Callable[[Terms], Node],
        domain: Callable[[Terms], int | None],
        alike: Alike,
    ) -> None:
        self._document = document
        self._space: Spacing = spacing(options)
        self._value = value
        self._domain = domain
        self._alike = alike

    def array(self, flat: Flat) -> Node:
        """The arrays of a flat conjunction.

        Raises:
            UnsupportedGrammarError: too many counts, or too large ones; see `ways`.
        """
        elements = elements_of(flat, self._document)
        low, high = flat.low_items, flat.high_items
        counts = []
        for count in self._merged(flat.counts):
            sure = self._sure(count, elements)
            if sure is None:
                counts.append(count)
            elif sure:
                low = max(low, count.start + count.low) if count.low else low
                high = high if count.high is None else tighter(high, count.start + count.high)
            elif count.low:
                return NOTHING
        if flat.unique:
            high = tighter(high, self._distinct(elements))
        if (high is not None and high < low) or (flat.unique and flat.repeats is not None):
            return NOTHING
        if flat.repeats is not None:
            raise UnsupportedGrammarError("'uniqueItems' is not supported where it must not hold", pointer=flat.repeats)
        opening: Node = Flagged(Literal(b"["), UNIQUE_ARRAY) if flat.unique and high not in (0, 1) else Literal(b"[")
        if counts:
            return self._counted(elements, counts, Bound(low, high), opening)
        if not (elements.places or elements.rest or low or flat.unique) and high is None:
            return ANY_ARRAY
        return self._plain(elements, low, high, opening)

    def _merged(self, counts: list[Count]) -> list[Count]:
        """`counts` of which no two differ in their lower bound only."""
        found: dict[object, Count] = {}
        alike = {(count.start, self._alike.terms(count.terms), count.low, count.high): count for count in counts}
        for count in alike.values():
            key: object = (count.start, self._value(count.terms), None) if count.high is None else count
            before = found.get(key)
            found[key] = count if before is None or before.low < count.low else before
        return list(found.values())

    def _sure(self, count: Count, elements: Elements) -> bool | None:
        """Whether every element from its start on surely counts (True) or surely none does (False), else None."""
        if not count.start + count.low and count.high is None:
            return True
        counted = [*elements.places[count.start :], elements.rest]
        if len(count.terms) == 1 and all(self._domain((*terms, _denied(count))) == 0 for terms in counted):
            return True
        return False if all(self._domain((*terms, *count.terms)) == 0 for terms in counted) else None

    def _distinct(self, elements: Elements) -> int | None:
        """How many distinct elements there are at most; None where that is not known to be finite."""
        rest = self._domain(elements.rest)
        return None if rest is None else rest + len(elements.places)

    def _plain(self, elements: Elements, low: int, high: int | None, opening: Node) -> Node:
        comma = self._space.comma
        places = [self._value(terms) for terms in elements.places]
        after: Node = EMPTY
        rest_low = max(low - len(places), 0)
        rest_high = None if high is None else max(high - len(places), 0)
        if rest_high != 0:
            rest = self._value(elements.rest)
            if not places:
                return self._only(rest, low, high, opening)
            if rest != NOTHING:
                after = Repeat(Sequence((comma, rest)), rest_low, rest_high)
            elif rest_low:
                return NOTHING
        for index in reversed(range(1, len(places))):
            if high is not None and index >= high:
                continue
            inside = Sequence((comma, places[index], *((after,) if after != EMPTY else ())))
            after = inside if index < low else EMPTY if places[index] == NOTHING else optional(inside)
        if not places or high == 0 or places[0] == NOTHING:
            return NOTHING if low else self._empty(opening)
        first = Sequence((places[0], *((after,) if after != EMPTY else ())))
        return self._space.bracketed(opening, first, b"]", may_be_empty=not low)

    def _only(self, rest: Node, low: int, high: int | None, opening: Node) -> Node:
        if rest == NOTHING:
            return NOTHING if low else self._empty(opening)
        listed = comma_list(rest, max(low, 1), high, self._space.comma)
        return self._space.bracketed(opening, listed, b"]", may_be_empty=not low)

    def _empty(self, opening: Node) -> Node:
        inside = () if self._space.inside == EMPTY else (self._space.inside,)
        return Sequence((opening, *inside, Literal(b"]")))

    def _counted(self, elements: Elements, counts: list[Count], length: Bound, opening: Node) -> Node:
        bodies: list[Node] = [self._space.comma]
        places = []
        for index, terms in enumerate((*elements.places, elements.rest)):
            places.append(self._ways(index, terms, counts, bodies))
        spec = ArrayGraph(tuple(places), length, tuple(Bound(count.low, count.high) for count in counts))
        if spec.size() > MAX_STATES:
            raise UnsupportedGrammarError(
                f"counting these elements takes more than {MAX_STATES} states", pointer=counts[0].pointer
            )
        space = () if self._space.inside == EMPTY else (self._space.inside,)
        return Sequence((opening, *space, Graph(spec, tuple(bodies), spec.start()), *space, Literal(b"]")))

    def _ways(self, index: int, terms: Terms, counts: list[Count], bodies: list[Node]) -> tuple[tuple[int, int], ...]:
        """Ways to write the element at `index`, with the counts that each adds to; their bodies go into `bodies`."""
        found = []
        counted = [
            (number, Counted(count.terms, () if count.high is None else (_denied(count),)))
            for number, count in enumerate(counts)
            if index >= count.start
        ]
        for value, mask in ways(terms, counted, self._value):
            found.append((len(bodies), mask))
            bodies.append(value)
        return tuple(found)


def _denied(count: Count) -> Term:
    (term,) = count.terms  # one schema, wherever a count has an upper bound
    return holds(term.pointer) if term.kind == "fails" else fails(term.pointer)
