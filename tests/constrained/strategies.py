"""Hypothesis strategies for random patterns, schemas and vocabularies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from palmette.constrained import Vocabulary

_ATOMS = [
    *["a", "b", "ab", ".", r"\d", r"\w", r"\s", r"\S", "[ab]", "[^a]", "[a-c1-3]"],
    *["é", "[à-ü]", "😀", r"\.", r"\x41", "(?i:k)", "(?:)", "[^é]", r"[\d_]", "日"],
]
_QUANTIFIERS = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{,2}", "*?", "+?", "??", "{0,4}?", "{0}"]


def _grown(patterns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(st.sampled_from(["(?:", "("]), patterns, st.sampled_from(_QUANTIFIERS)).map(
        lambda part: f"{part[0]}{part[1]}){part[2]}"
    )
    return (
        groups
        | st.lists(patterns, min_size=2, max_size=3).map("".join)
        | st.lists(patterns, min_size=2, max_size=3).map("|".join).map("(?:{})".format)
    )


patterns: st.SearchStrategy[str] = st.recursive(
    st.tuples(st.sampled_from(_ATOMS), st.sampled_from(_QUANTIFIERS)).map(
        lambda part: (f"(?:{part[0]})" if part[1] else part[0]) + part[1]
    ),
    _grown,
    max_leaves=6,
)
"""Patterns of Python's re in every supported construct, small enough to be compared by brute force."""

_ANCHORS = ["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?<=a)", "(?<!b)", r"(?<=\Aa)", "(?<![ab] )"]


