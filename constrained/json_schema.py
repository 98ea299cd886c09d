"""JSON Schema as rules over bytes.

Every subschema becomes one rule, named by its JSON pointer (``#/properties/age``), and so does every conjunction of
subschemas; recursive references are recursive rules and nothing here recurses. Keywords are honoured exactly or refused
by name; json_text.py says which spellings of a value are allowed. Source: JSON Schema draft 2020-12, and draft 4's
boolean `exclusiveMinimum`.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from .errors import GrammarError, GrammarLimitError
from .json_conjunction import Conjunction, Flat, Part, Parts, are_disjoint, flatten, options_of
from .json_keywords import ARRAY_KEYWORDS, OBJECT_KEYWORDS, TypeName, refuse
from .json_numbers import integer, number
from .json_objects import Member, lower_object
from .json_text import (
    ANY_ARRAY,
    ANY_CHAR,
    ANY_OBJECT,
    ANY_VALUE,
    BOOLEAN,
    COMMA,
    NULL,
    QUOTE,
    characters,
    comma_list,
    literal,
    shared_rules,
    string,
)
from .limits import CompileLimits, Deadline
from .regex import CharRules, lower_search
from .rules import EMPTY, NOTHING, Choice, Literal, Node, Repeat, RuleRef, Rules, Sequence


def lower_json_schema(source: str, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of the JSON texts that validate against the schema `source`.

    Raises:
        GrammarError: not a legal schema, or a reference that leads nowhere.
        UnsupportedGrammarError: a keyword that is not supported, by name and JSON pointer.
        GrammarLimitError: too large.
    """
    limits.check("source_chars", len(source), "characters of the schema")
    lowering = _Lowering(_parse(source), limits, deadline)
    lowering.run()
    return Rules(lowering.start, lowering.rules)


def _parse(source: str) -> Any:
    def reject(constant: str) -> Any:
        raise GrammarError(f"the schema holds {constant}, which is not JSON")

    try:
        return json.loads(source, parse_float=Decimal, parse_constant=reject)
    except RecursionError:
        raise GrammarLimitError("the schema is nested too deeply to be read") from None
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error


class _Lowering:
    """The rules made so far, and the conjunctions still to do."""

    def __init__(self, root: Any, limits: CompileLimits, deadline: Deadline) -> None:
        self.rules: dict[str, Node] = shared_rules()
        self._root = root
        self._limits = limits
        self._deadline = deadline
        self._chars = CharRules(self.rules, "json/chars", characters, deadline)
        self._todo: list[tuple[str, Parts]] = []
        self._names: dict[frozenset[str], str] = {}
        self.start = self._rule((Part("", "", root),)).name

    def run(self) -> None:
        """Make all rules that the start rule needs."""
        while self._todo:
            self._deadline.check()
            name, parts = self._todo.pop()
            self.rules[name] = self._lower(name, parts)
            self._limits.check("rules", len(self.rules), "rules of the schema", pointer=parts[0].pointer)

    def _rule(self, parts: Parts) -> RuleRef:
        """A reference to the rule of all `parts` together, to be made if it is not yet."""
        parts = tuple(part for part in parts if part.schema is not True)
        if not parts:
            return ANY_VALUE
        key = frozenset(part.name for part in parts)
        name = self._names.get(key)
        if name is None:
            suffix = "" if len(key) == 1 else f"~and{len(self._names)}"
            name = self._names[key] = f"#{parts[0].name}{suffix}"
            self._todo.append((name, parts))
        return RuleRef(name)

    def _lower(self, name: str, parts: Parts) -> Node:
        flat = flatten(parts, self._root)
        if flat.impossible:
            return NOTHING
        if flat.unions:
            return self._union(flat)
        if flat.own != parts and len(flat.own) == 1:
            return self._rule(flat.own)  # an alias: the subschema's own rule is shared
        both = Conjunction(flat.own)
        listed = both.listed()
        if listed is not None:
            return Choice(tuple(literal(value) for value in listed if both.admits(value)))
        return Choice(tuple(self._typed(type_name, both, name) for type_name in both.types))

    def _union(self, flat: Flat) -> Node:
        """One option of the first union, with all the rest."""
        union, *others = flat.unions
        (keyword,) = union.schema
        options = options_of(union, keyword)
        if keyword == "oneOf" and not are_disjoint(options, self._root):
            refuse("oneOf", union.pointer, " unless its schemas surely exclude each other; see also 'anyOf'")
        return Choice(tuple(self._rule((*flat.own, *others, option)) for option in options))

    def _typed(self, type_name: TypeName, both: Conjunction, name: str) -> Node:
        match type_name:
            case "object":
                return self._object(both, name)
            case "array":
                return self._array(both, name)
            case "string":
                return self._string(both)
            case "number":
                return (integer if both.wants_whole() else number)(both.bounds())
            case "integer":
                both.wants_whole()  # refuses other divisors
                return NOTHING if "number" in both.types else integer(both.bounds())
            case "boolean":
                return BOOLEAN
            case "null":
                return NULL

    def _string(self, both: Conjunction) -> Node:
        low, high = both.span("minLength", "maxLength")
        if high is not None and high < low:
            return NOTHING
        found = both.pattern()
        if found is None:
            return string(low, high)
        pattern, where = found
        try:
            inside = lower_search(pattern, low, high, self._chars, ANY_CHAR, self._limits)
        except GrammarError as error:
            raise type(error)(str(error), pointer=where) from error
        return Sequence((QUOTE, inside, QUOTE))

    def _array(self, both: Conjunction, name: str) -> Node:
        if not both.says_of(ARRAY_KEYWORDS):
            return ANY_ARRAY
        low, high = both.span("minItems", "maxItems")
        if high is not None and high < low:
            return NOTHING
        places = both.places()
        items = self._rule(both.element(places))
        if not places:
            return Sequence((Literal(b"["), comma_list(items, low, high), Literal(b"]")))
        count = places if high is None else min(places, high)
        prefix: list[Node] = [self._rule(both.element(index)) for index in range(count)]
        return Sequence((Literal(b"["), self._tuple(prefix, items, low, high, name), Literal(b"]")))

    def _tuple(self, prefix: list[Node], items: Node, low: int, high: int | None, name: str) -> Node:
        """`prefix` in order, then `items`, `low` to `high` elements in all: one rule for each place of the prefix."""
        most = None if high is None else high - len(prefix)
        more: Node = Repeat(Sequence((COMMA, items)), max(low - len(prefix), 0), most)
        for index in reversed(range(len(prefix))):
            separator = (COMMA,) if index else ()
            place = Sequence((*separator, prefix[index], more))
            self.rules[f"{name}~place{index}"] = Choice((place, EMPTY)) if index >= low else place
            more = RuleRef(f"{name}~place{index}")
        return more

    def _object(self, both: Conjunction, name: str) -> Node:
        if not both.says_of(OBJECT_KEYWORDS):
            return ANY_OBJECT
        required = both.required()
        members = [Member(key, self._rule(both.member(key)), key in required) for key in both.declared()]
        return lower_object(name, members, self._rule(both.other_members()), self.rules)
