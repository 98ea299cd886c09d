"""What README.md shows is what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_first_program_is_the_example() -> None:
    """The program in the README is the one that `make demo` runs."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    example = (ROOT / "examples" / "fork_and_judge.py").read_text()
    assert len(blocks) == 1
    assert blocks[0].rstrip() in example


def test_its_links_lead_somewhere() -> None:
    """Every relative link names a file or folder of the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_commands_are_targets_of_the_makefile() -> None:
    """Each `make` command that the README names exists."""
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make (\w+)", README))
    assert commands >= {"demo", "test"}
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
