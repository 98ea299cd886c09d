"""Importing Palmette is cheap, and the import contracts of pyproject.toml bite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palmette import constrained

REPOSITORY = Path(__file__).parents[1]
HEAVY = ("gguf", "interegular", "numba", "rich", "safetensors", "tokenizers", "torch", "transformers", "typer")


def run_python(code: str) -> str:
    """Standard output of `code` in a fresh interpreter."""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(
    "module", ["palmette", "palmette.lang", "palmette.constrained", "palmette.runtime", "palmette.runtime.program"]
)
def test_import_is_light(module: str) -> None:
    """Importing a public module loads no model library, no compiler and no terminal library."""
    loaded = run_python(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))")
    assert not set(HEAVY) & set(json.loads(loaded))


@pytest.mark.parametrize("process", ["server_process", "scheduler_process", "detokenizer_process", "runtime_client"])
def test_processes_import_no_front_ends_of_grammars(process: str) -> None:
    """No process of an engine waits at its start for what compiles grammars."""
    loaded = run_python(f"import json, sys, palmette.runtime.processes.{process}; print(json.dumps(list(sys.modules)))")
    assert not {"compiler", "json_schema", "regex", "vocabulary"} & {
        name.removeprefix("palmette.constrained.") for name in json.loads(loaded)
    }


def test_public_names_of_constrained_are_loaded_when_used() -> None:
    """Every public name of `palmette.constrained` is found by attribute, import and `dir`, and no other is."""
    code = (
        "import palmette.constrained as package\n"
        "import palmette.constrained.whole_match\n"
        "assert callable(package.matches) and package.matches(package.Grammar.regex('a'), 'a')\n"
        "assert set(package.__all__) <= set(dir(package))\n"
        "found = {name: getattr(package, name) for name in package.__all__}\n"
        "print(len(found), hasattr(package, 'nothing'))"
    )
    assert run_python(code).split() == [str(len(constrained.__all__)), "False"]


def test_command_line_imports_no_torch() -> None:
    """Building every command loads neither torch nor transformers: --help and wrong arguments answer at once."""
    loaded = run_python("import json, sys, palmette.cli.app; print(json.dumps(sorted(sys.modules)))")
    assert not {"torch", "transformers", "numba"} & set(json.loads(loaded))


def test_launch_stays_a_function() -> None:
    """`palmette.runtime.launch` is the function, also after someone imported the module of that name."""
    code = "import palmette.runtime.launch, palmette.runtime as runtime; print(callable(runtime.launch))"
    assert run_python(code).strip() == "True"


VIOLATIONS = {
    "constrained/planted_import.py": "import llguidance, msgspec\nimport palmette.runtime.program\n",
    "runtime/planted_import.py": (
        "import gguf, huggingface_hub, pydantic, rich, transformers, triton, zmq\nimport palmette.lang.backend\n"
    ),
    "runtime/clock.py": "import torch\n",
    "lang/planted_import.py": "import torch\nimport palmette.runtime.batch\n",
}


def test_import_contracts_bite(tmp_path: Path) -> None:
    """A copy of the package with a forbidden import of every kind breaks every contract."""
    package = tmp_path / "palmette"
    shutil.copytree(REPOSITORY / "src" / "palmette", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for name, lines in VIOLATIONS.items():
        file = package / name
        old = (
            file.read_text(encoding="utf-8").replace("from __future__ import annotations\n", "")
            if file.exists()
            else ""
        )
        file.write_text(lines + old, encoding="utf-8")
    report = _lint_imports(tmp_path)
    contracts = report.split("Contracts: ")[1]
    assert contracts.startswith("0 kept"), report


def _lint_imports(folder: Path) -> str:
    """What import-linter says about the package in `folder`."""
    program = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run(
        [str(program), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1, answer.stdout + answer.stderr
    return answer.stdout
