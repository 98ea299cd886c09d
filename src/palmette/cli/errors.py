"""Errors as a person at a terminal should see them: what was wrong, what to do, an exit code, and no traceback."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

from palmette.constrained.errors import PalmetteError

EXIT_FAILED = 1  # the run failed
EXIT_USAGE = 2  # what was typed cannot be used; nothing ran
EXIT_INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

P = ParamSpec("P")


class UsageError(PalmetteError, ValueError):
    """What was typed cannot be used. `hint` says what to type instead."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class RunError(PalmetteError, RuntimeError):
    """A program of the user's failed. The message says where; the cause is the program's own exception."""


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command: its exceptions become a message on standard error and an exit code.

    The command takes `debug`, a `DebugOption`, for this wrapper alone.
    """

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # typer's own business
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            if kwargs.get("debug"):
                traceback.print_exception(error)
            else:
                _show(error)
            raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED) from None

    return reporting


def note(message: str) -> None:
    """Tell the person something that is not the answer."""
    typer.secho(message, err=True, dim=True)


def _show(error: Exception) -> None:
    message, hint = _describe(error)
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(message, err=True)
    if hint:
        typer.secho("hint: ", fg=typer.colors.CYAN, err=True, nl=False)
        typer.echo(hint, err=True)


def _describe(error: Exception) -> tuple[str, str]:
    """The message and the hint for an exception that ended a command."""
    if isinstance(error, UsageError):
        return str(error), error.hint
    if isinstance(error, PalmetteError):
        return str(error), "--debug shows the traceback" if error.__cause__ else ""
    if isinstance(error, OSError):
        return str(error), "--debug shows the traceback"
    return f"{type(error).__name__}: {error}", "this may be a bug of Palmette's; --debug shows the traceback"
