"""Where the model is that a user names: a folder, a file, or what has to be fetched first. Loads no torch."""

from __future__ import annotations

import os
from pathlib import Path

from .config import MODELS
from .default_model import Progress, ensure_default_model, is_default_model
from .errors import ModelLoadError
from .hub import fetch, is_hub_id


def find_model(
    model: str | Path | None,
    progress: Progress | None = None,
    *,
    revision: str | None = None,
    offline: bool = False,
) -> Path:
    """The folder or .gguf file that a user's name for a model stands for.

    Args:
        model: a path, a Hugging Face id, or None (or its name) for the default model. What is not in the cache yet is
            fetched. A path that exists wins over an id.
        progress: told how far a fetch is.
        revision: of a Hugging Face id.
        offline: fetch nothing.

    Raises:
        ModelLoadError: there is no such folder, file or id, it is no model, or it cannot be fetched.
    """
    name = "" if model is None else str(model)
    path = Path(os.path.expanduser(name))  # which, unlike Path's, leaves ~ before an unknown user
    if name and (os.path.isdir(path) or os.path.isfile(path)):  # False for names too long for a file
        return _existing(path, revision)
    if is_default_model(name if model is not None else None, revision):
        if revision is not None:
            raise ModelLoadError(f"revision={revision!r} goes with a Hugging Face id, not with the built-in model")
        return ensure_default_model(progress, offline=offline)
    if is_hub_id(name) and path.suffix != ".gguf":
        return fetch(name, revision=revision, offline=offline, progress=progress)
    raise ModelLoadError(f"no model {name!r}: there is no such folder or file. A model is {MODELS}")


def model_name(model: str | None, path: Path) -> str:
    """What a model is called: the id that was asked for, or of a folder or file its own name, not where it lies.

    Args:
        model: as it was asked for.
        path: what `find_model` found for it.
    """
    is_path = model is None or os.path.exists(os.path.expanduser(model))
    return os.path.basename(os.path.abspath(path)) if is_path else str(model)


def _existing(path: Path, revision: str | None) -> Path:
    if path.is_file() and path.suffix != ".gguf":
        raise ModelLoadError(f"{path} is a file: give the folder that holds the model, or a .gguf file")
    if revision is not None:
        raise ModelLoadError(f"revision={revision!r} goes with a Hugging Face id, and {path} is on this machine")
    if path.is_dir() and not os.path.lexists(path / "config.json"):
        held = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"it holds {held[0]}: give the path of a .gguf file itself" if held else "is it a model folder?"
        raise ModelLoadError(f"{path} has no config.json: {hint}")
    return path
