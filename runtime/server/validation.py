"""Pydantic's findings about a request, as one sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core import ErrorDetails

_SHOWN_FIELDS = 3
_LONGEST_NAME = 64
_KNOWN: set[str] = set()
_CALLED_HERE = {
    "extra_body": "its members as fields of the request itself",
    "function_call": "tool_choice",
    "functions": "tools",
    "guided_grammar": "ebnf",
    "guided_json": "response_format",
    "guided_regex": "regex",
    "max_new_tokens": "max_tokens",
    "structured_outputs": "response_format, regex or ebnf",
}
"""What fields of other servers are called here."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def validation_error(error: RequestValidationError) -> tuple[str, str | None]:
    """The message about a request that its model refuses, and the first field that is wrong."""
    found = error.errors()
    if not found:
        return "the request is not valid", None
    if found[0]["type"] == "json_invalid":
        return f"the body is not valid JSON: {found[0]['ctx']['error']}", None
    by_field: dict[str, list[ErrorDetails]] = {}
    for each in found:
        by_field.setdefault(_field(each, error.body), []).append(each)
    sentences = [_sentence(field, errors) for field, errors in list(by_field.items())[:_SHOWN_FIELDS]]
    if (left_out := len(by_field) - len(sentences)) > 0:
        sentences.append(f"and {left_out} more")
    return "; ".join(sentences), next(iter(by_field)) or None


def register(*models: type[BaseModel]) -> None:
    """Have unknown fields of these models answered by the names of those that they may have meant."""
    for model in models:
        _KNOWN.update(model.model_fields)


def _field(error: ErrorDetails, body: Any) -> str:
    """Where the error is, as in ``messages[0].content``: the path without pydantic's names for members of unions."""
    place = error["loc"][1:] if error["loc"][:1] in (("body",), ("query",), ("path",)) else error["loc"]
    if error["loc"][:1] != ("body",):
        return str(place[-1]) if place else ""
    path, value = "", body
    for position, step in enumerate(place):
        last = position == len(place) - 1
        if isinstance(value, Mapping) and (step in value or (last and error["type"] == "missing")):
            path += f".{step}" if path else str(step)
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes) and isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if step < len(value) else None
    return path


def _sentence(field: str, errors: list[ErrorDetails]) -> str:
    first = errors[0]
    if first["type"] == "missing":
        return f"{field} is missing" if field else "the body is missing: it must be one JSON object"
    if first["type"] == "extra_forbidden":
        return f"there is no field {field!r}{_meant(field)}"
    if not field:
        return (
            f"the body must be one JSON object, sent as content-type application/json, not {_repr.repr(first['input'])}"
        )
    wanted = dict.fromkeys(map(_wanted, errors))
    return f"{field} must {' or '.join(wanted)}, not {_repr.repr(first['input'])}"


def _wanted(error: ErrorDetails) -> str:
    """What is allowed, in Pydantic's words, to stand behind "must"."""
    message = error["msg"].removeprefix("Value error, ")
    return message.partition(" should ")[2] or message


def _meant(field: str) -> str:
    name = field.rpartition(".")[2]
    if name in _CALLED_HERE:
        return f" (give {_CALLED_HERE[name]})"
    near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.7) if len(name) <= _LONGEST_NAME else []
    return f" (did you mean {near[0]!r}?)" if near else " (GET /docs lists the fields there are)"
