"""`palmette grammar`: checking texts against a grammar, and explaining one."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.tiny_models import write_tiny_model, write_tiny_tokenizer

from palmette.constrained import Grammar, matches

SCHEMA = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 1},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def write(folder: Path, text: str | bytes, name: str = "text.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_accepted(palmette: Run, schema: Path, tmp_path: Path) -> None:
    """A schema that compiles and texts that match are told as such; a file's last line end does not count."""
    ann = write(tmp_path, '{"name": "Ann", "age": 3}\n')
    result = palmette("grammar", "check", schema, ann)
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{schema}: ok (json_schema, compiled in ")
    assert second == f"{ann}: accepted"


def test_rejected_with_a_caret(palmette: Run, schema: Path, tmp_path: Path) -> None:
    """The byte, the line and the column are told, the caret stands under the character, and what was allowed there."""
    bad = write(tmp_path, '{"name": "Änn", "age": true}')
    result = palmette("grammar", "check", schema, bad)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()[1:]
    assert lines[0] == f"{bad}: rejected at byte 24 (line 1, column 24)"
    assert lines[1] == '  {"name": "Änn", "age": true}'
    assert lines[2].index("^") == lines[1].index("t", 20)
    assert lines[3].startswith("  expected: ")
    assert "1-9" in lines[3]


def test_wide_characters_and_long_lines(palmette: Run, tmp_path: Path) -> None:
    """The caret counts the columns of a terminal, and a long line is cut around the place."""
    text = write(tmp_path, "日本" * 50 + "x" + "y" * 100, "text.txt")
    result = palmette("grammar", "check", "--regex", "[日本]*z", text)
    shown, caret = result.stdout.splitlines()[2:4]
    assert shown.startswith("  …")
    assert shown.endswith("y…")
    assert caret.index("^") == 2 + 1 + 2 * (shown.index("x") - 3)
    assert "at byte 300 (line 1, column 101)" in result.stdout


def test_a_text_that_ends_too_early(palmette: Run, schema: Path, tmp_path: Path) -> None:
    """The place is the end, on its own line; forced text is told whole."""
    cut = write(tmp_path, '{"name": "Ann",\n')
    result = palmette("grammar", "check", "--regex", "(one|two)\nthree", write(tmp_path, "one\nth\n", "cut.txt"))
    assert result.exit_code == 1
    assert "rejected at byte 6 (line 2, column 3): the text ends too early" in result.stdout
    assert result.stdout.splitlines()[-1] == "  expected: 'ree'"
    assert palmette("grammar", "check", schema, cut).exit_code == 1


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"name":\t"Ann","age":3}', "valid JSON for the schema, but not in this spelling: white space"),
        ('{"name": "Ann", "name": "Bob", "age": 3}', "the key 'name' is given twice"),
        ("{'name': 3}", "it is not JSON: Expecting property name"),
        ('{"name": "Ann", "age": 0}', "jsonschema says: 0 is less than the minimum of 1 (at /age of the instance)"),
    ],
)
def test_notes_on_rejected_json(palmette: Run, schema: Path, tmp_path: Path, text: str, note: str) -> None:
    """What is wrong as JSON or as an instance is told apart from what is only spelled otherwise."""
    pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    result = palmette("grammar", "check", schema, write(tmp_path, text))
    assert result.exit_code == 1
    assert f"  note: {note}" in result.stdout or f"  note: it is {note}" in result.stdout


def test_key_order(palmette: Run, schema: Path, tmp_path: Path) -> None:
    """An instance in another order is told as such, and accepted where any order is asked for."""
    swapped = write(tmp_path, '{"age": 3, "name": "Ann"}')
    result = palmette("grammar", "check", schema, swapped)
    assert result.exit_code == 1
    assert "not in this spelling: key order" in result.stdout
    result = palmette("grammar", "check", schema, swapped, "--key-order", "any")
    assert (result.exit_code, "accepted" in result.stdout) == (0, True)


