"""`palmette run --compile`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run

PROGRAM = """
import palmette as pt

@pt.function
def judge(s: pt.ProgramState, essay: str) -> str:
    s += pt.user(essay) + pt.assistant(pt.select("kind", ["long", "short"]))
    if essay == "fail":
        raise ValueError("my own")
    if s["kind"] == "long":
        s += pt.gen("summary")
    return "done"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "judge.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.mark.usefixtures("no_launch")
def test_the_tree_is_printed(palmette: Run, program: Path, tiny_model_folder: Path) -> None:
    """With the model's own template and tokens, up to the first value, and without its weights."""
    result = palmette("run", program, "--compile", "-a", "essay=It is", "--model", tiny_model_folder)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("judge  6 nodes · 1 branch · 1 call, 1 in a row · ")
    assert "tokens of constant text" in lines[0]
    assert any("<|im_start|>user" in line for line in lines)
    assert "select kind  (long | short)" in result.stdout
    assert lines[-1] == 'data-dependent from judge.py:9: if s["kind"] == "long":'


@pytest.mark.usefixtures("no_launch")
def test_what_fails_names_its_line(palmette: Run, program: Path, tiny_model_folder: Path) -> None:
    """An exception of the program's, a missing argument and a wrong model are told as by `run`."""
    result = palmette("run", program, "--compile", "-a", "essay=fail", "--model", tiny_model_folder)
    assert result.exit_code == 1
    assert "judge of judge.py failed at line 8: ValueError: my own" in result.stderr
    assert palmette("run", program, "--compile").exit_code == 2
    result = palmette("run", program, "--compile", "-a", "essay=x", "--model", program.parent)
    assert result.exit_code == 2
    assert "has no config.json" in result.stderr


@pytest.mark.usefixtures("no_launch")
def test_what_only_a_run_has(palmette: Run, program: Path, tmp_path: Path) -> None:
    """--json and --trace go with a run."""
    for words in (["--json"], ["--trace", str(tmp_path / "out")]):
        result = palmette("run", program, "--compile", "-a", "essay=x", *words)
        assert result.exit_code == 2
        assert f"{words[0]} shows how a program ran" in result.stderr


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if an engine is started."""

    def launch(model: str | None = None, **settings: object) -> None:
        raise AssertionError("the command started an engine")

    monkeypatch.setattr("palmette.runtime.launch", launch)
