"""The command line, run in this process on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import palmette as pt
from palmette.cli.app import app

Run = Callable[..., Result]
UseEngine = Callable[..., pt.MockBackend]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder instead of the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PALMETTE_CACHE", str(folder))
    return folder


@pytest.fixture
def palmette() -> Run:
    """Run `palmette` with these words."""

    def run(*words: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], input=stdin, prog_name="palmette")

    return run


@pytest.fixture
def use_engine(monkeypatch: pytest.MonkeyPatch) -> UseEngine:
    """Let commands start a `MockBackend` with these answers instead of a model."""

    def use(answers: object = (), **options: object) -> pt.MockBackend:
        backend = pt.MockBackend(answers, **options)  # type: ignore[arg-type]  # checked by MockBackend

        @contextmanager
        def launch(model: str | None = None, **settings: object) -> Iterator[pt.MockBackend]:
            yield backend

        monkeypatch.setattr("palmette.runtime.launch", launch)
        monkeypatch.setattr("palmette.runtime.default_model.ensure_default_model", lambda progress: Path())
        return backend

    return use


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a command starts an engine: what it refuses, it must refuse before."""

    def launch(model: str | None = None) -> None:
        raise AssertionError("the command started an engine")

    monkeypatch.setattr("palmette.runtime.launch", launch)
    monkeypatch.setattr("palmette.runtime.default_model.ensure_default_model", launch)
