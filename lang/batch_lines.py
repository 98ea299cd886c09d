"""The lines of a results file: how one is written, checked and recognised."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .errors import ResultsFileError
from .outcome import Outcome, json_object, json_text

_BEGINNING = b'{"index": '
_ADDRESS = re.compile(r"(?<=[\w>]) at 0x[0-9a-fA-F]+(?=>)")
_SHOWN = 200  # characters of an item's arguments in an error


def result_line(
    place: int,
    arguments: Any,
    outcome: Outcome,
    *,
    error: str | None,
    more: Mapping[str, str | None] = MappingProxyType({}),
) -> str:
    """The line of an item: its place, arguments, variables, returned value and error, and `more`.

    A value whose own code fails when it is asked how it looks makes the item a failed one.
    """
    try:
        members = {
            "index": json_text(place),
            "args": json_text(arguments),
            "variables": json_object(outcome.values),
            "value": json_text(outcome.returned),
            "error": json_text(error),
        }
    except Exception as failure:  # of the code of a user's class
        written = f"what it left cannot be written: {type(failure).__name__}: {failure}"
        lost: dict[str, Any] = {"args": None, "variables": {}, "value": None, "error": error or written}
        members = {"index": json_text(place)} | {name: json_text(value) for name, value in lost.items()}
    members |= {name: json_text(value) for name, value in more.items()}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in members.items()) + "}"


@dataclass(slots=True)
class HeldLines:
    """What a file holds.

    Attributes:
        starts: by place, the offset of the item's last line.
        digests: by place, of the arguments of items without an error.
        end: where the next line begins.
        last: the greatest place.
        in_order: the lines are in the items' order, and each item has one.
    """

    starts: dict[int, int] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    last: int = -1
    in_order: bool = True

    def add(self, result: dict[str, Any], length: int) -> None:
        """Take in the next line of the file. A result without an error stays, whatever comes after it."""
        place, known = result["index"], self.starts.get(result["index"])
        self.append(place, length)
        if result["error"] is None:
            self.digests[place] = digest_of(json.dumps(result["args"]))
        elif known is not None and place in self.digests:
            self.starts[place] = known

    def append(self, place: int, length: int) -> None:
        """A line of an item comes next."""
        self.in_order = self.in_order and place > self.last
        self.last = max(self.last, place)
        self.starts[place] = self.end
        self.end += length


def checked_result(line: bytes, place: str) -> dict[str, Any]:
    """The object of a line, which `place` names in errors.

    Raises:
        ResultsFileError: it is no result of a batch.
    """
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        result = None
    if isinstance(result, dict) and {"index", "args", "error"} <= result.keys():
        index = result["index"]
        if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
            return result
    raise ResultsFileError(
        f"{place} is no result of a batch; only a file that run_batch or `palmette batch` wrote can be gone on with"
    )


def check_cut_off(line: bytes, place: str) -> None:
    """Refuse a last line that is not the beginning of a result: the file is somebody else's."""
    if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
        checked_result(b"", place)


def digest_of(json_of_arguments: str) -> bytes:
    """Of arguments as JSON: the same for objects whose members are in another order.

    What Python shows as an object at an address is the same at any other: the next process has it elsewhere.
    """
    canonical = _ADDRESS.sub("", json.dumps(json.loads(json_of_arguments), sort_keys=True))
    return hashlib.blake2b(canonical.encode(), digest_size=12).digest()


def shown_arguments(arguments: Any) -> str:
    """Arguments as an error shows them."""
    text = json_text(arguments)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
