"""Formats: what each allows, against the standards' own rules and other readers of the same texts."""

from __future__ import annotations

import calendar
import datetime as dt
import ipaddress
import json
import re
import urllib.parse
import uuid
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, Derivatives
from tests.constrained.schema_laws import check_accepted

from palmette.constrained import Grammar, UnsatisfiableGrammarError, UnsupportedGrammarError, compile_grammar
from palmette.constrained.json_formats import FORMATS, UNDECIDED_FORMATS, format_rules, is_enforced
from palmette.constrained.json_options import JsonOptions
from palmette.constrained.json_text import characters, string_literal
from palmette.constrained.limits import DEFAULT_LIMITS
from palmette.constrained.regex_parser import parse_regex
from palmette.constrained.rules import ALL_BYTES
from palmette.constrained.simplify import simplify

_SUITE = Path(__file__).parents[3] / "shared" / "data" / "jsonschema" / "jsts_draft2020-12.jsonl"


def allows(name: str, text: str) -> bool:
    """Whether `text` is of the format."""
    found = FORMATS[name]
    fits = found.max_length is None or len(text) <= found.max_length
    return fits and re.fullmatch(found.pattern, text) is not None


def groups_of_the_suite() -> list[tuple[str, str, bool]]:
    """(format, text, whether the suite finds it valid) for every string of its optional format tests."""
    if not _SUITE.exists():
        return []
    groups = [json.loads(line) for line in _SUITE.read_text(encoding="utf-8").split("\n") if line]
    return [
        (group["schema"]["format"], test["data"], test["valid"])
        for group in groups
        if "optional/format/" in group["id"] and "format" in group["schema"]
        for test in group["tests"]
        if isinstance(test["data"], str)
    ]


@pytest.mark.skipif(not _SUITE.exists(), reason="needs JSON-Schema-Test-Suite in ../shared")
def test_the_suite_agrees() -> None:
    """JSON-Schema-Test-Suite's format tests hold, but for legal labels in other scripts that are spelled in ASCII."""
    wrong = [
        (name, text, valid)
        for name, text, valid in groups_of_the_suite()
        if name in FORMATS and allows(name, text) != valid
    ]
    assert [case for case in wrong if case[0] != "hostname" or not case[2] or not case[1].startswith("xn--")] == []


@pytest.mark.parametrize("name", FORMATS)
def test_patterns_are_readable(name: str) -> None:
    """The project's own parser reads every pattern, and nothing in it needs what it refuses."""
    parse_regex(FORMATS[name].pattern, "python", DEFAULT_LIMITS)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    """A date is allowed exactly where the calendar has it, leap years included."""
    is_date = year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
    assert allows("date", f"{year:04}-{month:02}-{day:02}") == is_date


@settings(max_examples=300, deadline=None)
@given(st.datetimes(min_value=dt.datetime(1, 1, 1)), st.integers(-1439, 1439), st.booleans())
def test_times_that_python_writes_are_allowed(moment: dt.datetime, offset: int, is_utc: bool) -> None:
    """Whatever datetime writes with an offset is a date-time and, after the T, a time; without one it is neither."""
    zone = dt.UTC if is_utc else dt.timezone(dt.timedelta(minutes=offset))
    text = moment.replace(tzinfo=zone).isoformat()
    assert allows("date-time", text)
    assert allows("time", text.partition("T")[2])
    assert not allows("date-time", moment.isoformat())


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from("+-"), st.integers(0, 23), st.sampled_from([0, 30]))
def test_leap_seconds_end_the_day_in_utc(hour: int, minute: int, sign: str, offset: int, half: int) -> None:
    """The second 60 is allowed only where it is 23:59 UTC."""
    shift = (offset * 60 + half) * (1 if sign == "+" else -1)
    in_utc = (hour * 60 + minute - shift) % 1440
    assert allows("time", f"{hour:02}:{minute:02}:60{sign}{offset:02}:{half:02}") == (in_utc == 1439)
    matching = (1439 + shift) % 1440
    assert allows("time", f"{matching // 60:02}:{matching % 60:02}:60.5{sign}{offset:02}:{half:02}")


