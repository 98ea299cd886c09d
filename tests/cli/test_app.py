"""The program `palmette` as a process, and what all commands share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version

import pytest
from tests.cli.conftest import Run, UseEngine

from palmette.cli.download import DownloadBar


def process(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "palmette", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})


def test_version() -> None:
    """`palmette --version` prints it."""
    answer = process("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"palmette {version('palmette')}\n", "")


def test_help() -> None:
    """`palmette --help` names every command on standard output."""
    answer = process("--help")
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in ("run", "batch", "generate", "models", "env"))


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("batch",),
        ("generate",),
        ("env",),
        ("models",),
        *(("models", c) for c in ("pull", "list", "path", "remove")),
    ],
)
def test_help_of_a_command(palmette: Run, words: tuple[str, ...]) -> None:
    """Every command explains itself."""
    result = palmette(*words, "--help")
    assert result.exit_code == 0
    assert "Usage: palmette" in result.stdout


def test_unknown_command() -> None:
    """A command that does not exist: exit code 2, the message on standard error, no traceback."""
    answer = process("judge")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "No such command" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_env_has_no_secrets() -> None:
    """`palmette env` shows versions, threads and the cache folder, and no other environment variable."""
    answer = process("env", env={"OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_secret", "PALMETTE_CACHE": "/pears"})
    assert answer.returncode == 0
    for expected in (
        f"palmette:          {version('palmette')}",
        "OMP_NUM_THREADS=1",
        "cache:             /pears",
        "gpu:",
        "triton:",
        "flashinfer-python:",
    ):
        assert expected in answer.stdout
    assert "secret" not in answer.stdout


def test_a_closed_pipe_is_quiet() -> None:
    """`palmette env | head -0` prints no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "palmette", "env"]
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert answer.stderr == ""


def test_an_error_of_palmettes_own(palmette: Run, use_engine: UseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw is one line that says so, with exit code 1."""
    use_engine(["A pear."])

    def broken(text: object) -> None:
        raise LookupError("lost")

    monkeypatch.setattr("palmette.cli.generate._print_answer", lambda state, stream: broken(state))
    result = palmette("generate", "Hi")
    assert "error: LookupError: lost\nhint: this may be a bug of Palmette's" in result.stderr
    assert result.exit_code == 1


def test_progress_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal a download shows a bar on standard error; one that never reports shows nothing."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with DownloadBar():
        pass
    assert capsys.readouterr().err == ""
    with DownloadBar() as bar:
        bar("downloading", 0, 100)
        bar("downloading", 100, 100)
    shown = capsys.readouterr()
    assert "downloading the model" in shown.err
    assert shown.out == ""
