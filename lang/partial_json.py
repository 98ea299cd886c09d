"""The value of JSON text that is still being written."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\]*')  # characters of a string that stand for themselves
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")  # characters of numbers and of true, false and null
_LITERALS = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_CUT_LOW_SURROGATE = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class _Place(enum.Enum):
    """What comes next."""

    VALUE = "a value"
    FIRST_ELEMENT = "a value or ']'"
    FIRST_KEY = "a key or '}'"
    KEY = "a key"
    COLON = "':'"
    AFTER = "',' or the end"
    STRING = "the rest of a string"
    SCALAR = "the rest of a number or name"
    END = "nothing more"


_BEFORE_VALUE = (_Place.VALUE, _Place.FIRST_ELEMENT)
_BEFORE_KEY = (_Place.FIRST_KEY, _Place.KEY)
_BEFORE_STRING = _BEFORE_VALUE + _BEFORE_KEY


class PartialJSON:
    """Reads JSON in pieces and has, at any time, the value of what came so far.

    `value` holds what is certain: objects with the members whose values have begun, strings up to their last whole
    character, numbers once something follows them (a number as the whole text too: its next digit may come), names
    such as ``true`` once they are whole. It is None while nothing is known. The value of a text only ever grows.

    Every character is looked at once, however small the pieces, and reading `value` copies the objects and arrays
    that are still open, not those that are closed; so do not alter a value.
    """

    def __init__(self) -> None:
        self._place = _Place.VALUE
        self._root: Any = None
        self._open: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str] = []  # the last key of each open object
        self._pieces: list[str] = []  # of the string, number or name that is being read
        self._is_key = False
        self._rest = ""  # an escape that is cut off
        self._read = 0  # characters before `_rest`
        self._steps: dict[_Place, Callable[[str, int], int]] = {
            _Place.STRING: self._string,
            _Place.SCALAR: self._scalar,
        }

    def push(self, text: str) -> None:
        """Take the next piece of the text.

        Raises:
            ValueError: what came so far is not the beginning of any JSON text.
        """
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            before, place = at, self._place
            at = self._steps.get(place, self._mark)(text, at)
            if at == before and self._place is place:
                break
        self._rest = text[at:]
        self._read += at

    @property
    def value(self) -> Any:
        """The value so far."""
        if self._place is _Place.STRING and not self._is_key:
            self._pieces = ["".join(self._pieces)]
            self._replace(self._pieces[0])
        return self._snapshot()

    def _snapshot(self) -> Any:
        """The root, with copies of the open containers."""
        value: Any = None
        for depth in reversed(range(len(self._open))):
            container = self._open[depth].copy()
            if depth < len(self._open) - 1:
                _replace_last(container, self._keys[depth], value)
            value = container
        return value if self._open else self._root

    def _mark(self, text: str, at: int) -> int:
        """One mark, or the first character of a string, number or name."""
        at = _run(_SPACE, text, at)
        if at == len(text):
            return at
        char, place = text[at], self._place
        if char == '"' and place in _BEFORE_STRING:
            self._begin_string(is_key=place in _BEFORE_KEY)
        elif char in "{[" and place in _BEFORE_VALUE:
            self._begin({} if char == "{" else [])
        elif char in "}]" and self._may_close(char):
            self._open.pop()
            self._keys.pop()
            self._end_value()
        elif char == "," and place is _Place.AFTER:
            self._place = _Place.KEY if isinstance(self._open[-1], dict) else _Place.VALUE
        elif char == ":" and place is _Place.COLON:
            self._place = _Place.VALUE
        elif place in _BEFORE_VALUE and _run(_SCALAR, char, 0):
            self._pieces, self._place = [], _Place.SCALAR
            return at
        else:
            self._fail(at, f"expected {place.value}, not {char!r}")
        return at + 1

    def _may_close(self, char: str) -> bool:
        empty = _Place.FIRST_KEY if char == "}" else _Place.FIRST_ELEMENT
        return self._place is empty or (
            self._place is _Place.AFTER and isinstance(self._open[-1], dict if char == "}" else list)
        )

    def _begin(self, container: dict[str, Any] | list[Any]) -> None:
        self._put(container)
        self._open.append(container)
        self._keys.append("")
        self._place = _Place.FIRST_KEY if isinstance(container, dict) else _Place.FIRST_ELEMENT

    def _begin_string(self, is_key: bool) -> None:
        self._is_key, self._pieces, self._place = is_key, [], _Place.STRING
        if not is_key:
            self._put("")

    def _string(self, text: str, at: int) -> int:
        """Characters up to a quote, an escape or the end of the text; then the quote or the escape."""
        end = _run(_PLAIN, text, at)
        if end > at:
            self._pieces.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == '"':
            self._end_string("".join(self._pieces))
            return end + 1
        return self._escape(text, end)

    def _escape(self, text: str, at: int) -> int:
        """One escape, or two that spell one character; none of it while more of it may come."""
        found = _ESCAPE.match(text, at)
        if found is None:
            if _CUT_ESCAPE.fullmatch(text, at) is None:
                self._fail(at, f"{text[at : at + 6]!r} is no escape")
            return at
        end = found.end()
        if _HIGH_SURROGATE.match(text, at):
            low = _LOW_SURROGATE.match(text, end)
            if low is None and _CUT_LOW_SURROGATE.fullmatch(text, end):
                return at
            end = low.end() if low else end
        self._pieces.append(json.loads(f'"{text[at:end]}"'))
        return end

    def _end_string(self, string: str) -> None:
        if self._is_key:
            self._keys[-1] = string
            self._place = _Place.COLON
        else:
            self._replace(string)
            self._end_value()

    def _scalar(self, text: str, at: int) -> int:
        """A number up to what follows it; a name as soon as it is whole."""
        end = _run(_SCALAR, text, at)
        self._pieces.append(text[at:end])
        if end < len(text) or self._pieces[0].isalpha():
            word = "".join(self._pieces)
            if word in _LITERALS or _NUMBER.fullmatch(word):
                self._put(_LITERALS[word] if word in _LITERALS else json.loads(word))
                self._end_value()
            elif end < len(text) or not any(literal.startswith(word) for literal in _LITERALS):
                self._fail(end, f"{word[:20]!r} is no JSON value")
        return end

    def _put(self, value: Any) -> None:
        """Add a value to the innermost open container."""
        if not self._open:
            self._root = value
        elif isinstance(self._open[-1], dict):
            self._open[-1][self._keys[-1]] = value
        else:
            self._open[-1].append(value)

    def _replace(self, value: Any) -> None:
        """Put a value in the place of the last one that was added."""
        if self._open:
            _replace_last(self._open[-1], self._keys[-1], value)
        else:
            self._root = value

    def _end_value(self) -> None:
        self._place = _Place.AFTER if self._open else _Place.END

    def _fail(self, at: int, what: str) -> NoReturn:
        raise ValueError(f"not JSON at character {self._read + at}: {what}")


def _replace_last(container: dict[str, Any] | list[Any], key: str, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container[-1] = value


def _run(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match at `at` ends; `at` itself where there is none."""
    found = pattern.match(text, at)
    return found.end() if found else at
