"""Start an engine for a command, telling the person at the terminal what takes time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

import palmette as pt
from palmette.constrained.backends.names import GrammarBackendName
from palmette.runtime.errors import ModelLoadError

from .download import DownloadBar
from .errors import UsageError, note

if TYPE_CHECKING:
    from palmette.lang.backend import Backend
    from palmette.runtime.config import EngineSettings

_MODEL_HINT = "where no model is named the built-in one runs; `palmette models list` shows what is in the cache"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder of safetensors, a .gguf file or a Hugging Face id.",
        show_default="the built-in model",
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option("--revision", help="Of a Hugging Face id: a branch, tag or commit.", show_default="the main branch"),
]

GrammarBackendOption = Annotated[
    GrammarBackendName | None,
    typer.Option("--grammar-backend", help="What compiles grammars; all but native are extras.", show_default="native"),
]


@contextmanager
def running_engine(
    model: str | None, revision: str | None = None, grammar_backend: GrammarBackendName | None = None
) -> Iterator[Backend]:
    """An engine that runs `model`, or the default model, fetched first where it is not in the cache.

    Raises:
        UsageError: there is no such model, or it cannot be fetched; or the grammar backend is not installed.
        ModelLoadError: the model cannot be read.
    """
    import palmette.runtime

    settings: EngineSettings = {}
    if grammar_backend is not None:
        _check_backend(grammar_backend)
        settings["grammar_backend"] = grammar_backend
    if revision is not None:
        settings["revision"] = revision
    fetch_model(model, revision)
    started = time.monotonic()
    with palmette.runtime.launch(model, processes=False, **settings) as engine:
        note(f"{engine.model_info.name} ready in {time.monotonic() - started:.1f} s")
        yield engine


@contextmanager
def as_default(engine: Backend) -> Iterator[None]:
    """Let a program call other programs on the same engine without naming it."""
    before = pt.default_backend()
    pt.set_default_backend(engine)
    try:
        yield
    finally:
        pt.set_default_backend(before)


def _check_backend(name: GrammarBackendName) -> None:
    from palmette.constrained import GrammarBackendError
    from palmette.constrained.backends import grammar_backend

    try:
        grammar_backend(name)
    except GrammarBackendError as error:
        raise UsageError(str(error)) from error


def fetch_model(model: str | None, revision: str | None = None) -> None:
    """Fetch a model where it is not in the cache; the default one's files are compared by size only, which is quick."""
    from palmette.runtime import default_model
    from palmette.runtime.model_path import find_model

    with DownloadBar() as bar:
        if model is None and revision is None:
            default_model.ensure_default_model(bar)
            return
        try:
            find_model(model, bar, revision=revision)
        except ModelLoadError as error:
            raise UsageError(str(error), hint=_MODEL_HINT) from error
