"""What an answer is held to, from the options that say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import UsageError
from .program_file import import_file, split_target

NAMED_TYPES = ("int", "float", "bool", "str")


def constraint_of(given: dict[str, Any]) -> dict[str, Any]:
    """The one constraint among these options, as `gen` takes it; keys are names of `gen`, those that are None left out.

    Raises:
        UsageError: there are two, or one cannot be read.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) > 1:
        raise UsageError(f"{' and '.join(map(option, named))} do not go together", hint="an answer has one constraint")
    return {name: _READERS[name](value) for name, value in named.items()}


def option(name: str) -> str:
    """How an option of `gen` is typed."""
    return "--" + name.replace("_", "-")


def _choices(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [choice.strip() for choice in text.split(",")]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--choices starts as a JSON array but is none: {error}", hint="""--choices '["a", "b"]'"""
        ) from error
    return list(values)


def _schema(path: Path) -> Any:
    return _json(_text_of(path, "--json-schema"), f"--json-schema {path}")


def _structural_tag(text: str) -> Any:
    is_file = not text.lstrip().startswith("{")
    return _json(_text_of(Path(text), "--tag") if is_file else text, f"--tag {text}" if is_file else "--tag")


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}") from error


def _ebnf(text: str) -> str:
    return text if "::=" in text else _text_of(Path(text), "--ebnf")


def _lark(text: str) -> str:
    return text if ":" in text and not Path(text).is_file() else _text_of(Path(text), "--lark")


def _type(target: str) -> Any:
    """A type by its name, or a class of a Python file."""
    if target in NAMED_TYPES:
        return target
    path, name = split_target(target, "--type FILE.py:CLASS")
    found = getattr(import_file(path), name, None) if name else None
    if found is None:
        raise UsageError(f"--type {target} names no type of {path}", hint=f"{', '.join(NAMED_TYPES)}, or FILE.py:CLASS")
    return found


def _text_of(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} {path} is not UTF-8 text: byte {error.start} is wrong") from error


_READERS: dict[str, Callable[[Any], Any]] = {
    "regex": str,
    "json_schema": _schema,
    "ebnf": _ebnf,
    "lark": _lark,
    "structural_tag": _structural_tag,
    "type": _type,
    "choices": _choices,
}
