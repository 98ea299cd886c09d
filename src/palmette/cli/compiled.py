"""`palmette run --compile`: what a program builds, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import palmette as pt
from palmette.runtime.errors import ModelLoadError

from .engine import fetch_model
from .errors import UsageError
from .program_file import failure_in


def show_compiled(function: pt.Function, arguments: dict[str, Any], model: str | None, revision: str | None) -> None:
    """Print the tree that a program builds, by the model's chat template and tokenizer. No weights are read.

    Raises:
        UsageError: there is no such model, or it cannot be fetched or read.
        RunError: the function raised before it read a value; names the line of its file.
    """
    from palmette.runtime.described_model import DescribedModel

    fetch_model(model, revision)
    try:
        described = DescribedModel.find(model, revision=revision)
    except ModelLoadError as error:
        raise UsageError(str(error)) from error
    try:
        compiled = function.compile(**arguments, backend=described)
    except Exception as error:
        raise failure_in(function, error) from error
    compiled.show()


def check_compiled_alone(given: Mapping[str, bool]) -> None:
    """Raise UsageError if an option was given that asks for what only a run has."""
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"{option} shows how a program ran, and with --compile none runs", hint="leave one out")
