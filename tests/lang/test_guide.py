"""The guides' code runs as it stands, and what they name exists."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.fake_openai import Asked, FakeOpenAI, Reply, says
from tests.native_server import ServedEngine

from palmette.runtime.config import EngineSettings
from palmette.runtime.models.families import ARCHITECTURES

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
GUIDE = GUIDES / "language.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_guide_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All Python blocks run in order, in one namespace; a failure points at the guide's own line."""
    monkeypatch.chdir(tmp_path)  # some write files
    run_blocks(GUIDE, monkeypatch)
    assert "gen grade  '4'" in capsys.readouterr().out


def run_blocks(guide: Path, monkeypatch: pytest.MonkeyPatch, **written: str) -> None:
    """Run a page's Python blocks in one namespace, with `written["there"]` in the place of the page's address."""
    text = guide.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 8
    linecache.cache[str(guide)] = (len(text), None, text.splitlines(keepends=True), str(guide))
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # dataclasses look their module up
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))
        code = block[1].replace("http://127.0.0.1:8000", written.get("there", "http://127.0.0.1:8000"))
        exec(compile("\n" * lines_before + code, str(guide), "exec", dont_inherit=True), vars(module))


def service(asked: Asked) -> Reply:
    """What a service says to the page about backends."""
    card = "Name: Ada Lovelace\nBorn: 1815\nJob: mathematician"
    body = asked.body
    if asked.path == "/completions":
        return says(card.removeprefix("Name:") + "\n\nName: Al", finish="length")
    if "response_format" in body:
        return says('{"answer":"yes"}')
    return says(card if "character" in body["messages"][-1]["content"] else "Paris")


def test_the_page_about_backends_runs(monkeypatch: pytest.MonkeyPatch, tiny_server: ServedEngine) -> None:
    """Its blocks run on a server of Palmette's, on a service that speaks OpenAI's protocol, and on scripts."""
    with FakeOpenAI(service) as openai:
        monkeypatch.setenv("OPENAI_BASE_URL", openai.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        run_blocks(GUIDES / "backends.md", monkeypatch, there=tiny_server.url)


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
