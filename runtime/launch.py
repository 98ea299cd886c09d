"""`launch`: from the name of a model to a running engine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from .config import EngineConfig, EngineSettings

if TYPE_CHECKING:
    from .engine import Engine


def launch(model: str | Path | None = None, **settings: Unpack[EngineSettings]) -> Engine:
    """Load a model and start an engine in this process.

    Args:
        model: a folder of safetensors, a ``.gguf`` file, a Hugging Face id, which is fetched into that library's cache,
            or None for the built-in default, SmolLM2-135M-Instruct, which is fetched once into the user's cache.
        settings: any field of `EngineConfig`.

    Returns:
        the engine, a language backend and a context manager: leaving it shuts the engine down.

    Raises:
        ModelLoadError: the model cannot be found, fetched or read; the message names the file and the tensor.
        RequestError: a setting is out of its range.
        TypeError: a setting does not exist.
    """
    _refuse_unknown(settings)
    from .loading import load_engine

    return load_engine(EngineConfig(model=os.fspath(model) if isinstance(model, Path) else model, **settings))


def _refuse_unknown(names: Iterable[str]) -> None:
    known = list(EngineSettings.__annotations__)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"settings are {', '.join(known)}"
            raise TypeError(f"launch() has no setting {name!r}; {hint}")
