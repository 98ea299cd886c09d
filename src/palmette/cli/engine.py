"""Start an engine for a command, telling the person at the terminal what takes time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from .download import DownloadBar
from .errors import note

if TYPE_CHECKING:
    from palmette.lang.backend import Backend

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A folder of safetensors or a .gguf file.", show_default="the built-in model"),
]


@contextmanager
def running_engine(model: str | None) -> Iterator[Backend]:
    """An engine that runs `model`, or the default model, fetched first where it is not in the cache.

    Raises:
        ModelLoadError: the model cannot be found, fetched or read.
    """
    import palmette.runtime

    if model is None:
        _fetch_default_model()
    started = time.monotonic()
    with palmette.runtime.launch(model) as engine:
        note(f"{engine.model_info.name} ready in {time.monotonic() - started:.1f} s")
        yield engine


def _fetch_default_model() -> None:
    """Fetch the default model where it is not in the cache; its files are compared by size only, which is quick."""
    from palmette.runtime.default_model import ensure_default_model

    with DownloadBar() as bar:
        ensure_default_model(bar)
