"""Values of JSON text that is still being written."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.lang.partial_json import PartialJSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def partial_value(text: str) -> Any:
    """The value of a text that comes in one piece."""
    reader = PartialJSON()
    reader.push(text)
    return reader.value


def texts(value: Any) -> list[str]:
    """Spellings of a value: spaced and compact, escaped and not."""
    return [json.dumps(value, indent=1), json.dumps(value, separators=(",", ":"), ensure_ascii=False)]


def begins(earlier: Any, later: Any) -> bool:
    """Whether `later` is `earlier`, grown."""
    if earlier is None:
        return True
    if isinstance(earlier, str):
        return isinstance(later, str) and later.startswith(earlier)
    if isinstance(earlier, list):
        return isinstance(later, list) and len(earlier) <= len(later) and all(map(begins, earlier, later))
    if isinstance(earlier, dict):
        return isinstance(later, dict) and all(key in later and begins(earlier[key], later[key]) for key in earlier)
    return type(earlier) is type(later) and bool(earlier == later)


@given(JSON)
def test_the_value_of_a_whole_text_is_what_json_loads_gives(value: Any) -> None:
    """A number as the whole text is whole once a space follows; every other text by itself."""
    for text in texts(value):
        assert partial_value(text + "\n") == json.loads(text)
        if isinstance(value, bool) or not isinstance(value, int | float):
            assert partial_value(text) == json.loads(text)


@given(JSON)
def test_values_only_grow(value: Any) -> None:
    """The value of every prefix is the beginning of the next one's, and reading it changes nothing."""
    for text in texts(value):
        reader, earlier = PartialJSON(), None
        for end, char in enumerate(text):
            reader.push(char)
            assert begins(earlier, reader.value)
            earlier = reader.value
            assert earlier == partial_value(text[: end + 1])


@given(JSON, st.lists(st.integers(0, 60), max_size=5))
def test_pieces_do_not_matter(value: Any, cuts: list[int]) -> None:
    """However the text is cut, the value is the same, and values read before stay as they were."""
    text = texts(value)[0] + " "
    reader, kept, shown = PartialJSON(), [], []
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in itertools.pairwise(ends):
        reader.push(text[begin:end])
        kept.append(reader.value)
        shown.append(repr(reader.value))
    assert reader.value == json.loads(text)
    assert [repr(earlier) for earlier in kept] == shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        (" {", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a": "', {"a": ""}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": tru', {}),
        ('{"a": true', {"a": True}),
        ('{"a": [1, [2', {"a": [1, []]}),
        ('["界\\u75', ["界"]),
        ('["\\', [""]),
        ('["\\ud83d', [""]),
        ('["\\ud83d\\ude0', [""]),
        ('["\\ud83d\\ude00', ["😀"]),
        ('["\\ud83dx', ["\ud83dx"]),
        ('["\\ud83d\\u0041', ["\ud83dA"]),
        ('"\\n\\/', "\n/"),
        ("12", None),
        ("nul", None),
        ("false", False),
    ],
)
def test_only_what_is_certain_is_there(text: str, value: Any) -> None:
    """Unfinished keys, numbers, names, escapes and surrogate pairs are left out."""
    assert partial_value(text) == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{1", "character 1: expected a key or '}', not '1'"),
        ('{"a" 1', "character 5: expected ':', not '1'"),
        ("[1 2", r"character 3: expected ',' or the end, not '2'"),
        ("[1}", "character 2: expected ',' or the end, not '}'"),
        ("[01,", "'01' is no JSON value"),
        ("nulx", "'nulx' is no JSON value"),
        ("NaN", "'NaN' is no JSON value"),
        ('"\\x', "character 1: '.*x' is no escape"),
        ("{} x", "expected nothing more"),
        ("[,", r"expected a value or '\]'"),
    ],
)
def test_other_text_is_refused(text: str, what: str) -> None:
    """What no JSON text begins with is an error with its place."""
    with pytest.raises(ValueError, match=what):
        partial_value(text)


def test_deep_nesting_needs_no_recursion() -> None:
    """A hundred thousand open arrays are read and copied."""
    value = partial_value("[" * 100_000)
    for _ in range(99_999):
        (value,) = value
    assert value == []
