"""The guides' code runs as it stands, and what they name exists."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from palmette.runtime.config import EngineSettings
from palmette.runtime.models.families import ARCHITECTURES

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
GUIDE = GUIDES / "language.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_guide_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks run in order, in one namespace; a failure points at the guide's own line."""
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 10
    linecache.cache[str(GUIDE)] = (len(text), None, text.splitlines(keepends=True), str(GUIDE))
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # dataclasses look their module up
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(GUIDE), "exec", dont_inherit=True), vars(module))
    assert "gen grade  '4'" in capsys.readouterr().out


def test_the_page_about_models_is_true() -> None:
    """It has every architecture in its table, and the settings that it names exist."""
    text = (GUIDES / "models.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(ARCHITECTURES)
    named = set(re.findall(r"launch\([^)]*?\b(\w+)=", text))
    assert {"revision", "offline", "dtype", "generation_config", "model_impl"} <= named
    assert named <= EngineSettings.__annotations__.keys()
    ast.parse("import palmette as pt\n" + "".join(block[1] for block in BLOCK.finditer(text)))


@pytest.mark.parametrize("page", sorted(GUIDES.parent.rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page in docs/ names a file or folder."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
