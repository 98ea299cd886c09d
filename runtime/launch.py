"""`launch`: from the name of a model to a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from .config import EngineConfig, EngineSettings

if TYPE_CHECKING:
    from .engine import Engine


def launch(model: str | None = None, **settings: Unpack[EngineSettings]) -> Engine:
    """Load a model and start an engine in this process.

    Args:
        model: a folder of safetensors, a ``.gguf`` file, or None for the built-in default, SmolLM2-135M-Instruct, which
            is fetched once into the user's cache.
        settings: any field of `EngineConfig`.

    Returns:
        the engine, a language backend and a context manager: leaving it shuts the engine down.

    Raises:
        ModelLoadError: the model cannot be found or read; the message names the file and the tensor.
        RequestError: a setting is out of its range.
        TypeError: a setting does not exist.
    """
    from .loading import load_engine

    return load_engine(EngineConfig(model=model, **settings))
