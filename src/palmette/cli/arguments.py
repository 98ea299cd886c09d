"""`--arg name=value`: a program's arguments from the command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

import palmette as pt

from .errors import UsageError


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Arguments by name. A value that is JSON is that JSON value; any other is the text as it stands.

    >>> parse_arguments(["topic=fruit trees", "count=3", 'tags=["a", "b"]', 'zip="00501"'])
    {'topic': 'fruit trees', 'count': 3, 'tags': ['a', 'b'], 'zip': '00501'}

    Raises:
        UsageError: no ``=``, a name that is no Python name, or a name given twice.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {pair!r} is not name=value", hint="for example: --arg topic='fruit trees'")
        if name in arguments:
            raise UsageError(f"--arg {name} is given twice")
        arguments[name] = _value(text)
    return arguments


def check_arguments(function: pt.Function, arguments: dict[str, Any]) -> None:
    """Compare arguments with the signature of a program, whose first parameter is its state.

    Raises:
        UsageError: an argument is missing, or the program has none of that name.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    unknown = [name for name in arguments if name not in names]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = ", ".join(names) or "none"
        raise UsageError(f"the program has no argument {unknown[0]!r}", hint=f"its arguments: {known}")
    given = {*arguments, *function.bound}
    missing = [p.name for p in named if p.default is p.empty and p.name not in given]
    if missing:
        hint = "give " + " ".join(f"--arg {name}=..." for name in missing)
        raise UsageError(f"the program needs an argument {missing[0]!r}", hint=hint)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> None:
    """NaN and Infinity are Python's additions to JSON: they stay text."""
    raise ValueError(name)
