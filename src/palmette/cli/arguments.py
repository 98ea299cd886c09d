"""`--arg name=value`: a program's arguments from the command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import palmette as pt
from palmette.lang.options import OPTION_NAMES, checked_options

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


def check_arguments(function: pt.Function, arguments: Mapping[str, Any]) -> None:
    """Compare ``--arg`` with the signature of a program.

    Raises:
        UsageError: an argument is missing or wrong, or the program has none of that name.
    """
    missing = _missing(function, arguments)
    if missing:
        hint = "give " + " ".join(f"--arg {name}=..." for name in missing)
        raise UsageError(f"the program needs an argument {missing[0]!r}", hint=hint)
    fault = fault_in(function, arguments)
    if fault:
        raise UsageError(fault)


def fault_in(function: pt.Function, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with arguments by name for a program, whose first parameter is its state; None for nothing.

    Names that are no parameters but sampling options, such as ``temperature``, are options of the run.
    """
    missing = _missing(function, arguments)
    if missing:
        return f"the program needs an argument {missing[0]!r}"
    named, takes_any = _parameters(function)
    others = {name: value for name, value in arguments.items() if name not in named}
    if takes_any or not others:
        return None
    unknown = [name for name in others if name not in OPTION_NAMES]
    if unknown:
        return f"the program has no argument {unknown[0]!r}; its arguments: {', '.join(named) or 'none'}"
    try:
        checked_options(others, "the program")
    except (pt.PalmetteError, TypeError, ValueError) as error:
        return str(error)
    return None


def _missing(function: pt.Function, arguments: Mapping[str, Any]) -> list[str]:
    given = {*arguments, *function.bound}
    named, _ = _parameters(function)
    return [name for name, parameter in named.items() if parameter.default is parameter.empty and name not in given]


def _parameters(function: pt.Function) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that can be given by name, and whether the program takes any name."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> None:
    """NaN and Infinity are Python's additions to JSON: they stay text."""
    raise ValueError(name)
