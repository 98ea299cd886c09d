"""The guide's code runs as it stands."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "language.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """All Python blocks run in order, in one namespace; a failure points at the guide's own line."""
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 10
    linecache.cache[str(GUIDE)] = (len(text), None, text.splitlines(keepends=True), str(GUIDE))
    namespace: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(GUIDE), "exec"), namespace)
    assert "gen grade  '4'" in capsys.readouterr().out
