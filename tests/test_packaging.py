"""What a user installs: the wheel and the source distribution hold the whole package, and only that."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("constrained", "lang", "runtime")


def build(target: str, source: Path, output: Path) -> Path:
    """Build the "wheel" or "sdist" of `source` with hatchling, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(output)]
    answer = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (archive,) = output.iterdir()
    return archive


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", REPOSITORY, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return names_in_wheel(build("wheel", REPOSITORY, tmp_path_factory.mktemp("wheel")))


def python_files() -> set[str]:
    """Every Python file of the package, by its name in a wheel; the three folders stand at the top level."""
    source = REPOSITORY / "src"
    own = {path.relative_to(source) for path in (source / "palmette").rglob("*.py")}
    linked = {
        Path("palmette") / path.relative_to(REPOSITORY)
        for name in FOLDERS
        for path in (REPOSITORY / name).rglob("*.py")
    }
    return {path.as_posix() for path in own | linked}


def test_wheel_holds_every_module(wheel_names: set[str]) -> None:
    """The wheel has the three symlinked folders as real ones, the command line and the typing marker."""
    assert python_files() <= wheel_names
    assert {f"palmette/{folder}/__init__.py" for folder in FOLDERS} <= wheel_names
    assert {"palmette/py.typed", "palmette/__main__.py"} <= wheel_names
    page = {
        f"palmette/runtime/server/static/{name}"
        for name in ("index.html", "key.js", "page.js", "page.css", "docs.html", "docs.js", "docs.css")
    }
    trace = {
        f"palmette/lang/static/trace{name}"
        for name in (".html", ".css", ".js", "_tree.js", "_timeline.js", "_details.js")
    }
    assert page | trace <= wheel_names


def test_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    """No tests, examples or caches: everything is the package or its metadata, license included."""
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in wheel_names} == {"palmette"}
    assert not [name for name in wheel_names if "__pycache__" in name]
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith("entry_points.txt") for name in wheel_names)


def test_sdist_builds_the_same_wheel(sdist: Path, wheel_names: set[str], tmp_path: Path) -> None:
    """A wheel from the unpacked source distribution, which has no symlinks left, holds the same files."""
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # 3.11.4 and newer
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    assert names_in_wheel(build("wheel", source, tmp_path / "wheel")) == wheel_names
