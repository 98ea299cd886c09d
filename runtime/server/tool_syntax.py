"""What the streaming parser of tool calls must know of a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .tool_formats import ToolFormat

SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are found in text.

    Attributes:
        names: functions that can be called; what names another is text.
        openers: strings before a call, no part of it, wherever they stand.
        kept: strings that begin a call and are part of it, wherever they stand.
        bare: whether a call may begin without either: at the start of the text, and after another call.
        lead: characters that may stand between an opener, or the start, and a call.
        named: whether a call is a name and its arguments, and not one JSON object.
        heads: what a grammar writes of a call before its arguments, by the function's name.
        tail: what it writes behind them as part of the call.
        fillers: what may follow a call and is no text.
    """

    names: tuple[str, ...]
    openers: tuple[str, ...]
    kept: tuple[str, ...]
    bare: bool
    lead: str
    named: bool
    heads: Mapping[str, str]
    tail: str
    fillers: tuple[str, ...]


def syntax_of(format_: ToolFormat, names: tuple[str, ...], *, after_marker: bool = False) -> CallSyntax:
    """How the calls of `names` are found in text of `format_`; `after_marker`: the text is calls from its start."""
    family, is_hidden = format_.family, format_.is_hidden
    is_list, is_named = family == "mistral", family == "mistral_named"
    kept: tuple[str, ...] = ()
    if family == "llama3" or (is_hidden and not is_named):
        kept = tuple(f'{{"name": "{name}"' for name in names)
    if is_list and is_hidden:
        kept = tuple("[" + text for text in kept)
    openers = {"llama3": ("<|python_tag|>",)}.get(family, (format_.marker,))
    fillers = {"hermes": ("</tool_call>",), "llama3": (";",), "mistral": (",", "]", ";")}.get(family, ())
    return CallSyntax(
        names=names,
        openers=openers,
        kept=kept,
        bare=is_hidden or after_marker or family == "llama3",
        lead=SPACE + ("[" if is_list else ""),
        named=is_named,
        heads={name: format_.head(name) for name in names},
        tail="" if is_named else "}",
        fillers=(*SPACE, *fillers),
    )
