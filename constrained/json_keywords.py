"""The keywords of JSON Schema: honoured, annotating or refused; and their values, checked."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal, NoReturn

from .errors import GrammarError, GrammarLimitError, UnsupportedGrammarError
from .json_numbers import Bounds

TypeName = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
TYPE_NAMES: tuple[TypeName, ...] = ("object", "array", "string", "number", "integer", "boolean", "null")

Schema = Mapping[str, Any]

# Keywords that say nothing about which values are valid. `format` is one by default (draft 2020-12, validation, 7.2.1).
ANNOTATIONS = frozenset(
    [
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "$vocabulary",
        "additionalItems",  # without effect, since `items` as a list of schemas is refused
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "format",
        "id",
        "readOnly",
        "title",
        "writeOnly",
    ]
)
NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern"})
ARRAY_KEYWORDS = frozenset({"items", "prefixItems", "minItems", "maxItems"})
OBJECT_KEYWORDS = frozenset({"properties", "required", "additionalProperties"})
IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_HONOURED = (
    ANNOTATIONS
    | NUMBER_KEYWORDS
    | STRING_KEYWORDS
    | ARRAY_KEYWORDS
    | OBJECT_KEYWORDS
    | IN_PLACE
    | {"type", "enum", "const"}
)
# Refused where their type may occur, unless they have the value that changes nothing.
_REFUSED_BY_TYPE: dict[TypeName, dict[str, object]] = {
    "object": {
        "patternProperties": {},
        "propertyNames": True,
        "minProperties": 0,
        "maxProperties": None,
        "dependencies": {},
        "dependentRequired": {},
        "dependentSchemas": {},
        "unevaluatedProperties": True,
    },
    "array": {
        "uniqueItems": False,
        "contains": None,
        "minContains": None,
        "maxContains": None,
        "unevaluatedItems": True,
    },
}
_MAX_EXPONENT = 400


def pointer_to(pointer: str, *steps: str | int) -> str:
    """`pointer` extended by `steps`, each escaped. Source: RFC 6901."""
    return pointer + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def check_keywords(schema: Schema, types: tuple[TypeName, ...], pointer: str) -> None:
    """Refuse by name every keyword of `schema` that could matter for `types` and is not honoured.

    Raises:
        UnsupportedGrammarError: with the keyword's JSON pointer.
    """
    typed = {name for keywords in _REFUSED_BY_TYPE.values() for name in keywords}
    for type_name, keywords in _REFUSED_BY_TYPE.items():
        for name in keywords.keys() & schema.keys():
            if type_name in types and not _same(schema[name], keywords[name]):
                refuse(name, pointer)
    for name in schema:
        if name not in _HONOURED and name not in typed and not name.startswith("x-"):
            refuse(name, pointer)


def _same(value: object, harmless: object) -> bool:
    return type(value) is type(harmless) and value == harmless


def refuse(keyword: str, pointer: str, why: str = "") -> NoReturn:
    """Raise the error for a `keyword` of the schema at `pointer` that cannot be honoured."""
    raise UnsupportedGrammarError(
        f"the JSON Schema keyword {keyword!r} is not supported{why or _hint(keyword)}",
        pointer=pointer_to(pointer, keyword),
    )


def _hint(keyword: str) -> str:
    if keyword in _HONOURED or any(keyword in keywords for keywords in _REFUSED_BY_TYPE.values()):
        return ""
    spelled = {name.lower(): name for name in _HONOURED}
    close = get_close_matches(keyword.lower(), spelled, 1, cutoff=0.8)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


def types_of(schema: Schema, pointer: str) -> tuple[TypeName, ...]:
    """The types that `schema` allows by its `type` keyword, all of them without one.

    Raises:
        GrammarError: `type` is neither a type nor a list of types.
    """
    value = schema.get("type", list(TYPE_NAMES))
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(name in TYPE_NAMES for name in names):
        raise GrammarError(
            f"'type' must be one of {', '.join(TYPE_NAMES)}, or a list of them, not {value!r}",
            pointer=pointer_to(pointer, "type"),
        )
    return tuple(name for name in TYPE_NAMES if name in names)


def asserts(schema: Schema) -> bool:
    """Whether `schema` has any keyword that is not an annotation."""
    return any(keyword not in ANNOTATIONS and not keyword.startswith("x-") for keyword in schema)


def list_of(schema: Schema, keyword: str, pointer: str) -> list[Any]:
    """The value of a keyword that must be a list; empty if it is absent."""
    value = schema.get(keyword, [])
    if not isinstance(value, list):
        raise GrammarError(f"{keyword!r} must be a list, not {value!r}", pointer=pointer_to(pointer, keyword))
    return value


def strings_of(schema: Schema, keyword: str, pointer: str) -> list[str]:
    """The value of a keyword that must be a list of strings; empty if it is absent."""
    value = list_of(schema, keyword, pointer)
    if not all(isinstance(item, str) for item in value):
        raise GrammarError(
            f"{keyword!r} must be a list of strings, not {value!r}", pointer=pointer_to(pointer, keyword)
        )
    return value


def mapping_of(schema: Schema, keyword: str, pointer: str) -> dict[str, Any]:
    """The value of a keyword that must be an object; empty if it is absent."""
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise GrammarError(f"{keyword!r} must be an object, not {value!r}", pointer=pointer_to(pointer, keyword))
    return value


def count_of(schema: Schema, keyword: str, pointer: str) -> int | None:
    """The value of a length keyword, or None where it is absent."""
    if keyword not in schema:
        return None
    value = number_of(schema, keyword, pointer)
    if value is None or value < 0 or value != value.to_integral_value():
        raise GrammarError(
            f"{keyword!r} must be a non-negative integer, not {schema[keyword]!r}", pointer=pointer_to(pointer, keyword)
        )
    return int(value)


def span_of(schema: Schema, low: str, high: str, pointer: str) -> tuple[int, int | None]:
    """The values of a pair of length keywords, with their defaults."""
    return count_of(schema, low, pointer) or 0, count_of(schema, high, pointer)


def bounds_of(schema: Schema, pointer: str) -> Bounds:
    """The interval of the four keywords on numbers, draft 4's boolean `exclusiveMinimum` and its twin included."""
    low, low_exclusive = _end(schema, "minimum", "exclusiveMinimum", pointer, 1)
    high, high_exclusive = _end(schema, "maximum", "exclusiveMaximum", pointer, -1)
    return Bounds(low, high, low_exclusive, high_exclusive)


