"""JSON Schema as rules over bytes.

Every subschema becomes one rule, named by its JSON pointer (``#/properties/age``), and so does every conjunction of
subschemas (json_terms.py); recursive references are recursive rules and nothing here recurses. Keywords are honoured
exactly or refused by name; json_text.py says which spellings of a value are allowed. Source: JSON Schema draft 2020-12;
json_document.py reads older drafts.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

from .errors import GrammarError, GrammarLimitError, UnsupportedGrammarError
from .json_alike import Alike
from .json_arrays import ArrayRules
from .json_branches import Branches, Branching
from .json_document import Document
from .json_evaluator import Evaluator
from .json_literals import any_order_literal
from .json_members import MemberPlan, string_set
from .json_numbers import NumberSet, lower_number
from .json_objects import ObjectRules
from .json_options import DEFAULT_JSON_OPTIONS, JsonOptions
from .json_strings import Strings
from .json_terms import ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, NUMBER, OBJECT, STRING, Flat, Terms, holds
from .json_text import ANY_VALUE, literal, shared_rules, spacing
from .json_text import BOOLEAN as ANY_BOOLEAN
from .json_text import NULL as NULL_TEXT
from .json_values import json_key
from .limits import CompileLimits, Deadline
from .rules import NOTHING, Choice, Literal, Node, RuleRef, Rules, children

_COMPOUND = ARRAY | OBJECT
_MAX_BRANCHES = 64
"""Branches of what `propertyNames` says of strings."""
_LISTED_KEYWORDS = frozenset(
    ("enum", "required", "properties", "patternProperties", "dependentRequired", "dependentSchemas", "prefixItems")
) | frozenset(("allOf", "anyOf", "oneOf"))
"""Keywords of canonical schemas whose values are lists or dictionaries."""
_DENYING = ("oneOf", "not", "if", "contains")
"""Keywords on whose account a schema may have to fail where an equal one holds."""
_MAX_COMBINED = 100_000
"""Terms of all conjunctions of more than one that become rules."""
_SMALL = 8
"""Nodes of strings or numbers up to which they are written anew wherever they stand."""


def lower_json_schema(
    source: str, limits: CompileLimits, deadline: Deadline, options: JsonOptions = DEFAULT_JSON_OPTIONS
) -> Rules:
    """Rules of the JSON texts that validate against the schema `source`, written as `options` say.

    Raises:
        GrammarError: not a legal schema, or a reference that leads nowhere.
        UnsupportedGrammarError: a keyword that is not supported, by name and JSON pointer.
        GrammarLimitError: too large.
    """
    limits.check("source_chars", len(source), "characters of the schema")
    document = Document(_parse(source), limits, options)
    alike = Alike(document, active=any(f'"{keyword}"' in source for keyword in _DENYING))
    lowering = _Lowering(document, alike, limits, deadline, options)
    return Rules(lowering.run(), lowering.rules, shared_rules(options))


def _parse(source: str) -> Any:
    def reject(constant: str) -> Any:
        raise GrammarError(f"the schema holds {constant}, which is not JSON")

    try:
        return json.loads(source, parse_float=Decimal, parse_constant=reject)
    except RecursionError:
        raise GrammarLimitError("the schema is nested too deeply to be read") from None
    except GrammarError:
        raise
    except json.JSONDecodeError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    except ValueError:
        raise GrammarError("the schema holds a number with too many digits to be read") from None


class _Lowering:
    """The rules made so far, and the conjunctions still to do."""

    def __init__(
        self, document: Document, alike: Alike, limits: CompileLimits, deadline: Deadline, options: JsonOptions
    ) -> None:
        self.rules: dict[str, Node] = dict(shared_rules(options))
        self._document = document
        self._limits = limits
        self._deadline = deadline
        self._options = options
        self._space = spacing(options)
        self._strings = Strings(self.rules, limits, deadline, options)
        self._evaluator = Evaluator(document, self._strings)
        self._branching = Branching(document, self._evaluator, alike)
        self._objects = ObjectRules(self.rules, self._strings, options, self._value, self._dead)
        self._arrays = ArrayRules(document, options, self._value, self._domain, alike)
        self._todo: list[tuple[str, Terms, Branches]] = []
        self._nodes: dict[Hashable, Node] = {}
        self._words: dict[tuple[tuple[str, object], ...], Node] = {}
        self._combined = 0
        self._listings: dict[Hashable, Node] = {}
        self._scalar_calls: dict[int, tuple[Node, Node]] = {}

    def run(self) -> str:
        """Make all rules of the document; the name of the one that it starts with."""
        start = self._value((holds(self._document.start),))
        while self._todo:
            self._deadline.check()
            name, terms, branches = self._todo.pop()
            self.rules[name] = self._lower(name, terms, branches)
            self._limits.check("rules", len(self.rules), "rules of the schema", pointer=terms[0].pointer)
        if isinstance(start, RuleRef):
            return start.name
        self.rules["#"] = start
        return "#"

    def _value(self, terms: Terms) -> Node:
        """What all `terms` together match: a small node, or a call of a rule that is made later."""
        if not terms:
            return ANY_VALUE
        node = self._nodes.get(terms)
        if node is None:
            node = self._nodes[terms] = self._like_another(terms)
        return node

    def _like_another(self, terms: Terms) -> Node:
        """The node of `terms`; that of another schema where both say the same in the same words."""
        if len(terms) > 1 or terms[0].kind != "holds":
            return self._make(terms)
        schema = self._document.schema(terms[0].pointer)
        if isinstance(schema, bool) or not schema.keys().isdisjoint(_LISTED_KEYWORDS):
            return self._make(terms)
        key = tuple(schema.items())
        node = self._words.get(key)
        if node is None:
            node = self._words[key] = self._make(terms)
        return node

    def _make(self, terms: Terms) -> Node:
        branches = self._branching.branches(terms)
        flat = branches.flat
        if flat.impossible:
            return NOTHING
        if flat.listed is not None:
            admitted = [value for value in flat.listed if self._evaluator.admits(value, terms)]
            return self._listing(admitted)
        if not flat.pieces and not flat.unions:
            return ANY_VALUE
        if branches.options is None and not flat.types & _COMPOUND:
            return _choice(self._scalars(flat))
        key = frozenset((*flat.pieces, *flat.unions)), self._order(flat)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = RuleRef(self._name(terms, flat))
            self.rules[node.name] = NOTHING  # its place: two must not have one name
            self._combined += len(terms) if len(terms) > 1 else 0
            if self._combined > _MAX_COMBINED:
                where = next((term.pointer for term in terms if term.kind in ("fails", "keyword")), terms[0].pointer)
                raise GrammarLimitError(
                    f"the 'anyOf', 'oneOf', 'not' and 'if' of the schema combine in too many ways: in conjunctions of "
                    f"more than {_MAX_COMBINED} schemas and keywords, all counted",
                    pointer=where,
                )
            self._todo.append((node.name, terms, branches))
        return node

    def _order(self, flat: Flat) -> tuple[str, ...]:
        """The order of schemas, as far as that of members hangs on it."""
        return tuple(flat.objects) if len(flat.objects) > 1 and self._options.key_order == "schema" else ()

    def _name(self, terms: Terms, flat: Flat) -> str:
        """A new name, by where the first of `terms` stands."""
        pointer = next((term.pointer for term in (*flat.pieces, *terms) if term.pointer), "")
        name = f"#{pointer}"
        return name if name not in self.rules and len(terms) == 1 else f"{name}~and{len(self.rules)}"

    def _dead(self, terms: Terms) -> Node:
        """A rule that matches nothing, by whose name errors say where."""
        name = f"#{terms[0].pointer}"
        self.rules.setdefault(name, NOTHING)
        return RuleRef(name) if self.rules[name] == NOTHING else NOTHING

    def _listing(self, values: list[Any]) -> Node:
        """Any of `values`; one rule for every long list of them."""
        key = tuple([json_key(value) for value in values])
        known = self._listings.get(key)
        if known is None:
            known = self._listings[key] = self._shared(_choice([self._listed(value) for value in values]))
        return known

    def _listed(self, value: Any) -> Node:
        if self._options.key_order == "any":
            return any_order_literal(value, self._space)
        return literal(value, self._space)

    def _lower(self, name: str, terms: Terms, branches: Branches) -> Node:
        if branches.options is not None:
            return _choice([self._value(option) for option in branches.options])
        flat = branches.flat
        options: list[Node] = []
        if flat.types & OBJECT:
            options.append(self._object(flat, name))
        if flat.types & ARRAY:
            options.append(self._arrays.array(flat))
        return _choice([*options, *self._scalars(flat)])

    def _object(self, flat: Flat, name: str) -> Node:
        plan = MemberPlan(
            flat, self._document, self._evaluator, self._strings, self._flats, self._options.additional_properties
        )
        members = plan.members()
        return NOTHING if members is None else self._objects.object(members, name)

    def _scalars(self, flat: Flat) -> list[Node]:
        options: list[Node] = []
        if flat.types & STRING:
            options.append(self._shared(self._strings.value(string_set(flat))))
        if flat.types & NUMBER:
            options.append(self._shared(lower_number(_number_set(flat))))
        if flat.types & BOOLEAN:
            excluded = {value for value in flat.excluded if isinstance(value, bool)}
            texts = [Literal(text) for value, text in ((True, b"true"), (False, b"false")) if value not in excluded]
            options.append(_choice(list(texts)) if excluded else ANY_BOOLEAN)
        if flat.types & NULL:
            options.append(NULL_TEXT)
        return options

    def _shared(self, node: Node) -> Node:
        """`node`, or if it is large a call of a rule that all places of the same node have in common."""
        known = self._scalar_calls.get(id(node))
        if known is None:
            call = node
            if not _is_small(node):
                call = RuleRef(f"json/scalar/{len(self._scalar_calls)}")
                self.rules[call.name] = node
            known = self._scalar_calls[id(node)] = node, call  # with the node itself, whose id() may not come again
        return known[1]

    def _flats(self, terms: Terms) -> list[Flat]:
        """The branches of a conjunction without unions.

        Raises:
            UnsupportedGrammarError: there are too many.
        """
        found: list[Flat] = []
        todo = [terms]
        while todo:
            some = todo.pop()
            branches = self._branching.branches(some)
            flat = branches.flat
            if flat.listed is not None:
                flat.listed = [value for value in flat.listed if self._evaluator.admits(value, some)]
            if not flat.impossible:
                todo.extend(branches.options or ())
                found.extend([flat] if branches.options is None else [])
            if len(found) + len(todo) > _MAX_BRANCHES:
                raise UnsupportedGrammarError(
                    f"more than {_MAX_BRANCHES} branches of the names of properties", pointer=terms[0].pointer
                )
        return found

    def _domain(self, terms: Terms) -> int | None:
        """How many values a conjunction has, where they are few and known."""
        flat = self._branching.branches(terms).flat
        if flat.impossible:
            return 0
        if flat.listed is not None:
            return sum(self._evaluator.admits(value, terms) for value in flat.listed)
        if flat.types & ~(BOOLEAN | NULL):
            return None
        excluded = sum(isinstance(value, bool) for value in flat.excluded)
        return (2 - excluded if flat.types & BOOLEAN else 0) + bool(flat.types & NULL)


def _number_set(flat: Flat) -> NumberSet:
    types = flat.types & NUMBER
    return NumberSet(
        flat.bounds,
        True if types == INTEGER else False if types == FRACTION else None,
        tuple(flat.multiples),
        tuple(flat.not_multiples),
        tuple(
            Decimal(value)
            for value in flat.excluded
            if isinstance(value, int | Decimal) and not isinstance(value, bool)
        ),
    )


def _is_small(node: Node) -> bool:
    """Whether a call in place of `node` would save little."""
    todo = [node]
    for part in todo:  # grows while it is walked
        todo.extend(children(part))
        if len(todo) > _SMALL:
            return False
    return True


def _choice(options: list[Node]) -> Node:
    kept = [option for option in options if option != NOTHING]
    return kept[0] if len(kept) == 1 else Choice(tuple(kept)) if kept else NOTHING
