"""What a run left behind, and how it is written as JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from palmette.constrained.errors import PalmetteError

from .state import ProgramState
from .tool import ToolCall


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has ended.

    Attributes:
        values: the variables that can be read.
        returned: what the function returned; None where it raised.
        error: what the function raised, or else the first generation that failed or value that cannot be read.
    """

    values: dict[str, Any]
    returned: Any
    error: BaseException | None


def outcome_of(state: ProgramState) -> Outcome:
    """Read all that a run left behind. Waits for its end."""
    values: dict[str, Any] = {}
    error = state.error()
    for name in state.variable_names():
        try:
            values[name] = state[name]
        except Exception as failure:  # a generation's, or of the code of a type that its answer is read as
            error = error or failure
    return Outcome(values, _returned(state), error)


def _returned(state: ProgramState) -> Any:
    try:
        return state.ret_value
    except BaseException as error:  # the function's own, which `ProgramState.error` has, SystemExit too
        if error is not state.error():
            raise
        return None


def json_object(members: Mapping[str, Any]) -> str:
    """A JSON object. A value that cannot be JSON spoils no other."""
    return "{" + ", ".join(f"{json_text(name)}: {json_text(value)}" for name, value in members.items()) + "}"


def json_text(value: Any) -> str:
    """JSON of any value: models, dataclasses and calls of tools as objects, what JSON cannot hold as Python shows it.

    >>> from datetime import date
    >>> json_text({"day": date(2024, 2, 29), "kind": complex(1, 2)})
    '{"day": "2024-02-29", "kind": "(1+2j)"}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):  # keys that are no strings, NaN, a value that holds itself
        return json.dumps(repr(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What `json` takes in place of a value that it does not know."""
    if isinstance(value, ToolCall):
        return {"name": value.name, "arguments": value.arguments}
    if callable(getattr(value, "model_dump", None)):  # a Pydantic model
        return value.model_dump(mode="json")
    try:
        return msgspec.to_builtins(value, enc_hook=_plain_inside, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _plain_inside(value: Any) -> Any:
    """The same inside of a dataclass or struct, where msgspec looks."""
    return json.loads(json_text(value))


def reason_of(error: BaseException, file: Path | None) -> str:
    """What an item's line says of its error: the kind of ours, and the line of the user's own in the program's file."""
    if isinstance(error, PalmetteError) or file is None:
        return f"{type(error).__name__}: {error}"
    return place_and_reason(error, file)


def place_and_reason(error: BaseException, path: Path) -> str:
    """`line 12: ValueError: ...`, the line being the last one of `path` that the exception went through."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    file = str(path.resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]}: {reason}" if lines else reason
