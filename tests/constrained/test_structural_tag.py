"""Structural tags, against Python's re and by the errors they raise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.grammar_laws import check_masks, steered_answer
from tests.constrained.reference import BYTES
from tests.constrained.strategies import vocabularies

from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_grammar,
    matches,
)

DIGITS = {"type": "regex", "pattern": "[0-9]"}
LETTERS = {"type": "regex", "pattern": "[a-c]"}
TAGS = [{"begin": "<f=1>", "content": DIGITS, "end": "</f>"}, {"begin": "<f=2>", "content": LETTERS, "end": "</f>"}]
CALL = r"(?:<f=1>[0-9]</f>|<f=2>[a-c]</f>)"
FREE = r"(?:(?!<f=).)*"
PIECES = ["<f=1>7</f>", "<f=2>a</f>", "<f=2>7</f>", "<f=", "<f", "<", "</f>", "x", "é\n", ",", "[", "]", "</c>"]
some_text = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


def tag(**format_: Any) -> Grammar:
    """The grammar of one format."""
    return Grammar.structural_tag({"type": "structural_tag", "format": format_})


def triggered(**more: Any) -> dict[str, Any]:
    """Triggered tags of two functions."""
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": TAGS, **more}


FORMATS: list[tuple[dict[str, Any], str]] = [
    (triggered(), f"(?:{FREE}{CALL})*{FREE}"),
    (triggered(at_least_one=True), f"{CALL}(?:{FREE}{CALL})*{FREE}"),
    (triggered(stop_after_first=True), f"{FREE}{CALL}|{FREE}"),
    (triggered(at_least_one=True, stop_after_first=True), CALL),
    (triggered(excludes=["x"]), rf"(?:(?:(?!<f=|x).)*{CALL})*(?:(?!<f=|x).)*"),
    (
        {"type": "tag", "begin": "[", "content": triggered(), "end": "]"},
        rf"\[(?:(?:(?!<f=|\]).)*{CALL})*(?:(?!<f=|\]).)*\]",
    ),
    (
        {"type": "tag", "begin": "[", "content": {"type": "any_text", "excludes": ["x"]}, "end": ["]", "</c>"]},
        r"\[(?:(?!\]|</c>|x).)*(?:\]|</c>)",
    ),
    ({"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": ""}, r"\[.*"),
    (
        {
            "type": "tag",
            "begin": "[",
            "content": {"type": "sequence", "elements": [DIGITS, {"type": "any_text"}]},
            "end": "]",
        },
        r"\[[0-9](?:(?!\]).)*\]",
    ),
    ({"type": "tags_with_separator", "tags": TAGS, "separator": ","}, f"(?:{CALL}(?:,{CALL})*)?"),
    ({"type": "tags_with_separator", "tags": TAGS, "separator": "", "at_least_one": True}, f"{CALL}+"),
    ({"type": "tags_with_separator", "tags": TAGS, "separator": ",", "stop_after_first": True}, f"{CALL}?"),
    ({"type": "or", "elements": [DIGITS, {"type": "const_string", "value": "x"}]}, "[0-9]|x"),
    (
        {"type": "sequence", "elements": [{"type": "any_text", "excludes": ["<"]}, TAGS[0] | {"type": "tag"}]},
        "[^<]*<f=1>[0-9]</f>",
    ),
    ({"type": "star", "content": {"type": "const_string", "value": "x"}}, "x*"),
    ({"type": "plus", "content": {"type": "const_string", "value": "x"}}, "x+"),
    ({"type": "optional", "content": {"type": "const_string", "value": "x"}}, "x?"),
    ({"type": "repeat", "content": {"type": "const_string", "value": "x"}, "min": 1, "max": 2}, "x{1,2}"),
    ({"type": "repeat", "content": {"type": "const_string", "value": "x"}, "min": 2, "max": -1}, "x{2,}"),
]


@pytest.mark.parametrize(("format_", "pattern"), FORMATS)
def test_equals_the_definition(format_: dict[str, Any], pattern: str) -> None:
    """Each format matches exactly the texts of the regular expression that says what it means."""

    @settings(max_examples=60)
    @given(some_text, st.sampled_from(["{}", "[{}]", "[7{}]", "<f=1>7</f>{}", "{}<f=1>7</f>"]))
    def check(text: str, frame: str) -> None:
        text = frame.format(text)
        assert matches(tag(**format_), text) == (re.fullmatch(pattern, text, re.DOTALL) is not None)

    check()


def test_json_and_grammars_inside() -> None:
    """Parts may be JSON of a schema, or of an EBNF grammar."""
    grammar = tag(
        type="sequence",
        elements=[
            {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"}}},
            {"type": "grammar", "grammar": 'root ::= root "x" | "y"'},
        ],
    )
    assert matches(grammar, "[1,2]yx")
    assert not matches(grammar, '["1"]yx')


def test_the_older_form() -> None:
    """`structures` and `triggers` are triggered tags that hold JSON."""
    spec = {
        "type": "structural_tag",
        "structures": [{"begin": f"<function={name}>", "schema": schema, "end": "</function>"} for name, schema in
                       (("f", {"type": "integer"}), ("g", {"type": "boolean"}))],
        "triggers": ["<function="],
    }  # fmt: skip
    grammar = Grammar.structural_tag(spec)
    for text in (
        "",
        "hi",
        "<function",
        "a<function=f>5</function>b<function=g>true</function>",
        "<<function=f>5</function>",
    ):
        assert matches(grammar, text), text
    for text in ("<function=", "<function=h>5</function>", "<function=f>true</function>", "<function=f>5"):
        assert not matches(grammar, text), text


def test_a_trigger_forces_what_its_tags_share() -> None:
    """After a trigger with one tag, the rest of its beginning is forced."""
    only = {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{"begin": "<call>", "content": DIGITS, "end": "</call>"}],
    }
    compiled = compile_grammar(tag(**only), BYTES)
    state = compiled.advance(compiled.start, ord("<"))
    assert state is not None
    assert compiled.forced_bytes(state) == b"call>"


@settings(max_examples=25)
@given(vocabularies, st.sampled_from(FORMATS), st.data())
def test_masks_equal_brute_force(vocabulary: Vocabulary, case: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    """Masks in every format equal brute force over every token."""
    check_masks(tag(**case[0]), vocabulary, data, steps=4)


@settings(max_examples=40)
@given(vocabularies, st.sampled_from(FORMATS), st.integers(0, 5), st.data())
def test_answers_in_time(
    vocabulary: Vocabulary, case: tuple[dict[str, Any], str], slack: int, data: st.DataObject
) -> None:
    """A random answer with a tight budget is complete."""
    text = steered_answer(tag(**case[0]), vocabulary, slack, data)
    assert re.fullmatch(case[1], text, re.DOTALL)


@pytest.mark.parametrize(
    ("format_", "message", "pointer"),
    [
        ({"type": "const_str"}, "no format 'const_str'; did you mean 'const_string'", "/format/type"),
        ({"type": "const_string", "valu": "x"}, "no field 'valu'; did you mean 'value'", "/format/valu"),
        ({"type": "const_string"}, "needs the field 'value'", "/format"),
        ({"type": "const_string", "value": ""}, "must not be empty", "/format/value"),
        ({"type": "sequence", "elements": []}, "non-empty list", "/format/elements"),
        ({"type": "or", "elements": [DIGITS, 5]}, "an object with a 'type', not 5", "/format/elements/1"),
        ({"type": "tag", "begin": "a", "content": DIGITS, "end": 5}, "end must be a string", "/format/end"),
        (triggered(triggers=["<g="]), "no tag begins with the trigger '<g='", "/format/triggers/0"),
        (triggered(triggers=["<f=1"]), "no trigger is a prefix of '<f=2>'", "/format/triggers"),
        (triggered(triggers=[]), "triggers must not be empty", "/format/triggers"),
        (triggered(at_least_one=1), "must be true or false", "/format/at_least_one"),
        (triggered(tags=[DIGITS]), "only tags are allowed here", "/format/tags/0/type"),
        ({"type": "regex", "pattern": "("}, "bad regular expression", "/format/pattern"),
        ({"type": "grammar", "grammar": "root ::= x"}, "no rule 'x'", "/format/grammar"),
        ({"type": "json_schema", "json_schema": {"type": "int"}}, "int", "/format/json_schema"),
        ({"type": "repeat", "content": DIGITS, "min": 3, "max": 1}, "nothing to repeat", "/format/max"),
        ({"type": "repeat", "content": DIGITS, "min": -1, "max": 1}, "a whole number from 0", "/format/min"),
        (
            {"type": "tag", "begin": "", "content": triggered(), "end": "<f="},
            "an end of the tag around it too",
            "/format/content/triggers",
        ),
    ],
)
def test_errors_say_what_and_where(format_: dict[str, Any], message: str, pointer: str) -> None:
    """What is not legal is refused with the JSON pointer of the fault."""
    with pytest.raises(GrammarError) as raised:
        matches(tag(**format_), "")
    assert message in str(raised.value)
    assert raised.value.pointer == pointer


def test_refused_formats() -> None:
    """Formats over token ids and XML parameters are refused by name; so is an impossible schema."""
    for name in ("token", "any_tokens", "qwen_xml_parameter"):
        with pytest.raises(UnsupportedGrammarError, match=f"'{name}' is not supported"):
            matches(tag(type=name), "")
    with pytest.raises(UnsatisfiableGrammarError, match="/format/elements/1/json_schema"):
        matches(tag(type="or", elements=[DIGITS, {"type": "json_schema", "json_schema": False}]), "5")


def test_outermost_objects() -> None:
    """A mapping, its JSON text and a model that can dump itself are the same; anything else is an error."""

    class Model:
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return {"type": "structural_tag", "format": DIGITS}

    expected = tag(**DIGITS)
    assert Grammar.structural_tag(Model()) == expected
    assert (
        Grammar.structural_tag('{"type": "structural_tag", "format": {"type": "regex", "pattern": "[0-9]"}}')
        == expected
    )
    for bad, message in (
        (5, "must be a mapping"),
        ("{", "not JSON"),
        ({"type": "structural_tag", "format": {1, 2}}, "JSON"),
    ):
        with pytest.raises(GrammarError, match=message):
            Grammar.structural_tag(bad)
    for spec in ({"format": DIGITS}, {"type": "tag"}, {"type": "structural_tag"}):
        with pytest.raises(GrammarError):
            matches(Grammar.structural_tag(spec), "")


def test_values_that_are_no_json() -> None:
    """What cannot be written or read as JSON is a grammar error and no other."""
    endless: dict[str, Any] = {"type": "structural_tag"}
    endless["format"] = endless
    nested: Any = {}
    for _ in range(10_000):
        nested = {"content": nested}
    for spec in (endless, nested, {"type": "structural_tag", (1, 2): 3}, "[" * 100_000, '{"a": ' + "1" * 5_000 + "}"):
        with pytest.raises(GrammarError, match="JSON"):
            Grammar.structural_tag(spec)


def test_limits() -> None:
    """Formats inside formats and the size of the whole are bounded."""
    deep: dict[str, Any] = DIGITS
    for _ in range(200):
        deep = {"type": "optional", "content": deep}
    with pytest.raises(GrammarLimitError, match="formats inside formats"):
        matches(tag(**deep), "")
    with pytest.raises(GrammarLimitError, match="characters of strings"):
        compile_grammar(tag(type="any_text", excludes=["a" * 50]), BYTES, limits=CompileLimits(rules=20))
