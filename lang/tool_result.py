"""`pt.tool_result`: what a tool returned, as the model reads it."""

from __future__ import annotations

from typing import Any

from .api import role_message
from .expr import Expr


def tool_result(value: Any) -> Expr:
    """A message with what a tool returned: a string as it is, anything else as JSON; of an exception, what went wrong.

    It has the role ``tool``, or ``user`` where the model's chat template knows no tools.

    Raises:
        TypeError: the value cannot be written as JSON.
    """
    return role_message("tool", _text_of(value))


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, BaseException):
        return f"Error: {type(value).__name__}: {value}".removesuffix(": ")
    import msgspec

    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    """What JSON has in the place of a value that msgspec does not know: a Pydantic model, most of all."""
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump(mode="json")
    raise TypeError(
        f"the result of a tool must be a string, an exception, or a value that JSON can hold, not {value!r:.100} of "
        f"{type(value).__name__}; return a str, dict, dataclass or Pydantic model from the tool"
    )