def _anchored(patterns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    looks = st.tuples(st.sampled_from(["(?=", "(?!"]), patterns).map(lambda part: f"{part[0]}{part[1]})")
    return looks | _grown(patterns)


anchored_patterns: st.SearchStrategy[str] = st.recursive(
    st.sampled_from([*_ATOMS, *_ANCHORS]), _anchored, max_leaves=8
).flatmap(lambda pattern: st.sampled_from(["", "", "(?m)", "(?i)"]).map(lambda flags: flags + pattern))
"""Patterns of Python's re that also look at the text around a place."""

texts: st.SearchStrategy[str] = st.text(st.sampled_from("aabbc1 .é😀ABkK\u212a日_\n"), max_size=8)
"""Texts over characters that `patterns` tell apart."""

_ECMA_ATOMS = [
    *[(atom, atom) for atom in ("a", "b", "ab", "[ab]", "[^a]", "é", "(?:)", r"\.", "[à-ü]", r"\b", "^", "^a", "")],
    *[(r"\d", "[0-9]"), (r"\w", "[0-9A-Za-z_]"), (r"\W", "[^0-9A-Za-z_]"), (".", r"[^\n\r\u2028\u2029]"), ("$", r"\Z")],
    *[
        ("b$", r"b\Z"),
        ("[^]", r"[\s\S]"),
        (r"\p{Script=Thai}", "[\u0e01-\u0e3a\u0e40-\u0e5b]"),
        ("(?<=a)", "(?<=a)"),
        ("^.{1,3}$", r"\A[^\n\r\u2028\u2029]{1,3}\Z"),
    ],
]


def _ecma_grown(patterns: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    def joined(separator: str, form: str) -> st.SearchStrategy[tuple[str, str]]:
        lists = st.lists(patterns, min_size=2, max_size=3)
        return lists.map(
            lambda parts: (
                form.format(separator.join(part[0] for part in parts)),
                form.format(separator.join(part[1] for part in parts)),
            )
        )

    opened = st.tuples(st.sampled_from(["(?:", "(?=", "(?!"]), patterns, st.sampled_from(["", "", "*", "+", "{1,2}"]))
    groups = opened.map(
        lambda part: (
            f"{part[0]}{part[1][0]}){part[2] if part[0] == '(?:' else ''}",
            f"{part[0]}{part[1][1]}){part[2] if part[0] == '(?:' else ''}",
        )
    )
    return groups | joined("", "{}") | joined("|", "(?:{})")


ecma_patterns: st.SearchStrategy[tuple[str, str]] = st.recursive(
    st.sampled_from(_ECMA_ATOMS), _ecma_grown, max_leaves=6
)
"""Patterns of ECMA-262, each with one of Python's re (under the flag `a`) that is found in the same of `texts`."""

_TOKENS = [
    *[b"ab", b"aa", b"ba", b"abc", b"bab", b"\n ", "é".encode(), "😀".encode(), "😀".encode()[:2]],
    *["é".encode()[1:] + b"a", b'":', b'"}', b'", "', b'"a', b"true", b"null", b"[[", b"]]", b"1."],
    *[b"00", b'{"', b"},", b"\\u00", b"a", b"1"],
]

vocabularies: st.SearchStrategy[Vocabulary] = st.lists(st.sampled_from(_TOKENS), max_size=12).map(
    lambda extra: Vocabulary(
        [*(bytes([byte]) for byte in range(256)), None, b"", *extra], end_ids=[256, 270 + len(extra)], size=300
    )
)
"""All bytes, an end token, an empty token, some longer tokens (with duplicates), and logits past the end."""

_KEYS = st.sampled_from(["a", "ab", "b", 'q"', "é", ""])
_BOUND = st.integers(-120, 120)
_FLOAT = st.sampled_from([-10, -1.5, -0.25, 0, 0.5, 1, 2.75, 99.9, 100])


def _interval(values: st.SearchStrategy[Any], low: str, high: str) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(st.none() | values, st.none() | values)

    def ordered(pair: tuple[Any, Any]) -> dict[str, Any]:
        if None not in pair and pair[0] > pair[1]:
            pair = (pair[1], pair[0])
        return {key: value for key, value in zip((low, high), pair, strict=True) if value is not None}

    return pairs.map(ordered)


def _typed(name: str, *parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda found: {"type": name, **{key: v for part in found for key, v in part.items()}})


_LEAVES: st.SearchStrategy[Any] = (
    st.sampled_from([True, {}, {"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 2}])
    | _typed("integer", _interval(_BOUND, "minimum", "maximum"))
    | _typed("number", _interval(_FLOAT, "minimum", "maximum"))
    | _typed("number", _interval(_FLOAT, "exclusiveMinimum", "maximum"))
    | _typed("string", _interval(st.integers(0, 4), "minLength", "maxLength"))
    | st.sampled_from(["^[A-Z]+$", "[0-9]{2}", "^ab|cd$", "^.{1,3}$", 'q"', "é", r"^\d+(\.\d)?$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    )
    | st.lists(st.sampled_from(["a", 'b"', 1, 1.5, None, True, [1, {"k": "v"}], {"x": [], "y": 2}]), min_size=1).map(
        lambda values: {"enum": values}
    )
    | st.sampled_from([{"const": "x"}, {"const": {"a": [1, 2.0]}}, {"minimum": 3, "maxLength": 1, "maxItems": 1}])
)


def _object(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(_KEYS, schemas, max_size=3)
    extra = st.sampled_from([{}, {"additionalProperties": False}]) | schemas.map(lambda s: {"additionalProperties": s})
    required = st.lists(_KEYS, unique=True, max_size=2)
    return st.tuples(properties, extra, required).map(
        lambda found: {"type": "object", "properties": found[0], **found[1], "required": found[2]}
    )


def _array(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.lists(schemas, min_size=1, max_size=2)
    prefix: st.SearchStrategy[dict[str, Any]] = st.just({}) | lists.map(lambda found: {"prefixItems": found})
    items: st.SearchStrategy[dict[str, Any]] = st.just({}) | schemas.map(lambda found: {"items": found})
    return _typed("array", prefix, items, _interval(st.integers(0, 3), "minItems", "maxItems"))


def _combined(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(schemas, schemas)
    return (
        st.lists(schemas, min_size=1, max_size=3).map(lambda options: {"anyOf": options, "title": "any of them"})
        | pairs.map(lambda pair: {"allOf": list(pair)})
        | st.tuples(pairs, _object(schemas)).map(lambda found: {"anyOf": list(found[0]), **found[1]})
    )


_without_references: st.SearchStrategy[Any] = st.recursive(
    _LEAVES, lambda inner: _object(inner) | _array(inner) | _combined(inner), max_leaves=5
)

schemas: st.SearchStrategy[Any] = _without_references | st.tuples(_without_references, _object(_LEAVES)).map(
    lambda found: {"$ref": "#/$defs/it", **found[1], "$defs": {"it": found[0]}}
)
"""JSON Schemas in the supported subset and a little beyond; some of them match nothing."""
