"""Random JSON Schemas over every keyword with instances near them, and what python-jsonschema says of those.

Schemas and instances share one small world of keys and values, so that instances are often a step from being valid.
"""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import strategies as st

Schemas = st.SearchStrategy[Any]

KEYS = ["a", "b", "ab", "c", ""]
_PATTERNS = ["^a", "b$", "^[ab]*$", "a", "^(?:a|bc)$", "^.$", "^"]
_SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 0.5, 1.0, 1.5, "", "a", "b", "ab", "abc", "bb"]
_TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]

scalars: st.SearchStrategy[Any] = st.sampled_from(_SCALARS)

instances: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)
"""Values of the small world."""

_counts = st.integers(0, 3)
_numbers = st.sampled_from([-1, 0, 1, 2, 0.5, 1.5, 3])
_keys = st.sampled_from(KEYS)
_patterns = st.sampled_from(_PATTERNS)
_values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(_keys, scalars, max_size=2)
_ASSERTIONS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1, max_size=3, unique=True),
    "enum": st.lists(_values, min_size=1, max_size=4),
    "const": _values,
    "minimum": _numbers,
    "maximum": _numbers,
    "exclusiveMinimum": _numbers,
    "exclusiveMaximum": _numbers,
    "multipleOf": st.sampled_from([1, 2, 3, 0.5]),
    "minLength": _counts,
    "maxLength": _counts,
    "pattern": _patterns,
    "minItems": _counts,
    "maxItems": _counts,
    "uniqueItems": st.booleans(),
    "minProperties": _counts,
    "maxProperties": _counts,
    "required": st.lists(_keys, max_size=3, unique=True),
    "dependentRequired": st.dictionaries(_keys, st.lists(_keys, max_size=2, unique=True), max_size=2),
}
_ROOT_POINTERS = ["#", "#/$defs/r", "#/$defs/s"]


def _applicators(inner: Schemas) -> dict[str, st.SearchStrategy[dict[str, Any]]]:
    """Keywords, or groups of keywords that mean something together, that hold schemas of `inner`."""
    named = st.dictionaries(_keys, inner, max_size=3)
    listed = st.lists(inner, min_size=1, max_size=3)

    def keyword(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        return values.map(lambda value: {name: value})

    singles = ["not", "items", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"]
    return {
        **{name: keyword(name, inner) for name in singles},
        **{name: keyword(name, listed) for name in ("allOf", "anyOf", "oneOf", "prefixItems")},
        "properties": keyword("properties", named),
        "dependentSchemas": keyword("dependentSchemas", named),
        "patternProperties": keyword("patternProperties", st.dictionaries(_patterns, inner, max_size=2)),
        "object": st.fixed_dictionaries(
            {"properties": named}, optional={"additionalProperties": inner, "required": _ASSERTIONS["required"]}
        ),
        "if": st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        "contains": st.fixed_dictionaries(
            {"contains": inner}, optional={"minContains": _counts, "maxContains": _counts}
        ),
    }


def _schemas(depth: int, *, references: bool) -> Schemas:
    """Schemas of `depth` levels of applicators, up to three keywords a level."""
    simple = st.one_of(
        st.booleans(),
        st.sampled_from(_TYPES).map(lambda name: {"type": name}),
        st.sampled_from(sorted(_ASSERTIONS)).flatmap(lambda name: _ASSERTIONS[name].map(lambda value: {name: value})),
    )
    if references:
        simple |= st.sampled_from(_ROOT_POINTERS).map(lambda pointer: {"$ref": pointer})
    if not depth:
        return simple
    groups = _applicators(_schemas(depth - 1, references=references))
    assertion = st.sampled_from(sorted(_ASSERTIONS)).flatmap(
        lambda name: _ASSERTIONS[name].map(lambda value: {name: value})
    )
    group = st.sampled_from(sorted(groups)).flatmap(lambda name: groups[name])
    merged = st.lists(group | assertion, min_size=1, max_size=3).map(
        lambda parts: {name: value for part in parts for name, value in part.items()}
    )
    return simple | merged | merged


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Any:
    """Schemas over every keyword; a third of them with definitions that refer to each other, recursively too."""
    if draw(st.integers(0, 2)):
        return draw(_schemas(depth, references=False))
    root = draw(_schemas(depth, references=True).filter(lambda schema: isinstance(schema, dict)))
    inner = _schemas(1, references=True)
    return {**root, "$defs": {"r": draw(inner), "s": draw(inner)}}


class Oracle:
    """python-jsonschema's opinion of one schema."""

    def __init__(self, schema: Any) -> None:
        self._validator = jsonschema.Draft202012Validator(schema)

    def says_valid(self, instance: Any) -> bool | None:
        """Whether `instance` is valid; None where it cannot tell: the schema refers to itself and to nothing else."""
        try:
            return bool(self._validator.is_valid(instance))
        except RecursionError:
            return None
