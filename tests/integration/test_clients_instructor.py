"""`instructor` against our server, in each of its ways to get a class filled in."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from tests.native_server import ServedEngine

instructor = pytest.importorskip(
    "instructor",
    reason="its bounds jiter<0.15 and rich<15 contradict openai>=3.57; "
    "pip install --no-deps instructor; pip install docstring_parser tenacity",
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")
"""instructor uses pydantic in ways that pydantic warns of."""

QUESTION = [{"role": "user", "content": "Name a tree."}]


class Tree(BaseModel):
    name: Literal["oak", "elm"]
    evergreen: bool


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_modes(roomy_server: ServedEngine, mode: str) -> None:
    """A class comes back filled in at the first try, by tools and by schema."""
    with openai.OpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", max_retries=0, timeout=60) as plain:
        client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
        options = {"model": "tiny", "messages": QUESTION, "max_tokens": 200, "max_retries": 0, "seed": 3}
        assert isinstance(client.chat.completions.create(response_model=Tree, **options), Tree)


def test_partial(roomy_server: ServedEngine) -> None:
    """A class that is filled in while its text comes."""
    with openai.OpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", max_retries=0, timeout=60) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        parts = list(
            client.chat.completions.create_partial(
                response_model=Tree, model="tiny", messages=QUESTION, max_tokens=60, max_retries=0
            )
        )
    assert Tree.model_validate(parts[-1].model_dump())


def test_async(roomy_server: ServedEngine) -> None:
    """The asyncio client."""

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", timeout=60) as plain:
            client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
            calls = [
                client.chat.completions.create(response_model=Tree, model="tiny", messages=QUESTION, max_tokens=60)
                for _ in range(3)
            ]
            return list(await asyncio.gather(*calls))

    assert all(isinstance(tree, Tree) for tree in asyncio.run(main()))
