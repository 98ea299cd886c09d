"""What a docstring says of a function and of its parameters, in the style of Google, NumPy or reST."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_RULE = re.compile(r"-{3,}\s*")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)(?:\s*:.*)?")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*?))?:(?:\s+(.*))?")
_PARAMETER_FIELDS = ("param", "parameter", "arg", "argument", "key", "keyword")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The first paragraph as one line, and the text of what it says of each parameter."""

    summary: str
    parameters: dict[str, str]


def docstring_of(function: Any) -> Docstring:
    """The docstring of `function`; empty where it has none."""
    lines = (inspect.getdoc(function) or "").splitlines()
    for place, line in enumerate(lines):
        if _FIELD.fullmatch(line):
            return Docstring(_first_paragraph(lines[:place]), dict(_fields(lines[place:])))
        if _SECTION.fullmatch(line):
            return Docstring(_first_paragraph(lines[:place]), _entries(lines[place + 1 :]))
        if line.strip() == "Parameters" and _RULE.fullmatch("".join(lines[place + 1 : place + 2])):
            return Docstring(_first_paragraph(lines[:place]), dict(_numpy_entries(lines[place + 2 :])))
    return Docstring(_first_paragraph(lines), {})


def _first_paragraph(lines: list[str]) -> str:
    end = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
    return " ".join(line.strip() for line in lines[:end])


def _entries(lines: list[str]) -> dict[str, str]:
    """Entries stand at the indentation of the first; lines further in go on with the one above."""
    found: dict[str, str] = {}
    name, outer = "", None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if indent == 0:
            break
        outer = indent if outer is None else outer
        entry = _ENTRY.fullmatch(line.strip()) if indent <= outer else None
        if entry:
            name, found[entry[1]] = entry[1], entry[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _numpy_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """``name : type`` at the margin, and its text further in; ``a, b : type`` is said of both."""
    names: list[str] = []
    said: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line[:1].strip():
            yield from ((name, " ".join(said)) for name in names)
            names, said = [], []
            entry = _NUMPY_ENTRY.fullmatch(line.rstrip())
            if entry is None or _RULE.fullmatch(following):  # the next section
                return
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
        elif line.strip():
            said.append(line.strip())
    yield from ((name, " ".join(said)) for name in names)


def _fields(lines: list[str]) -> Iterator[tuple[str, str]]:
    """``:param name: text``, perhaps with a type before the name; lines further in go on with the one above."""
    name, said = "", [""]
    for line in [*lines, ":end:"]:
        field = _FIELD.fullmatch(line)
        if field is None:
            said.append(line.strip())
            continue
        if name:
            yield name, " ".join(filter(None, said))
        is_parameter = field[1] in _PARAMETER_FIELDS and field[2]
        name, said = (field[2].split()[-1].lstrip("*\\") if is_parameter else ""), [field[3] or ""]
