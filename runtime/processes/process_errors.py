"""Errors that another process met, raised again as what they were."""

from __future__ import annotations

import importlib

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError

from .process_messages import Refused


def error_of(process: str, refused: Refused) -> PalmetteError:
    """The error of a process that could not start, of the same class and text where it is one of Palmette's."""
    found: object = None
    if refused.module.startswith("palmette."):
        found = getattr(importlib.import_module(refused.module), refused.kind, None)
    if isinstance(found, type) and issubclass(found, PalmetteError):
        return found(refused.message)
    return EngineError(f"the {process} process could not start: {refused.kind}: {refused.message}")
