"""What a Google-style docstring says of a function and of its parameters."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The first paragraph as one line, and the text of each entry of the section ``Args:``."""

    summary: str
    parameters: dict[str, str]


def docstring_of(function: Any) -> Docstring:
    """The docstring of `function`; empty where it has none."""
    lines = (inspect.getdoc(function) or "").splitlines()
    start = next((place for place, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    return Docstring(_first_paragraph(lines[:start]), _entries(lines[start + 1 :]))


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