@settings(max_examples=300, deadline=None)
@given(st.ip_addresses(v=6), st.booleans())
def test_ipv6_addresses_of_python_are_allowed(address: ipaddress.IPv6Address, exploded: bool) -> None:
    """Every address that Python writes is one, in short and in full."""
    assert allows("ipv6", address.exploded if exploded else str(address))


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"(?:[0-9a-f]{0,2}:|::|[0-9]{1,3}\.|[0-9a-f]){1,12}", fullmatch=True))
def test_ipv6_agrees_with_python(text: str) -> None:
    """Near misses are allowed exactly where Python reads an address."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        assert not allows("ipv6", text)
    else:
        assert allows("ipv6", text)


@given(st.uuids(), st.integers(0, 35))
def test_uuids_need_every_digit(value: uuid.UUID, missing: int) -> None:
    """A UUID is allowed, in either case, and not without one of its characters."""
    text = str(value)
    assert allows("uuid", text)
    assert allows("uuid", text.upper())
    assert not allows("uuid", text[:missing] + text[missing + 1 :])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_quoted_parts_make_a_uri(host: str, path: str, query: str) -> None:
    """Any text may stand in a part of a URI once it is percent-encoded."""
    parts = [urllib.parse.quote(part.encode("utf-8", "replace"), safe="") for part in (host, path, query)]
    text = "https://{}/{}?{}".format(*parts)
    for name in ("uri", "uri-reference", "iri", "iri-reference"):
        assert allows(name, text)
    assert allows("uri-reference", "./" + parts[1])


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "hostname",
            ["a", "x", "xn", "xna", "x-n", "xn-a", "x" * 63, "xyz.example"],
            ["xn--a", "XN--a", "x-", "x" * 64],
        ),
        ("hostname", [".".join(["a" * 61] * 4)], [".".join(["a" * 63] * 4)]),
        ("email", ["a@b", "a+b@c-d.example"], ["a@-b", "a@b-", "a@b..c", "a b@c", "a@é.example"]),
        ("time", ["23:59:60Z"], ["23:59:60+01:00", "12:00:60Z"]),
        ("uri", ["a:", "a:/", "a:b/c", "a://", "a:?q#f"], ["a", "a:/%", "a:#f#g", "1:"]),
        ("uri-template", ["{=a}", "{a:1,b*}"], ["{a:0}", "{a"]),
    ],
)
def test_edges(name: str, good: list[str], bad: list[str]) -> None:
    """Edges that the suite does not try."""
    assert [text for text in good if not allows(name, text)] == []
    assert [text for text in bad if allows(name, text)] == []


@cache
def regex_recogniser() -> Derivatives:
    """A slow recogniser of the format "regex" between the quotes of a JSON string."""
    rules = format_rules("regex", characters)
    assert rules is not None
    simple = simplify(rules, ALL_BYTES)
    simple.verify()
    return Derivatives(simple)


def reads_as_regex(pattern: str) -> bool:
    """Whether the rules of the format "regex" match `pattern`, written as JSON."""
    found = regex_recogniser()
    return found.accepts(found.after_all(found.start, string_literal(pattern).value[1:-1]))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z]+$", "", "a|b|", r"(?:a(b)*?){2,10}", r"[^\]-]", "[]", "[^]", r"\cA\x41\u{1F600}", r"(?<=a+)b(?!c)",
        r"\p{Lu}[\p{L}0-9_.-]{0,99}", r"([abc])+\s+$", r"a{5}b{5,}", r"\.\/\-", '["]', r"[\u0000-\uFFFF]",
    ],
)  # fmt: skip
def test_regexes(pattern: str) -> None:
    """Ordinary patterns are of the format."""
    assert reads_as_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "^(abc]", "(", ")", "a**", "*", "[z-a]", "a{2,1}", "a{99,98}", r"\a", "(?P<n>x)", "(?#c)a", "(?i)a", "[a", "{",
        r"\1", "\\",
    ],
)  # fmt: skip
def test_what_is_no_regex(pattern: str) -> None:
    """Unbalanced groups, bad ranges and other dialects are not of the format."""
    assert not reads_as_regex(pattern)


def test_only_known_formats_are_enforced() -> None:
    """An unknown format says nothing unless the options refuse it; one that no grammar can say is always refused."""
    assert is_enforced("date", JsonOptions())
    assert is_enforced("regex", JsonOptions())
    assert not is_enforced("date", JsonOptions(formats=False))
    assert not is_enforced("int32", JsonOptions())
    with pytest.raises(UnsupportedGrammarError, match="did you mean 'date-time'") as caught:
        is_enforced("datetime", JsonOptions(unknown_formats="refuse"), pointer="/format")
    assert caught.value.pointer == "/format"
    with pytest.raises(UnsupportedGrammarError, match="RFC 5892"):
        is_enforced("idn-hostname", JsonOptions())


def test_other_formats_have_no_rules() -> None:
    """Regular formats are patterns, and those that are refused are neither."""
    assert format_rules("date", characters) is None
    assert not set(UNDECIDED_FORMATS) & set(FORMATS)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"format": "regex"}, ['"a(b)+"', "1", '""'], ['"a(b"', '"*"']),
        ({"type": "string", "format": "regex"}, ['"[a-z]*"'], ["1", '"("']),
        ({"format": "regex", "minLength": 1}, ['"a"', '"|"', '"a|"', '"|a*"', "1"], ['""', '"*"']),
        ({"enum": ["a(", "(a)"], "format": "regex"}, ['"(a)"'], ['"a("']),
        ({"anyOf": [{"format": "regex"}, {"maxLength": 2}]}, ['"a("', '"abc"'], ['"abc("']),
        ({"format": "int32"}, ["1", '"a"', "null"], []),
        ({"not": {"type": "string", "format": "date"}}, ['"today"', "1"], ['"2024-02-29"']),
        ({"not": {"type": "string", "format": "int32"}}, ["1"], ['"a"']),
        ({"not": {"format": "hostname"}}, ['"a..b"', '""', f'"{"a." * 127}a"'], ['"a.b"', f'"{"a." * 126}a"', "1"]),
        ({"oneOf": [{"format": "host-name"}, {"format": "ipv6"}]}, ['"a.b"', '"::1"'], ['"a..b"', "1"]),
        ({"format": "hostname", "minLength": 2, "pattern": "^[a-z]"}, ['"ab"'], ['"a"', '"1b"', '"a_b"']),
        ({"propertyNames": {"format": "ipv4"}}, ['{"127.0.0.1":1}', "{}"], ['{"a":1}']),
    ],
    ids=str,
)
def test_formats_in_schemas(schema: object, good: list[str], bad: list[str]) -> None:
    """A format that is enforced may be denied, joined and chosen; one that is not says nothing."""
    check_accepted(schema, good, bad)


@pytest.mark.parametrize(
    ("schema", "options", "pointer"),
    [
        ({"properties": {"a": {"format": "idn-hostname"}}}, {}, "/properties/a/format"),
        ({"format": "regex", "minLength": 2}, {}, "/format"),
        ({"not": {"format": "regex"}}, {}, "/not/format"),
        ({"items": {"format": "int32"}}, {"unknown_formats": "refuse"}, "/items/format"),
    ],
    ids=str,
)
def test_refused_formats(schema: object, options: dict[str, str], pointer: str) -> None:
    """What no grammar can decide is refused, and where it stands is said."""
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_grammar(Grammar.json_schema(schema, **options), BYTES)  # type: ignore[arg-type]
    assert caught.value.pointer == pointer


def test_formats_may_be_annotations() -> None:
    """Without `formats` none is enforced, so that its negation allows nothing."""
    check_accepted({"format": "date"}, ['"today"'], [], formats=False)
    check_accepted({"format": "idn-hostname"}, ['"-"'], [], formats=False)
    with pytest.raises(UnsatisfiableGrammarError):
        compile_grammar(Grammar.json_schema({"not": {"format": "date"}}, formats=False), BYTES)