def _end(schema: Schema, inclusive: str, exclusive: str, pointer: str, sign: int) -> tuple[Decimal | None, bool]:
    if isinstance(schema.get(exclusive), bool):
        value = number_of(schema, inclusive, pointer)
        return value, bool(schema[exclusive]) and value is not None
    open_end, closed_end = number_of(schema, exclusive, pointer), number_of(schema, inclusive, pointer)
    if open_end is None or (closed_end is not None and (closed_end - open_end) * sign > 0):
        return closed_end, False
    return open_end, True


def number_of(schema: Schema, keyword: str, pointer: str) -> Decimal | None:
    """The exact value of a keyword on numbers, or None where it is absent."""
    if keyword not in schema:
        return None
    value = schema[keyword]
    where = pointer_to(pointer, keyword)
    if not _is_number(value):
        raise GrammarError(f"{keyword!r} must be a number, not {value!r}", pointer=where)
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    if exact and (abs(exact.adjusted()) > _MAX_EXPONENT or not isinstance(exponent, int) or exponent < -_MAX_EXPONENT):
        raise GrammarLimitError(f"{keyword!r} has more than {_MAX_EXPONENT} digits", pointer=where)
    return exact


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def type_of(value: object) -> TypeName:
    """The JSON type of a parsed value; a number without a fraction is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case int():
            return "integer"
        case Decimal():
            return "integer" if value == value.to_integral_value() else "number"
        case _:
            return "object"
