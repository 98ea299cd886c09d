"""docs/guides/serving.md says what is so: every setting, every endpoint, every code block that can be read."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from palmette.cli.serve_options import default_in_words
from palmette.runtime.engine import Engine
from palmette.runtime.in_process import InProcessService
from palmette.runtime.server.app import create_app
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.setting_table import GROUPS, settings
from palmette.runtime.settings_file import effective_settings

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "serving.md"


@pytest.fixture(scope="module")
def guide() -> str:
    return GUIDE.read_text(encoding="utf-8")


def expected_table(group: str) -> str:
    """The table of a group's settings as the guide must have it."""
    rows = [f"### {group}", "", "| setting | default | what it is |", "|---|---|---|"]
    for setting in settings().values():
        if setting.group == group:
            choices = f": {', '.join(setting.choices)}" if setting.choices else ""
            rows.append(f"| `{setting.name}` | {default_in_words(setting)} | {setting.line}{choices} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("group", GROUPS)
def test_every_setting_is_listed(guide: str, group: str) -> None:
    """The tables have a row for each setting, with its default; a failure shows the table to paste."""
    table = expected_table(group)
    assert table in guide, f"docs/guides/serving.md lacks this table:\n\n{table}"


def test_every_endpoint_is_listed(guide: str, tiny_engine: Engine) -> None:
    """The guide names every endpoint of the OpenAPI page, and no other."""

    async def endpoints() -> set[str]:
        paths = create_app(InProcessService(tiny_engine), ServerSettings()).openapi()["paths"]
        return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    named = set(re.findall(r"`((?:GET|POST|PUT|DELETE) [^`]+)`", guide))
    assert named - {"GET /", "GET /page/state"} == asyncio.run(endpoints())


def test_the_settings_file_of_the_guide_is_one(guide: str, tmp_path: Path) -> None:
    """The TOML example can be read as it stands."""
    (example,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    path = tmp_path / "serve.toml"
    path.write_text(example, encoding="utf-8")
    effective = effective_settings({}, {}, path)
    assert {name for name, chosen in effective.chosen.items() if chosen.source != "default"} == tomllib.loads(
        example
    ).keys()


def test_numbers_in_the_text(guide: str) -> None:
    """A default that the text repeats in brackets after its setting is the setting's."""
    said = re.findall(r"`([a-z_]+)` \((\d+)( s| MiB)?\)", guide)
    assert len(said) >= 6
    for name, number, unit in said:
        default = settings()[name].default
        assert default == int(number) * (1 << 20 if unit == " MiB" else 1), name
