"""The grammar and the texts that a `palmette grammar` command is about, from its words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from palmette.constrained import Grammar
from palmette.constrained.json_options import KeyOrder, Whitespace

from .errors import UsageError

LARGEST_FILE_BYTES = 32 << 20

Kind = Literal["json_schema", "regex", "ebnf", "lark", "tag"]

RegexOption = Annotated[str | None, typer.Option(help="A pattern instead of a schema; @FILE reads it from a file.")]
EbnfOption = Annotated[str | None, typer.Option(help="An EBNF grammar instead of a schema, or a file of one.")]
LarkOption = Annotated[str | None, typer.Option(help="A Lark grammar instead of a schema, or a file of one.")]
TagOption = Annotated[str | None, typer.Option(help="A structural tag (JSON) instead of a schema, or a file of one.")]
KeyOrderOption = Annotated[KeyOrder | None, typer.Option(help="Of a schema's objects.", show_default="schema")]
WhitespaceOption = Annotated[Whitespace | None, typer.Option(help="Between JSON tokens.", show_default="single")]


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar as it was named.

    Attributes:
        name: what to call it: its file, or its option.
        schema: the JSON Schema, where it is one.
        options: of `Grammar.json_schema`, those that were given.
        rest: the words after it, which are texts.
    """

    name: str
    grammar: Grammar
    schema: Any = None
    options: Mapping[str, Any] | None = None
    rest: tuple[str, ...] = ()


def read_source(words: Sequence[str], given: Mapping[str, str | None], options: Mapping[str, str | None]) -> Source:
    """The grammar that an option gives, or else the schema that the first word names.

    Args:
        given: "regex", "ebnf", "lark" and "tag": a text or None.
        options: "key_order" and "whitespace" of a schema.

    Raises:
        UsageError: there is none, or there are several; or its file cannot be read, or is no JSON.
        GrammarError: it is no legal grammar.
    """
    chosen = {name: text for name, text in given.items() if text is not None}
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join('--' + name for name in chosen)} do not go together")
    said = {name: value for name, value in options.items() if value is not None}
    if chosen:
        ((name, text),) = chosen.items()
        if said:
            raise UsageError(f"--{next(iter(said)).replace('_', '-')} goes with a schema, not with --{name}")
        return Source(f"--{name}", _READERS[name](text), rest=tuple(words))
    if not words:
        raise UsageError("there is no schema", hint="palmette grammar check schema.json, or --regex, --ebnf, ...")
    schema = read_json(words[0])
    return Source(words[0], schema_grammar(schema, said), schema, said, tuple(words[1:]))


def schema_grammar(schema: Any, options: Mapping[str, Any]) -> Grammar:
    """The grammar of a JSON Schema; `options` are those of `Grammar.json_schema`."""
    make: Callable[..., Grammar] = Grammar.json_schema
    return make(schema, **options)


def read_text(word: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        UsageError: it cannot be read, is not UTF-8, or is larger than `LARGEST_FILE_BYTES`.
    """
    data = _standard_input() if word == "-" else _file_bytes(Path(word))
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError(f"{word} is larger than {LARGEST_FILE_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        wide = "; it looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise UsageError(f"{word} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}{wide}") from error


def read_json(word: str) -> Any:
    """The JSON value of a file, or of standard input for ``-``.

    Raises:
        UsageError: see `read_text`; or it is not JSON.
    """
    text = read_text(word).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except RecursionError:
        raise UsageError(f"{word} is JSON that is nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"{word} is not JSON: {error}") from error


def _file_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file")
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in its name
        raise UsageError(f"{path!s} cannot be read: {error}") from error


def _standard_input() -> bytes:
    return sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)


def _text_or_file(text: str, marks: Sequence[str], name: str) -> str:
    """`text` itself where it has a mark of its kind, else the text of the file that it names."""
    if text != "-" and any(mark in text for mark in marks):
        return text
    try:
        return read_text(text)
    except UsageError as error:
        raise UsageError(f"--{name}: {error}") from error


def _regex(text: str) -> Grammar:
    return Grammar.regex(read_text(text[1:]).removesuffix("\n") if text[:1] == "@" else text)


def _ebnf(text: str) -> Grammar:
    return Grammar.ebnf(_text_or_file(text, ["::="], "ebnf"))


def _lark(text: str) -> Grammar:
    return Grammar.lark(_text_or_file(text, [":", "\n"], "lark"))


def _tag(text: str) -> Grammar:
    return Grammar.structural_tag(_text_or_file(text, ["{"], "tag"))


_READERS = {"regex": _regex, "ebnf": _ebnf, "lark": _lark, "tag": _tag}
