"""What a program's function may look like, and what its runs are given."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from palmette.runtime.errors import RequestError

_RESERVED = ("backend", "stream", "timeout_s")


def signature_without_state(program: Callable[..., Any]) -> inspect.Signature:
    """The signature that a run's arguments must fit."""
    if not callable(program):
        raise TypeError(f"@function decorates a function, not {program!r}")
    name = getattr(program, "__name__", repr(program))
    if inspect.isgeneratorfunction(program) or inspect.isasyncgenfunction(program):
        raise TypeError(f"@function cannot run {name}: it is a generator function; drop its yield")
    signature = inspect.signature(program)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(
            f"@function needs a first parameter for the state, as in def {name}(s, ...), but has {signature}"
        )
    for parameter in parameters:
        if parameter.name in _RESERVED:
            raise TypeError(f"{name}() has a parameter {parameter.name!r}, which run() takes for itself; rename it")
    return signature.replace(parameters=parameters[1:])


def checked_timeout(timeout_s: float | None) -> float | None:
    """The seconds that a run may take, if they are some.

    Raises:
        RequestError: they are not.
    """
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (number and 0 < timeout_s <= threading.TIMEOUT_MAX):
        raise RequestError(f"timeout_s must be a number of seconds above 0, or None, not {timeout_s!r}")
    return timeout_s


def checked_speculation(tokens: int | None) -> int | None:
    """The most tokens of a guess that an API is asked for, if they are some.

    Raises:
        RequestError: they are not.
    """
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise RequestError(f"num_api_spec_tokens must be a whole number of at least 1, or None, not {tokens!r}")
    return tokens
