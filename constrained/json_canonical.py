"""One schema of any draft in the form of 2020-12, its keywords checked and its subschemas named by pointer.

Source: the meta-schemas of drafts 3 to 2020-12, and the sections on compatibility of 2019-09 and 2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import cast, get_args

from .json_drafts import Draft, has_keyword
from .json_formats import is_enforced
from .json_forms import CountKey, NamedSchemasKey, NumberKey, Pointer, Schema, SchemaKey, SchemaListKey, TextKey
from .json_options import JsonOptions
from .json_references import Place, References
from .json_values import (
    TYPE_NAMES,
    Json,
    TypeName,
    checked_count,
    checked_flag,
    checked_list,
    checked_number,
    checked_object,
    checked_strings,
    checked_text,
    checked_types,
    json_key,
    malformed,
    pointer_to,
)


class Canonical:
    """The canonical form of one schema.

    Attributes:
        schema: the form.
        places: the schemas that it names, by pointer, as they stand in the document.
        made: the schemas that it names and the document only implies, by pointer.
        place: the schema as it stands.
        pointer: its JSON pointer.
        here: its keywords as they stand.
        references: where references lead.
        options: which formats count.
    """

    def __init__(self, place: Place, references: References, options: JsonOptions) -> None:
        """Raises GrammarError or UnsupportedGrammarError for what `place` says; see `Document.schema`."""
        self.schema: Schema = {}
        self.places: dict[Pointer, Place] = {}
        self.made: dict[Pointer, Schema] = {}
        self.place = place
        self.pointer = place.pointer
        self.references = references
        self.options = options
        self.here: dict[str, object] = {} if isinstance(place.value, bool) else place.value
        if "$ref" in self.here and place.draft.hides_siblings:
            _read_ref(self, "$ref", self.here["$ref"])
            return
        readers = _READERS_OF[place.draft]
        for keyword, value in self.here.items():
            read = readers.get(keyword)
            if read is not None:
                read(self, keyword, value)
        self._finish()

    def at(self, *steps: str | int) -> str:
        """The JSON pointer of what stands at `steps`, for errors."""
        return pointer_to(self.pointer, *steps)

    def inner(self, value: object, *steps: str | int) -> Pointer:
        """The pointer of the schema `value` that stands at `steps`."""
        place = self.references.inside(self.place, value, self.at(*steps))
        self.places[place.key] = place
        return place.key

    def make(self, name: str, schema: Schema) -> Pointer:
        """The pointer of a `schema` that the document only implies."""
        key = f"{self.place.key}~{name}"
        self.made[key] = schema
        return key

    def also(self, pointer: Pointer) -> None:
        """Demand the schema at `pointer` too."""
        self.schema.setdefault("allOf", []).append(pointer)

    def _finish(self) -> None:
        """What several keywords say together."""
        schema, here = self.schema, self.here
        if "if" in schema and "then" not in schema and "else" not in schema and not self._counts_evaluated:
            del schema["if"]
        if "if" not in schema:
            schema.pop("then", None)
            schema.pop("else", None)
        if "contains" not in schema:
            schema.pop("minContains", None)
            schema.pop("maxContains", None)
        elif self.place.draft is Draft.D2019 and self.references.mentions("unevaluatedItems"):
            self._hide_contains()
        if here.get("exclusiveMinimum") is True and "minimum" in schema:
            schema["exclusiveMinimum"] = schema.pop("minimum")
        if here.get("exclusiveMaximum") is True and "maximum" in schema:
            schema["exclusiveMaximum"] = schema.pop("maximum")
        if "type" in schema:
            for keyword in schema.keys() & _silent(tuple(schema["type"])):
                del schema[keyword]  # type: ignore[misc]  # mypy wants a literal

    @property
    def _counts_evaluated(self) -> bool:
        """Whether it may matter which members and elements a schema evaluates, so that an `if` alone says something."""
        return self.references.mentions("unevaluatedProperties") or self.references.mentions("unevaluatedItems")

    def _hide_contains(self) -> None:
        """In 2019-09 `contains` evaluates no items, unlike in 2020-12; nor does what is twice negated."""
        inner: Schema = {"contains": self.schema.pop("contains")}
        if "minContains" in self.schema:
            inner["minContains"] = self.schema.pop("minContains")
        if "maxContains" in self.schema:
            inner["maxContains"] = self.schema.pop("maxContains")
        twice = self.make("contains~not", {"not": self.make("contains", inner)})
        self.also(self.make("contains~not~not", {"not": twice}))

    @property
    def reads_old_required(self) -> bool:
        """Whether `required` as a boolean says that the member is required: in draft 3, and where no draft is named."""
        return self.place.draft in (Draft.D3, Draft.UNKNOWN)


_SUBJECTS: Mapping[frozenset[TypeName], tuple[str, ...]] = {
    frozenset({"integer", "number"}): get_args(NumberKey),
    frozenset({"string"}): ("minLength", "maxLength", "pattern", "format"),
    frozenset({"array"}): (
        *("prefixItems", "items", "contains", "minContains", "maxContains", "minItems", "maxItems"),
        *("uniqueItems", "unevaluatedItems"),
    ),
    frozenset({"object"}): (
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "required"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    ),
}
"""Keywords that say something of some types only."""


@lru_cache(maxsize=256)
def _silent(types: tuple[TypeName, ...]) -> frozenset[str]:
    """The keywords that say nothing where only `types` are allowed."""
    return frozenset(
        keyword for subjects, keywords in _SUBJECTS.items() if subjects.isdisjoint(types) for keyword in keywords
    )


_Reader = Callable[[Canonical, str, object], None]


def _read_ref(into: Canonical, keyword: str, value: object) -> None:
    reference = checked_text(value, into.pointer, keyword)
    target = into.references.target(reference, into.place, into.at(keyword))
    into.places[target.key] = target
    into.schema["$ref"] = target.key


def _read_dynamic_ref(into: Canonical, keyword: str, value: object) -> None:
    reference = checked_text(value, into.pointer, keyword)
    target = into.references.dynamic_target(reference, into.place, into.at(keyword))
    into.places[target.key] = target
    into.also(target.key)


def _read_recursive_ref(into: Canonical, keyword: str, value: object) -> None:
    if value != "#":
        malformed(value, "'#'", into.pointer, keyword)
    target = into.references.recursive_target(into.place, into.at(keyword))
    into.places[target.key] = target
    into.also(target.key)


def _read_count(into: Canonical, keyword: str, value: object) -> None:
    count = checked_count(value, into.pointer, keyword)
    if count or keyword not in ("minLength", "minItems", "minProperties"):
        into.schema[cast("CountKey", keyword)] = count


def _read_number(into: Canonical, keyword: str, value: object) -> None:
    if isinstance(value, bool) and keyword.startswith("exclusive"):
        return  # draft 4's; _finish looks at it
    number = checked_number(value, into.pointer, keyword)
    if keyword in ("multipleOf", "divisibleBy"):
        if number <= 0:
            malformed(value, "greater than 0", into.pointer, keyword)
        keyword = "multipleOf"
    into.schema[cast("NumberKey", keyword)] = number


def _read_text(into: Canonical, keyword: str, value: object) -> None:
    into.schema[cast("TextKey", keyword)] = checked_text(value, into.pointer, keyword)


def _read_format(into: Canonical, keyword: str, value: object) -> None:
    """A format that is not enforced says nothing, so that its negation allows nothing."""
    name = checked_text(value, into.pointer, keyword)
    if is_enforced(name, into.options, pointer=into.at(keyword)):
        into.schema["format"] = name


def _read_unique(into: Canonical, keyword: str, value: object) -> None:
    if checked_flag(value, into.pointer, keyword):
        into.schema["uniqueItems"] = True


def _read_one(into: Canonical, keyword: str, value: object) -> None:
    into.schema[cast("SchemaKey", keyword)] = into.inner(value, keyword)


def _read_many(into: Canonical, keyword: str, value: object) -> None:
    options = _schemas(into, keyword, value)
    if keyword == "allOf":
        for option in options:
            into.also(option)
    else:
        into.schema[cast("SchemaListKey", keyword)] = options


def _schemas(into: Canonical, keyword: str, value: object) -> list[Pointer]:
    options = checked_list(value, into.pointer, keyword)
    if not options:
        malformed(value, "a list of at least one schema", into.pointer, keyword)
    return [into.inner(option, keyword, index) for index, option in enumerate(options)]


def _read_named(into: Canonical, keyword: str, value: object) -> None:
    named = checked_object(value, into.pointer, keyword)
    if named:
        inner = {name: into.inner(schema, keyword, name) for name, schema in named.items()}
        into.schema[cast("NamedSchemasKey", keyword)] = inner
    if keyword == "properties" and into.reads_old_required:
        _require(into, [name for name, schema in named.items() if _is_required(schema)])


def _is_required(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("required") is True


def _read_required(into: Canonical, keyword: str, value: object) -> None:
    if value is False or (value is True and into.reads_old_required):
        return  # draft 3's; the object that this is a member of looks at it
    _require(into, checked_strings(value, into.pointer, keyword))


def _require(into: Canonical, names: list[str]) -> None:
    known = into.schema.get("required", [])
    if names:
        into.schema["required"] = list(dict.fromkeys([*known, *names]))


def _read_dependencies(into: Canonical, keyword: str, value: object) -> None:
    """`dependencies` of drafts 3 to 7, which 2019-09 split in two."""
    for name, needed in checked_object(value, into.pointer, keyword).items():
        if isinstance(needed, str) and into.reads_old_required:
            needed = [needed]
        if not isinstance(needed, list):
            into.schema.setdefault("dependentSchemas", {})[name] = into.inner(needed, keyword, name)
            continue
        names = checked_strings(needed, into.pointer, keyword, name)
        _depend(into, name, names)


def _read_dependent_required(into: Canonical, keyword: str, value: object) -> None:
    for name, needed in checked_object(value, into.pointer, keyword).items():
        _depend(into, name, checked_strings(needed, into.pointer, keyword, name))


def _depend(into: Canonical, name: str, names: list[str]) -> None:
    if names:
        known = into.schema.setdefault("dependentRequired", {})
        known[name] = list(dict.fromkeys([*known.get(name, []), *names]))


def _read_items(into: Canonical, keyword: str, value: object) -> None:
    """`items`: what all elements are, or, before 2020-12, a list of what the first ones are."""
    if not isinstance(value, list):
        into.schema["items"] = into.inner(value, keyword)
        return
    if "prefixItems" in into.schema or "prefixItems" in into.here:
        malformed(value, "a schema beside 'prefixItems'", into.pointer, keyword)
    _read_prefix(into, keyword, value)
    if "additionalItems" in into.here:
        into.schema["items"] = into.inner(into.here["additionalItems"], "additionalItems")


def _read_prefix(into: Canonical, keyword: str, value: object) -> None:
    places = checked_list(value, into.pointer, keyword)
    if places:
        into.schema["prefixItems"] = [into.inner(place, keyword, index) for index, place in enumerate(places)]


def _read_enum(into: Canonical, keyword: str, value: object) -> None:
    values = cast("list[Json]", checked_list(value, into.pointer, keyword))
    if "enum" in into.schema:  # both `const` and `enum`
        both = {json_key(item) for item in into.schema["enum"]}
        values = [item for item in values if json_key(item) in both]
    into.schema["enum"] = values


def _read_const(into: Canonical, keyword: str, value: object) -> None:
    _read_enum(into, keyword, [value])


def _read_type(into: Canonical, keyword: str, value: object) -> None:
    if into.place.draft is not Draft.D3:
        into.schema["type"] = checked_types(value, into.pointer)
        return
    union = _union(into, keyword, value)
    if union is not None:
        into.also(into.make(keyword, union))


def _union(into: Canonical, keyword: str, value: object) -> Schema | None:
    """What a list of types and schemas allows, as draft 3 has it in `type` and `disallow`; None for everything."""
    options = value if isinstance(value, list) else [value]
    names = [option for option in options if isinstance(option, str)]
    if any(name not in TYPE_NAMES for name in names):
        return None  # "any", and what the draft does not know means the same
    union = [
        into.inner(option, keyword, index) if isinstance(value, list) else into.inner(option, keyword)
        for index, option in enumerate(options)
        if not isinstance(option, str)
    ]
    if names:
        union.append(into.make(f"{keyword}~names", {"type": checked_types(names, into.pointer)}))
    return {"anyOf": union}


def _read_disallow(into: Canonical, keyword: str, value: object) -> None:
    union = _union(into, keyword, value)
    into.schema["not"] = into.make(keyword, {} if union is None else union)


def _read_extends(into: Canonical, keyword: str, value: object) -> None:
    for pointer in _schemas(into, keyword, value) if isinstance(value, list) else [into.inner(value, keyword)]:
        into.also(pointer)


_READERS: Mapping[str, _Reader] = {
    "$ref": _read_ref,
    "$dynamicRef": _read_dynamic_ref,
    "$recursiveRef": _read_recursive_ref,
    "type": _read_type,
    "enum": _read_enum,
    "const": _read_const,
    "uniqueItems": _read_unique,
    "required": _read_required,
    "dependencies": _read_dependencies,
    "dependentRequired": _read_dependent_required,
    "items": _read_items,
    "prefixItems": _read_prefix,
    "disallow": _read_disallow,
    "extends": _read_extends,
    "divisibleBy": _read_number,
    **dict.fromkeys(get_args(CountKey), _read_count),
    **dict.fromkeys(get_args(TextKey), _read_text),
    "format": _read_format,
    **dict.fromkeys(get_args(NumberKey), _read_number),
    **dict.fromkeys(get_args(SchemaKey), _read_one),
    **dict.fromkeys(get_args(SchemaListKey), _read_many),
    **dict.fromkeys(get_args(NamedSchemasKey), _read_named),
}
_READERS_OF: Mapping[Draft, Mapping[str, _Reader]] = {
    draft: {keyword: read for keyword, read in _READERS.items() if has_keyword(draft, keyword)} for draft in Draft
}
