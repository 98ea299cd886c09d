"""Schemas that must hold together: `allOf`, siblings of `$ref` and `anyOf`, and what their members say of one place.

A conjunction is a tuple of parts, each a schema with its JSON pointer. Keywords are merged only where the merge is
exact; everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from .errors import GrammarError, UnsupportedGrammarError
from .json_keywords import (
    TYPE_NAMES,
    Schema,
    TypeName,
    asserts,
    bounds_of,
    check_keywords,
    list_of,
    mapping_of,
    number_of,
    pointer_to,
    refuse,
    span_of,
    strings_of,
    type_of,
    types_of,
)
from .json_numbers import Bounds

_UNIONS = ("anyOf", "oneOf")
_IN_PLACE = ("$ref", "allOf", *_UNIONS)


@dataclass(frozen=True, slots=True)
class Part:
    """One schema of a conjunction.

    Attributes:
        name: the pointer, or one derived from it by a suffix that begins with ``~`` and no escape.
        pointer: where errors and subschemas are.
        schema: the schema, or some of its keywords.
    """

    name: str
    pointer: str
    schema: Any

    def inner(self, *steps: str | int) -> Part:
        """The subschema at `steps`."""
        here = self.schema
        for step in steps:
            here = here[step]
        where = pointer_to(self.pointer, *steps)
        return Part(where, where, here)


Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Flat:
    """A conjunction without `$ref` and `allOf`: its parts' own keywords, and the unions one option of which must hold.

    `impossible` says that one part is the schema `false`.
    """

    own: Parts
    unions: Parts
    impossible: bool


def flatten(parts: Iterable[Part], root: Any) -> Flat:
    """Follow references and `allOf` until only own keywords and unions are left.

    Raises:
        GrammarError: a part is no schema, or a reference leads nowhere or only to itself.
    """
    own: dict[str, Part] = {}
    unions: dict[str, Part] = {}
    impossible = False
    todo: list[tuple[Part, frozenset[str]]] = [(part, frozenset()) for part in reversed(tuple(parts))]
    while todo:
        part, above = todo.pop()
        if isinstance(part.schema, bool):
            impossible = impossible or not part.schema
            continue
        check_schema(part)
        if part.name in above:
            raise GrammarError("the schema refers to itself and to nothing else", pointer=part.pointer)
        if "$ref" in part.schema and hides_siblings(root):
            todo.append((resolve(part, root), above | {part.name}))
            continue
        inside = [*_references(part, root), *options_of(part, "allOf")]
        todo.extend((inner, above | {part.name}) for inner in reversed(inside))
        for keyword in _UNIONS:
            if keyword in part.schema:
                name = part.name.removesuffix(f"~{keyword}") + f"~{keyword}"
                unions[name] = Part(name, part.pointer, {keyword: part.schema[keyword]})
        rest = {keyword: value for keyword, value in part.schema.items() if keyword not in _IN_PLACE}
        if asserts(rest):
            name = part.name if len(rest) == len(part.schema) else f"{part.name}~own"
            own[name] = Part(name, part.pointer, rest)
    return Flat(tuple(own.values()), tuple(unions.values()), impossible)


def hides_siblings(root: Any) -> bool:
    """Whether `$schema` names a draft in which keywords beside a `$ref` are ignored: draft 7 and all before it."""
    draft = root.get("$schema") if isinstance(root, dict) else None
    return isinstance(draft, str) and any(f"json-schema.org/draft-0{number}/" in draft for number in (3, 4, 6, 7))


def check_schema(part: Part) -> None:
    """Refuse what is no schema, and an `$id` that changes what references mean."""
    if not isinstance(part.schema, dict):
        raise GrammarError(f"a schema must be an object or a boolean, not {part.schema!r}", pointer=part.pointer)
    if "$id" in part.schema and part.pointer:
        refuse("$id", part.pointer, " below the root, since it changes what references mean")


def options_of(part: Part, keyword: str) -> list[Part]:
    """The schemas that `keyword` lists, none if it is absent."""
    if keyword not in part.schema:
        return []
    options = list_of(part.schema, keyword, part.pointer)
    if not options:
        raise GrammarError(f"{keyword!r} must not be empty", pointer=pointer_to(part.pointer, keyword))
    return [part.inner(keyword, index) for index in range(len(options))]


def _references(part: Part, root: Any) -> list[Part]:
    return [resolve(part, root)] if "$ref" in part.schema else []


def resolve(part: Part, root: Any) -> Part:
    """The schema that the `$ref` of `part` refers to.

    Raises:
        UnsupportedGrammarError: it is in another document, or an anchor.
        GrammarError: there is nothing.
    """
    target = part.schema["$ref"]
    where = pointer_to(part.pointer, "$ref")
    if not isinstance(target, str):
        raise GrammarError(f"'$ref' must be a string, not {target!r}", pointer=where)
    if target != "#" and not target.startswith("#/"):
        raise UnsupportedGrammarError(
            f"the reference {target!r} is not supported: only '#' and '#/...' are, in this schema", pointer=where
        )
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in target.split("/")[1:]]
    here = root
    for step in steps:
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and step.isdecimal() and int(step) < len(here):
            here = here[int(step)]
        else:
            raise GrammarError(f"the reference {target!r} leads nowhere in this schema", pointer=where)
    pointer = pointer_to("", *steps)
    return Part(pointer, pointer, here)


class Conjunction:
    """What the own keywords of several parts say together.

    Attributes:
        types: the types that all parts allow; with "number", integers too.
    """

    def __init__(self, parts: Parts) -> None:
        """
        Raises:
            UnsupportedGrammarError: a keyword that matters for `types` is not supported.
        """
        self.parts = parts
        allowed = [_with_integer(types_of(part.schema, part.pointer)) for part in parts]
        self.types: tuple[TypeName, ...] = tuple(name for name in TYPE_NAMES if all(name in types for types in allowed))
        for part in parts:
            check_keywords(part.schema, self.types, part.pointer)

    def listed(self) -> list[Any] | None:
        """The values that `enum` and `const` leave, other keywords aside; None without these keywords."""
        values: list[Any] | None = None
        for part in self.parts:
            for keyword in ("enum", "const"):
                if keyword in part.schema:
                    here = list_of(part.schema, keyword, part.pointer) if keyword == "enum" else [part.schema["const"]]
                    values = here if values is None else [v for v in values if any(equal(v, w) for w in here)]
        return values

    def admits(self, value: Any) -> bool:
        """Whether the other keywords allow the listed `value`.

        Raises:
            UnsupportedGrammarError: one of them would have to be evaluated on it, which is not supported.
        """
        name = type_of(value)
        if name not in self.types:
            return False
        if name in ("object", "array", "string"):
            keywords = {"object": _MEMBERS, "array": _ELEMENTS, "string": ("pattern",)}[name]
            for part in self.parts:
                for keyword in (keyword for keyword in keywords if keyword in part.schema):
                    refuse(keyword, part.pointer, f" beside a listed {name}")
        if name == "string":
            low, high = self.span("minLength", "maxLength")
            return low <= len(value) and (high is None or len(value) <= high)
        if name in ("number", "integer"):
            whole = self.wants_whole() and name == "number"
            return not whole and all(Decimal(value) in bounds_of(part.schema, part.pointer) for part in self.parts)
        return True

    def span(self, low: str, high: str) -> tuple[int, int | None]:
        """The narrowest of the parts' pairs of length keywords."""
        spans = [span_of(part.schema, low, high, part.pointer) for part in self.parts]
        highs = [most for _, most in spans if most is not None]
        return max((least for least, _ in spans), default=0), min(highs, default=None)

    def bounds(self) -> Bounds:
        """The numbers within the bounds of all parts."""
        bounds = Bounds()
        for part in self.parts:
            bounds = bounds & bounds_of(part.schema, part.pointer)
        return bounds

    def wants_whole(self) -> bool:
        """Whether a `multipleOf` asks for integers; any other divisor than 1 is refused."""
        divisors = [(part, number_of(part.schema, "multipleOf", part.pointer)) for part in self.parts]
        for part, divisor in divisors:
            if divisor not in (None, 1):
                refuse("multipleOf", part.pointer, " with other values than 1")
        return any(divisor == 1 for _, divisor in divisors)

    def pattern(self) -> tuple[str, str] | None:
        """The one `pattern` of the parts and its pointer."""
        found: dict[str, str] = {}
        for part in self.parts:
            if "pattern" in part.schema:
                where = pointer_to(part.pointer, "pattern")
                if not isinstance(part.schema["pattern"], str):
                    raise GrammarError(f"'pattern' must be a string, not {part.schema['pattern']!r}", pointer=where)
                found.setdefault(part.schema["pattern"], where)
                if len(found) > 1:
                    refuse("pattern", part.pointer, " beside another pattern")
        return next(iter(found.items()), None)

    def says_of(self, keywords: Iterable[str]) -> bool:
        """Whether any part has one of `keywords`."""
        return any(keyword in part.schema for part in self.parts for keyword in keywords)

    def declared(self) -> tuple[str, ...]:
        """Declared keys in the order of the parts, then those that are only required."""
        declared = [key for part in self.parts for key in mapping_of(part.schema, "properties", part.pointer)]
        return tuple(dict.fromkeys([*declared, *self.required()]))

    def required(self) -> tuple[str, ...]:
        """Keys that some part requires."""
        return tuple(key for part in self.parts for key in strings_of(part.schema, "required", part.pointer))

    def member(self, key: str) -> Parts:
        """What the parts say of the value of `key`: its property, or else that part's `additionalProperties`."""
        return tuple(
            part.inner("properties", key)
            if key in mapping_of(part.schema, "properties", part.pointer)
            else part.inner("additionalProperties")
            for part in self.parts
            if key in part.schema.get("properties", {}) or "additionalProperties" in part.schema
        )

    def other_members(self) -> Parts:
        """What the parts say of the values of keys that no part declares."""
        return tuple(part.inner("additionalProperties") for part in self.parts if "additionalProperties" in part.schema)

    def places(self) -> int:
        """Elements that some `prefixItems` speaks of."""
        return max(len(options_of(part, "prefixItems")) for part in self.parts)

    def element(self, index: int) -> Parts:
        """What the parts say of element `index`: its `prefixItems`, or else that part's `items`."""
        found: list[Part] = []
        for part in self.parts:
            prefix = options_of(part, "prefixItems")
            if isinstance(part.schema.get("items"), list):
                refuse("items", part.pointer, " as a list of schemas; use 'prefixItems'")
            if index < len(prefix):
                found.append(prefix[index])
            elif "items" in part.schema:
                found.append(part.inner("items"))
        return tuple(found)