def test_other_grammars(palmette: Run, tmp_path: Path) -> None:
    """Patterns, EBNF and tags are given as text or as files, texts also on standard input."""
    assert palmette("grammar", "check", "--regex", "a+", "-", stdin="aaa\n").exit_code == 0
    pattern = write(tmp_path, "a+b\n", "pattern")
    assert palmette("grammar", "check", "--regex", f"@{pattern}", "-", stdin="aab").exit_code == 0
    ebnf = write(tmp_path, 'root ::= "yes" | "no"\n', "answer.gbnf")
    for given in (ebnf, 'root ::= "yes" | "no"'):
        assert palmette("grammar", "check", "--ebnf", given, "-", stdin="no").exit_code == 0
        assert palmette("grammar", "check", "--ebnf", given, "-", stdin="nope").exit_code == 1
    lark = 'start: "yes" | word\nword: /[a-c]+/'
    for given in (lark, write(tmp_path, lark, "answer.lark")):
        assert palmette("grammar", "check", "--lark", given, "-", stdin="abc").exit_code == 0
    tag = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}})
    for given in (tag, write(tmp_path, tag, "tag.json")):
        assert palmette("grammar", "check", "--tag", given, "-", stdin="hi").exit_code == 0
    assert palmette("grammar", "check", "-", stdin=json.dumps(SCHEMA)).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        (b"\x00\xff\xfe", "is not UTF-8 text: byte 1 is 0xff"),
        ("{}".encode("utf-16"), "looks like UTF-16"),
        (b" " * (33 << 20), "larger than 32 MiB"),
    ],
    ids=["broken", "deep", "binary", "utf16", "huge"],
)
def test_files_that_are_no_schema(palmette: Run, tmp_path: Path, content: str | bytes, message: str) -> None:
    """What cannot be read as JSON is wrong use: exit code 2 and one line."""
    result = palmette("grammar", "check", write(tmp_path, content))
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert result.stdout == ""


def test_wrong_words(palmette: Run, schema: Path, tmp_path: Path) -> None:
    """Missing files, folders, options that do not go together."""
    cases: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "nope.json"], "No such file"),
        ([tmp_path], "is a folder"),
        ([], "there is no schema"),
        (["--regex", "a", "--ebnf", 'root ::= "a"'], "--regex and --ebnf do not go together"),
        (["--regex", "a", "--key-order", "any"], "--key-order goes with a schema"),
        (["--ebnf", tmp_path / "nope.gbnf"], "--ebnf: "),
        (["-", "-"], "- is given twice"),
        (["a\x00b"], "cannot be read"),
    ]
    for words, message in cases:
        result = palmette("grammar", "check", *words, stdin="{}")
        assert (result.exit_code, message in result.stderr) == (2, True), (words, result.output)


def test_refused_grammars(palmette: Run, tmp_path: Path) -> None:
    """A grammar that is read but refused: exit code 1, and the place in it."""
    result = palmette("grammar", "check", write(tmp_path, '{"properties": {"a": {"type": "strin"}}}'))
    assert (result.exit_code, "/properties/a/type" in result.stderr) == (1, True), result.output
    result = palmette("grammar", "explain", "--regex", "a(")
    assert (result.exit_code, "error: " in result.stderr) == (1, True)


def facts(stdout: str) -> dict[str, str]:
    lines = [line.partition(":") for line in stdout.splitlines()]
    return {name: value.strip() for name, _, value in lines}


def test_explain(palmette: Run, schema: Path) -> None:
    """The forced prefix, the shortest answer and an example, which matches; what is enforced and what is ignored."""
    result = palmette("grammar", "explain", schema)
    assert result.exit_code == 0, result.output
    told = facts(result.stdout)
    assert told["grammar"].startswith("json_schema, ")
    assert told["forced prefix"] == repr('{"name":')
    assert told["shortest"] == """'{"name":"","age":1}' (19 bytes)"""
    assert "format 'date' is enforced: /properties/born" in result.stdout
    assert "title is an annotation: /" in result.stdout
    assert matches(Grammar.json_schema(SCHEMA), ast.literal_eval(told["example"]))


def test_explain_notes(palmette: Run, tmp_path: Path) -> None:
    """Unknown formats and keywords are named with their places, the first few of many."""
    properties = {f"p{i}": {"type": "string", "format": "colour", "hint": 1} for i in range(6)}
    result = palmette("grammar", "explain", write(tmp_path, json.dumps({"properties": properties})))
    assert result.exit_code == 0, result.output
    assert "format 'colour' is unknown and ignored: /properties/p0, /properties/p1, " in result.stdout
    assert "and 2 more" in result.stdout
    assert "keyword 'hint' is unknown and ignored: " in result.stdout


def test_explain_with_a_model(palmette: Run, tmp_path: Path) -> None:
    """The sizes of masks are those of the model's vocabulary."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_model(folder)
    write_tiny_tokenizer(folder)
    result = palmette("grammar", "explain", "--regex", "ab|cd", "--model", folder)
    assert result.exit_code == 0, result.output
    assert "vocabulary:     360 tokens; a mask is 48 bytes" in result.stdout
    assert "mask times:" in result.stdout
