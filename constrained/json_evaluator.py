"""Whether one JSON value is valid: a small exact evaluator of canonical schemas, for `enum` among other keywords."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

from .errors import GrammarLimitError
from .json_document import Document
from .json_numbers import NumberSet, admits_number
from .json_strings import Strings, StringSet, Test
from .json_terms import Count, Keywords, Need, Others, Term, Terms, type_bit, types_of
from .json_values import json_key

MAX_DEPTH = 200
"""Schemas inside schemas that one value is followed through."""


class Evaluator:
    """Judges values by the schemas of one document.

    Attributes:
        enums: the `json_key` of the values of each `enum`, by the pointer of its schema.
    """

    def __init__(self, document: Document, strings: Strings) -> None:
        self._schema = document.schema
        self._strings = strings
        self._depth = 0
        self.enums: dict[str, frozenset[Hashable]] = {}

    def admits(self, value: Any, terms: Iterable[Term]) -> bool:
        """Whether all `terms` hold for `value`.

        Raises:
            GrammarLimitError: schemas call each other too deeply.
        """
        return all(_FACTS[term.kind](self, value, term) for term in terms)

    def matches(self, pattern: str, text: str, pointer: str) -> bool:
        """Whether `pattern` is found in `text`; `pointer` is where it stands."""
        return self._strings.admits(StringSet(required=(Test("pattern", pattern, pointer),)), text)

    def valid(self, value: Any, pointer: str) -> bool:
        """Whether the schema at `pointer` holds for `value`."""
        found = self._schema(pointer)
        if isinstance(found, bool):
            return found
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._depth = 0
            raise GrammarLimitError(f"a listed value goes through more than {MAX_DEPTH} schemas", pointer=pointer)
        schema = cast("Keywords", found)
        result = all(self.keyword(value, keyword, schema, pointer) for keyword in schema)
        self._depth = max(self._depth - 1, 0)
        return result

    def keyword(self, value: Any, keyword: str, schema: Keywords, pointer: str) -> bool:
        """Whether one `keyword` of the `schema` at `pointer` holds for `value`."""
        if keyword in _EVERY_TYPE:
            return _EVERY_TYPE[keyword](self, value, schema, pointer)
        types, judge = _KEYWORDS.get(keyword, _NOTHING_SAID)
        return not isinstance(value, types) or isinstance(value, bool) or judge(self, value, schema, pointer)

    def needed(self, value: dict[str, Any], need: Need) -> bool:
        """Whether some member of `value` is what `need` asks for."""
        return any(
            key not in need.names
            and not any(self.matches(pattern, key, need.pointer) for pattern in need.patterns)
            and (need.pattern is None or self.matches(need.pattern, key, need.pointer))
            and self.admits(key, need.key)
            and self.admits(member, need.value)
            for key, member in value.items()
        )

    def counted(self, value: list[Any], count: Count) -> bool:
        """Whether as many elements of `value` as `count` asks for are what it asks for."""
        found = sum(self.admits(element, count.terms) for element in value[count.start :])
        return count.low <= found and (count.high is None or found <= count.high)

    def evaluated_members(self, value: dict[str, Any], pointer: str) -> set[str]:
        """The keys of `value` that the schema at `pointer`, which holds, evaluates."""
        schema = self._schema(pointer)
        if isinstance(schema, bool):
            return set()
        keywords = cast("Keywords", schema)
        if "additionalProperties" in keywords or "unevaluatedProperties" in keywords:
            return set(value)
        found = {key for key in value if key in keywords.get("properties", ())}
        for pattern in keywords.get("patternProperties", ()):
            found.update(key for key in value if self.matches(pattern, key, pointer))
        for inner in self._holding(value, keywords):
            found |= self.evaluated_members(value, inner)
        for key, inner in keywords.get("dependentSchemas", {}).items():
            if key in value:
                found |= self.evaluated_members(value, inner)
        return found

    def evaluated_elements(self, value: list[Any], pointer: str) -> set[int]:
        """The indices of `value` that the schema at `pointer`, which holds, evaluates."""
        schema = self._schema(pointer)
        if isinstance(schema, bool):
            return set()
        keywords = cast("Keywords", schema)
        if "items" in keywords or "unevaluatedItems" in keywords:
            return set(range(len(value)))
        found = set(range(min(len(value), len(keywords.get("prefixItems", ())))))
        if "contains" in keywords:
            found |= {i for i, element in enumerate(value) if self.valid(element, keywords["contains"])}
        for inner in self._holding(value, keywords):
            found |= self.evaluated_elements(value, inner)
        return found

    def _holding(self, value: Any, schema: Keywords) -> list[str]:
        """The schemas in place that hold for `value`, for annotations."""
        found = [schema["$ref"]] if "$ref" in schema else []
        found += schema.get("allOf", [])
        found += [part for keyword in ("anyOf", "oneOf") for part in schema.get(keyword, ()) if self.valid(value, part)]
        if "if" in schema:
            passed = self.valid(value, schema["if"])
            found += [schema["if"]] if passed else []
            branch = "then" if passed else "else"
            found += [schema[branch]] if branch in schema else []
        return found


_Judge = Callable[[Evaluator, Any, Keywords, str], bool]


def _in_enum(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    keys = to.enums.get(pointer)
    if keys is None:
        keys = to.enums[pointer] = frozenset(json_key(item) for item in schema["enum"])
    return json_key(value) in keys


def _if(to: Evaluator, value: Any, schema: Keywords, _: str) -> bool:
    branch = "then" if to.valid(value, schema["if"]) else "else"
    return branch not in schema or to.valid(value, schema[branch])


def _of_format(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    test = Test("format", schema["format"], f"{pointer}/format")
    return to._strings.admits(StringSet(required=(test,)), value)


def _pattern_properties(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    return all(
        to.valid(member, part)
        for pattern, part in schema["patternProperties"].items()
        for key, member in value.items()
        if to.matches(pattern, key, f"{pointer}/patternProperties")
    )


def _additional_properties(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    others = Others(
        frozenset(schema.get("properties", ())),
        tuple(schema.get("patternProperties", ())),
        (Term("holds", schema["additionalProperties"]),),
    )
    return _others(to, value, Term("others", pointer, others))


def _contains(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    low, high = schema.get("minContains", 1), schema.get("maxContains")
    return to.counted(value, Count(0, (Term("holds", schema["contains"]),), low, high, pointer))


def _unevaluated_properties(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    rest = {keyword: part for keyword, part in schema.items() if keyword != "unevaluatedProperties"}
    seen = set(value) if "additionalProperties" in rest else set(rest.get("properties", ()))
    seen |= {k for p in rest.get("patternProperties", ()) for k in value if to.matches(p, k, pointer)}
    for inner in to._holding(value, rest):
        seen |= to.evaluated_members(value, inner)
    for key, inner in rest.get("dependentSchemas", {}).items():
        seen |= to.evaluated_members(value, inner) if key in value else set()
    return all(key in seen or to.valid(member, schema["unevaluatedProperties"]) for key, member in value.items())


def _unevaluated_items(to: Evaluator, value: Any, schema: Keywords, pointer: str) -> bool:
    if "items" in schema:
        return True
    seen = set(range(len(schema.get("prefixItems", ()))))
    if "contains" in schema:
        seen |= {index for index, element in enumerate(value) if to.valid(element, schema["contains"])}
    for inner in to._holding(value, schema):
        seen |= to.evaluated_elements(value, inner)
    return all(index in seen or to.valid(item, schema["unevaluatedItems"]) for index, item in enumerate(value))


_NOTHING_SAID: tuple[Any, _Judge] = (object, lambda to, value, schema, _: True)  # of then, else, minContains ...
_NUMERIC = (int, Decimal)

_KEYWORDS: Mapping[str, tuple[Any, _Judge]] = {
    "minimum": (_NUMERIC, lambda to, value, schema, _: value >= schema["minimum"]),
    "maximum": (_NUMERIC, lambda to, value, schema, _: value <= schema["maximum"]),
    "exclusiveMinimum": (_NUMERIC, lambda to, value, schema, _: value > schema["exclusiveMinimum"]),
    "exclusiveMaximum": (_NUMERIC, lambda to, value, schema, _: value < schema["exclusiveMaximum"]),
    "multipleOf": (
        _NUMERIC,
        lambda to, value, schema, _: admits_number(NumberSet(multiples=(schema["multipleOf"],)), Decimal(value)),
    ),
    "minLength": (str, lambda to, value, schema, _: len(value) >= schema["minLength"]),
    "maxLength": (str, lambda to, value, schema, _: len(value) <= schema["maxLength"]),
    "pattern": (str, lambda to, value, schema, pointer: to.matches(schema["pattern"], value, f"{pointer}/pattern")),
    "format": (str, _of_format),
    "minItems": (list, lambda to, value, schema, _: len(value) >= schema["minItems"]),
    "maxItems": (list, lambda to, value, schema, _: len(value) <= schema["maxItems"]),
    "uniqueItems": (list, lambda to, value, schema, _: len({json_key(item) for item in value}) == len(value)),
    "prefixItems": (
        list,
        lambda to, value, schema, _: all(
            to.valid(item, part) for item, part in zip(value, schema["prefixItems"], strict=False)
        ),
    ),
    "items": (
        list,
        lambda to, value, schema, _: all(
            to.valid(item, schema["items"]) for item in value[len(schema.get("prefixItems", ())) :]
        ),
    ),
    "contains": (list, _contains),
    "unevaluatedItems": (list, _unevaluated_items),
    "minProperties": (dict, lambda to, value, schema, _: len(value) >= schema["minProperties"]),
    "maxProperties": (dict, lambda to, value, schema, _: len(value) <= schema["maxProperties"]),
    "required": (dict, lambda to, value, schema, _: all(key in value for key in schema["required"])),
    "properties": (
        dict,
        lambda to, value, schema, _: all(
            to.valid(value[key], part) for key, part in schema["properties"].items() if key in value
        ),
    ),
    "patternProperties": (dict, _pattern_properties),
    "additionalProperties": (dict, _additional_properties),
    "propertyNames": (dict, lambda to, value, schema, _: all(to.valid(key, schema["propertyNames"]) for key in value)),
    "dependentRequired": (
        dict,
        lambda to, value, schema, _: all(
            other in value for key, others in schema["dependentRequired"].items() if key in value for other in others
        ),
    ),
    "dependentSchemas": (
        dict,
        lambda to, value, schema, _: all(
            to.valid(value, part) for key, part in schema["dependentSchemas"].items() if key in value
        ),
    ),
    "unevaluatedProperties": (dict, _unevaluated_properties),
}

_EVERY_TYPE: Mapping[str, _Judge] = {
    "type": lambda to, value, schema, _: bool(type_bit(value) & types_of(schema["type"])),
    "enum": _in_enum,
    "$ref": lambda to, value, schema, _: to.valid(value, schema["$ref"]),
    "allOf": lambda to, value, schema, _: all(to.valid(value, part) for part in schema["allOf"]),
    "anyOf": lambda to, value, schema, _: any(to.valid(value, part) for part in schema["anyOf"]),
    "oneOf": lambda to, value, schema, _: sum(to.valid(value, part) for part in schema["oneOf"]) == 1,
    "not": lambda to, value, schema, _: not to.valid(value, schema["not"]),
    "if": _if,
}


def _others(to: Evaluator, value: Any, term: Term) -> bool:
    names, patterns, terms = cast("Others", term.value)
    return all(
        to.admits(member, terms)
        for key, member in (value.items() if isinstance(value, dict) else ())
        if key not in names and not any(to.matches(pattern, key, term.pointer) for pattern in patterns)
    )


def _member(to: Evaluator, value: Any, term: Term) -> bool:
    key, terms = cast("tuple[str, Terms]", term.value)
    return not isinstance(value, dict) or key not in value or to.admits(value[key], terms)


def _items(_: Evaluator, value: Any, term: Term) -> bool:
    low, high = cast("tuple[int, int | None]", term.value)
    return not isinstance(value, list) or (low <= len(value) and (high is None or len(value) <= high))


def _element(to: Evaluator, value: Any, term: Term) -> bool:
    index, terms = cast("tuple[int, Terms]", term.value)
    return not isinstance(value, list) or index >= len(value) or to.admits(value[index], terms)


def _tail(to: Evaluator, value: Any, term: Term) -> bool:
    index, terms = cast("tuple[int, Terms]", term.value)
    return not isinstance(value, list) or all(to.admits(item, terms) for item in value[index:])


def _own(to: Evaluator, value: Any, term: Term) -> bool:
    schema = cast("Keywords", to._schema(term.pointer))
    return all(to.keyword(value, keyword, schema, term.pointer) for keyword in schema if keyword not in IN_PLACE)


def _keyword(to: Evaluator, value: Any, term: Term) -> bool:
    keyword, key = cast("tuple[str, str]", term.value)
    schema = cast("Keywords", to._schema(term.pointer))
    if key:
        schema = {keyword: {key: schema[keyword][key]}}
    return to.keyword(value, keyword, schema, term.pointer)


def _unevaluated(to: Evaluator, value: Any, term: Term) -> bool:
    keyword, _, is_denied = cast("tuple[str, object, bool]", term.value)
    return to.keyword(value, keyword, cast("Keywords", to._schema(term.pointer)), term.pointer) != is_denied


def _denied(to: Evaluator, value: Any, term: Term) -> bool:
    schema = cast("Keywords", to._schema(term.pointer))
    return not to.keyword(value, cast("str", term.value), schema, term.pointer)


IN_PLACE = frozenset(
    (
        *("$ref", "allOf", "not", "anyOf", "oneOf", "if", "then", "else", "dependentRequired", "dependentSchemas"),
        *("unevaluatedProperties", "unevaluatedItems"),
    )
)
"""Keywords of other schemas for the same value."""

_FACTS: Mapping[str, Callable[[Evaluator, Any, Term], bool]] = {
    "holds": lambda to, value, term: to.valid(value, term.pointer),
    "fails": lambda to, value, term: not to.valid(value, term.pointer),
    "own": _own,
    "keyword": _keyword,
    "denied": _denied,
    "types": lambda to, value, term: bool(type_bit(value) & cast("int", term.value)),
    "unevaluated": _unevaluated,
    "either": lambda to, value, term: any(to.admits(value, terms) for terms in cast("tuple[Terms, ...]", term.value)),
    "differs": lambda to, value, term: json_key(value) != term.value,
    "required": lambda to, value, term: isinstance(value, dict) and term.value in value,
    "absent": lambda to, value, term: not isinstance(value, dict) or term.value not in value,
    "member": _member,
    "others": _others,
    "some": lambda to, value, term: isinstance(value, dict) and to.needed(value, cast("Need", term.value)),
    "items": _items,
    "element": _element,
    "tail": _tail,
    "contained": lambda to, value, term: not isinstance(value, list) or to.counted(value, cast("Count", term.value)),
}
