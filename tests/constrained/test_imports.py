"""What `import palmette.constrained` brings in, and what it names."""

from __future__ import annotations

import subprocess
import sys

import palmette.constrained


def test_import_is_light() -> None:
    """Importing the folder imports neither numba nor torch, transformers or interegular."""
    program = (
        "import sys\n"
        "from palmette.constrained import Grammar, Vocabulary\n"
        "Grammar.json_schema({}), Vocabulary([bytes([b]) for b in range(256)])\n"
        "print(*(sys.modules.keys() & {'numba', 'torch', 'transformers', 'interegular', 'jsonschema'}))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_public_names() -> None:
    """Every public name exists, and the list is sorted and complete."""
    names = palmette.constrained.__all__
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(palmette.constrained, name) for name in names)
