"""Calls written as JSON objects: where one ends in text that still comes, and what it says."""

from __future__ import annotations

import json
import re

_FIRST_KEYS = ("name", "arguments", "parameters", "type", "id")


class JsonValueEnd:
    """Finds the end of the JSON object that a text begins with, however much of it is there.

    Attributes:
        scanned: characters that were looked at.
    """

    _IN_STRING = re.compile(r'["\\]')
    _OUTSIDE = re.compile(r'["{}\[\]]')

    def __init__(self) -> None:
        self.scanned = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The end, or None where it has not come. Only what lies behind `scanned` is looked at."""
        while self.scanned < len(text):
            if self._escaped:
                self._escaped = False
                self.scanned += 1
                continue
            found = (self._IN_STRING if self._in_string else self._OUTSIDE).search(text, self.scanned)
            if found is None:
                self.scanned = len(text)
                return None
            self.scanned = found.end()
            if self._take(found[0]):
                return self.scanned
        return None

    def _take(self, char: str) -> bool:
        """Go on behind a character that matters; True at the end."""
        if char == '"':
            self._in_string = not self._in_string
        elif char == "\\":
            self._escaped = True
        else:
            self._depth += 1 if char in "{[" else -1
            return self._depth <= 0
        return False


def may_be_call(text: str) -> bool:
    """Whether text may be an object whose first key is one of a call."""
    start = "".join(text[:40].split())[: max(map(len, _FIRST_KEYS)) + 3]
    return any(start.startswith(key) or key.startswith(start) for key in (f'{{"{key}"' for key in _FIRST_KEYS))


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def parsed_call(text: str, *, needs_arguments: bool) -> tuple[str, str] | None:
    """Name and arguments of a call in a JSON object; the arguments' text as it stands there."""
    try:
        call = json.loads(text)
        members = _member_texts(text)
    except (ValueError, RecursionError):
        return None
    name = call.get("name")
    key = next((key for key in ("arguments", "parameters") if key in call), None)
    if not isinstance(name, str):
        return None
    if key is None:
        return None if needs_arguments else (name, "{}")
    arguments = call[key]
    if isinstance(arguments, str):  # JSON in JSON, as some models write
        return (name, arguments.strip()) if is_object(arguments) else None
    return (name, members[key]) if isinstance(arguments, dict) else None


def _member_texts(text: str) -> dict[str, str]:
    """The text of each value of a JSON object that is known to be one."""
    decoder = json.JSONDecoder()
    space = re.compile(r"[\s,:]*")
    members: dict[str, str] = {}
    place = space.match(text, 1).end()  # type: ignore[union-attr]  # it matches nothing, too
    while text[place] != "}":
        key, end = decoder.raw_decode(text, place)
        start = space.match(text, end).end()  # type: ignore[union-attr]
        _, end = decoder.raw_decode(text, start)
        members[key] = text[start:end]
        place = space.match(text, end).end()  # type: ignore[union-attr]
    return members
