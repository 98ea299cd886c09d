"""Rules for JSON objects: members in the order of the schema, then others whose keys are not named, or in any order."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from .json_members import KeyClass, Members, Named
from .json_object_graph import ObjectGraph, Place
from .json_options import JsonOptions
from .json_strings import Strings, StringSet
from .json_terms import Terms
from .json_text import ANY_KEY, ANY_OBJECT, Spacing, comma_list, key_except, spacing, string_literal
from .json_ways import Counted, ways
from .rules import (
    EMPTY,
    NOTHING,
    OPEN_OBJECT,
    Choice,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Sequence,
    optional,
)


@dataclass(frozen=True, slots=True)
class _Member:
    """A named member as it is written."""

    written: Node
    required: bool


class ObjectRules:
    """Makes the rules of objects of one grammar.

    Args of the constructor:
        rules: where shared endings of objects go.
        value: gives the node of a conjunction.
        dead: gives a rule that matches nothing, in whose place errors are reported.
    """

    def __init__(
        self,
        rules: dict[str, Node],
        strings: Strings,
        options: JsonOptions,
        value: Callable[[Terms], Node],
        dead: Callable[[Terms], Node],
    ) -> None:
        self._rules = rules
        self._dead = dead
        self._strings = strings
        self._any_order = options.key_order == "any"
        self._space: Spacing = spacing(options)
        self._value = value
        self._keys: dict[StringSet, Node] = {}

    def object(self, members: Members, name: str) -> Node:
        """Objects of `members`; `name` begins the names of the rules that they need.

        Raises:
            UnsupportedGrammarError: too many ways to write a member; see `ways`.
        """
        if not members.needs and not members.low and members.high is None:
            if not members.named and len(members.classes) == 1:
                only = members.classes[0]
                if only.keys == StringSet() and not only.terms:
                    return ANY_OBJECT
            if not self._any_order or len(members.named) + len(members.classes) < 2:
                return self._in_order(members, name)
        if members.high is not None and members.high < members.low:
            return NOTHING
        if not members.named and not members.needs:
            return self._counted(members)
        return self._graph(members)

    def _counted(self, members: Members) -> Node:
        """An object of other keys only."""
        other = self._others(members.classes)
        if other == NOTHING or members.high == 0:
            return Literal(b"{}") if not members.low else NOTHING
        listed = comma_list(other, max(members.low, 1), members.high, self._space.comma)
        return self._space.bracketed(_opening(members), listed, b"}", may_be_empty=not members.low)

    def _others(self, classes: Items[KeyClass]) -> Node:
        """Any one member of `classes`."""
        options = []
        for found in classes:
            value = self._value(found.terms)
            if value != NOTHING:
                options.append(self._space.member(self._key(found.keys), value))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _key(self, keys: StringSet) -> Node:
        """A key of `keys` that no rule names."""
        known = self._keys.get(keys)
        if known is None:
            known = self._keys[keys] = self._spelled(keys)
        return known

    def _spelled(self, keys: StringSet) -> Node:
        if keys.required or keys.forbidden or keys.low or keys.high is not None:
            return self._strings.key(keys)
        if not keys.excluded:
            return ANY_KEY
        return key_except(keys.excluded)

    def _written(self, named: Named) -> Node:
        value = self._value(named.terms)
        return NOTHING if value == NOTHING else self._space.member(string_literal(named.key), value)

    def _in_order(self, members: Members, name: str) -> Node:
        """Named members in order, then any number of others: a chain, every tail of which may be the whole."""
        written: list[_Member] = []
        for named in members.named:
            node = self._written(named)
            if node != NOTHING:
                written.append(_Member(node, named.required))
            elif named.required:
                return self._dead(named.terms)
        other = self._others(members.classes)
        is_open = other != NOTHING
        opening = _opening(members) if is_open else Literal(b"{")
        if not written:
            if not is_open:
                return Sequence((Literal(b"{"), self._space.inside, Literal(b"}")))
            listed = comma_list(other, 1, None, self._space.comma)
            return self._space.bracketed(opening, listed, b"}", may_be_empty=True)
        inside, may_be_empty = self._chain(written, other, name)
        return self._space.bracketed(opening, inside, b"}", may_be_empty=may_be_empty)

    def _chain(self, members: Items[_Member], other: Node, name: str) -> tuple[Node, bool]:
        """`members` with commas between, one at least, then others; and whether there may be none."""
        comma = self._space.comma
        rest: list[Node] = []
        if other != NOTHING:
            others = Sequence((comma, other))
            rest.append(Repeat(others, 0, None))
        first = next((index for index, member in enumerate(members) if member.required), None)
        last_leading = len(members) if first is None else first
        for member in reversed(members[last_leading + 1 :]):
            more = Sequence((comma, *_inside(member.written)))
            rest.append(more if member.required else optional(more))
        rest.reverse()
        if first is not None and first == 0:
            return Sequence((members[0].written, *rest)), False
        return self._leading(members[: last_leading + 1], rest, other, name), first is None

    def _leading(self, members: Items[_Member], rest: list[Node], other: Node, name: str) -> Node:
        """Optional members up to the first required one, any of which may be what comes first; then `rest`."""
        comma = self._space.comma
        options: list[Node] = []
        tail: list[Node] = rest
        if not members[-1].required and other != NOTHING:
            options.append(Sequence((other, *rest)))
        for index in reversed(range(len(members))):
            member = members[index]
            option: Node = Sequence((*_inside(member.written), *tail))
            if index:  # it may be what comes first, and may come after another
                self._rules[f"{name}~from{index}"] = option
                option = RuleRef(f"{name}~from{index}")
                more: Node = Sequence((comma, option))
                self._rules[f"{name}~tail{index}"] = more if member.required else Choice((more, _joined(tail)))
                tail = [RuleRef(f"{name}~tail{index}")]
            options.append(option)
        return Choice(tuple(reversed(options)))

    def _graph(self, members: Members) -> Node:
        bodies: list[Node] = [self._space.comma]
        places: list[Place] = []
        for named in members.named:
            found = self._bodies(string_literal(named.key), named.terms, named.needs, members, bodies)
            if found:
                places.append(Place(found, named.required))
            elif named.required:
                return self._dead(named.terms)
        others: list[tuple[int, int]] = []
        for keys in members.classes:
            others.extend(self._bodies(self._key(keys.keys), keys.terms, keys.needs, members, bodies))
        needs = (1 << len(members.needs)) - 1
        spec = ObjectGraph(tuple(places), tuple(others), needs, members.low, members.high, not self._any_order)
        inside = Graph(spec, tuple(bodies), spec.start())
        opening = Flagged(Literal(b"{"), OPEN_OBJECT) if others else Literal(b"{")
        space = () if self._space.inside == EMPTY else (self._space.inside,)
        return Sequence((opening, *space, inside, *space, Literal(b"}")))

    def _bodies(
        self, key: Node, terms: Terms, needs: int, members: Members, bodies: list[Node]
    ) -> tuple[tuple[int, int], ...]:
        """Ways to write one member, with the needs that each meets; their bodies are added to `bodies`."""
        found: list[tuple[int, int]] = []
        met = [(index, Counted(need, ())) for index, need in enumerate(members.needs) if needs >> index & 1]
        for value, mask in ways(terms, met, self._value):
            found.append((len(bodies), mask))
            bodies.append(self._space.member(key, value))
        return tuple(found)


def _opening(members: Members) -> Node:
    return Flagged(Literal(b"{"), OPEN_OBJECT) if members.classes else Literal(b"{")


def _joined(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _inside(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else (node,)