_MEMBERS = ("properties", "required", "additionalProperties")
_ELEMENTS = ("items", "prefixItems", "minItems", "maxItems")


def _with_integer(types: tuple[TypeName, ...]) -> set[TypeName]:
    return {*types, "integer"} if "number" in types else set(types)


def are_disjoint(options: list[Part], root: Any) -> bool:
    """Whether surely no value validates against two of `options`: their types differ, or a required member does."""
    views = [_view(option, root) for option in options]
    return all(
        first is not None and second is not None and _differ(first, second, root)
        for index, first in enumerate(views)
        for second in views[:index]
    )


def _view(option: Part, root: Any) -> Schema | None:
    """The schema of `option` past plain references, or None where its keywords are not all its own."""
    for _ in range(20):
        if not isinstance(option.schema, dict):
            return None
        if "$ref" not in option.schema:
            return option.schema
        option = resolve(option, root)
    return None


def _differ(first: Schema, second: Schema, root: Any) -> bool:
    types = _with_integer(types_of(first, "")) & _with_integer(types_of(second, ""))
    if not types:
        return True
    if types != {"object"}:
        return False
    shared = set(strings_of(first, "required", "")) & set(strings_of(second, "required", ""))
    return any(_tags_differ(_tags(first, key, root), _tags(second, key, root)) for key in shared)


def _tags_differ(first: list[Any] | None, second: list[Any] | None) -> bool:
    if first is None or second is None:
        return False
    return not any(equal(a, b) for a in first for b in second)


def _tags(schema: Schema, key: str, root: Any) -> list[Any] | None:
    """The values that a property lists; None without `const` or `enum`."""
    properties = mapping_of(schema, "properties", "")
    if key not in properties:
        return None
    view = _view(Part("", "", properties[key]), root)
    if view is None:
        return None
    return [view["const"]] if "const" in view else view.get("enum")


def equal(a: Any, b: Any) -> bool:
    """JSON equality: 1 equals 1.0 but not true; members in any order."""
    todo = [(a, b)]
    while todo:
        x, y = todo.pop()
        if isinstance(x, dict) and isinstance(y, dict) and x.keys() == y.keys():
            todo.extend((x[key], y[key]) for key in x)
        elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
            todo.extend(zip(x, y, strict=True))
        elif isinstance(x, dict | list | bool) or isinstance(y, dict | list | bool):
            if x is not y:
                return False
        elif x != y:
            return False
    return True
