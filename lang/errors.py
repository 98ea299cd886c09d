"""Errors of the language; the root is `palmette.constrained.errors.PalmetteError`.

::

    PalmetteError
    ├── UnsupportedTypeError (TypeError)        a Python type that answers cannot have
    ├── ToolError (ValueError)                  a function that cannot be a tool, or cannot be run here
    ├── ResultsFileError (ValueError)           a file that a batch cannot write its results to, or go on with
    └── ProgramError                  a program did something it may not; .line and .node say where
        ├── UnknownVariableError (KeyError)     s["name"], and nothing of that name was set
        ├── DeadlineExceededError (TimeoutError) the run took longer than its timeout_s
        ├── NodeFailedError                     a generation failed; __cause__ is the original
        ├── ChatTemplateError (ValueError)      the model's chat template cannot be used for this role
        └── NoBackendError                      nothing to run the program on
"""

from __future__ import annotations

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError
from palmette.runtime.program import Node

from .source_line import SourceLine


class ProgramError(PalmetteError):
    """A program did something it may not, or a value of it does not exist.

    Attributes:
        line: the program's line that the error is about, where there is one.
        node: the node of the request tree that the error is about, where there is one.
    """

    def __init__(self, message: str, *, line: SourceLine | None = None, node: Node | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.node = node


class UnknownVariableError(ProgramError, KeyError):
    """A variable that was read but never set. The message names those that were."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class NodeFailedError(ProgramError):
    """A generation or select that failed, raised where its value is read. `__cause__` is the original error."""


class DeadlineExceededError(ProgramError, TimeoutError):
    """The run took longer than its `timeout_s`; what it had begun was aborted."""


class ChatTemplateError(ProgramError, ValueError):
    """The model's chat template cannot be used, or has no place for a role here."""


class NoBackendError(ProgramError):
    """A program was run without a backend, and no default backend is set."""


class UnsupportedTypeError(PalmetteError, TypeError):
    """A type that answers cannot have. The message names the part of it, and what is allowed."""


class ToolError(PalmetteError, ValueError):
    """A function that cannot be a tool, tools that do not go together, or a tool that cannot be run here."""


class ResultsFileError(PalmetteError, ValueError):
    """A file that a batch cannot write its results to, or cannot go on with."""


def error_named(kind: str, message: str) -> Exception:
    """The Palmette error of class `kind`, as a backend reports it on the wire; an `EngineError` for any other kind."""
    classes: list[type[PalmetteError]] = [PalmetteError]
    for error_class in classes:
        if error_class.__name__ == kind:
            return error_class(message)
        classes.extend(error_class.__subclasses__())
    return EngineError(f"{kind}: {message}")
