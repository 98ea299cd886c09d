"""`litellm` against our server, as an OpenAI-compatible provider."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from tests.native_server import ServedEngine

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network for prices
litellm = pytest.importorskip("litellm", reason="252 MB with what it needs; pip install litellm")

pytestmark = [
    pytest.mark.usefixtures("loops_of_litellm"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::UserWarning:pydantic", "ignore:unclosed:ResourceWarning"
    ),
]
"""litellm uses pydantic in ways that pydantic warns of, and closes none of the event loops that it makes."""

QUESTION = [{"role": "user", "content": "Name a tree."}]


class Tree(BaseModel):
    name: Literal["oak", "elm"]
    evergreen: bool


@pytest.fixture
def options(roomy_server: ServedEngine) -> dict[str, Any]:
    """Where litellm is to go."""
    return {
        "model": "openai/tiny",
        "api_base": f"{roomy_server.url}/v1",
        "api_key": "none",
        "messages": QUESTION,
        "timeout": 60,
        "max_retries": 0,
    }


def test_completion(options: dict[str, Any]) -> None:
    """An answer has text, usage and why it ended."""
    answer = litellm.completion(**options, max_tokens=6, temperature=0)
    assert isinstance(answer.choices[0].message.content, str)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 6)


def test_stream(options: dict[str, Any]) -> None:
    """Chunks add up to the answer that comes whole."""
    whole = litellm.completion(**options, max_tokens=9, temperature=0).choices[0].message.content
    chunks = litellm.completion(**options, max_tokens=9, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_async(options: dict[str, Any]) -> None:
    """Several at once in asyncio, each with its own answer."""

    async def main() -> list[str]:
        calls = [
            litellm.acompletion(**options, max_tokens=9, extra_body={"regex": f"{digit}{{4}}"}) for digit in range(4)
        ]
        return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == ["0000", "1111", "2222", "3333"]


def test_structured_output(options: dict[str, Any]) -> None:
    """A Pydantic class is sent as a schema, and the answer fits it."""
    answer = litellm.completion(**options, max_tokens=60, response_format=Tree)
    assert Tree.model_validate_json(answer.choices[0].message.content)


def test_tools(options: dict[str, Any]) -> None:
    """A required call has arguments that its schema allows."""
    parameters = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": parameters}}]
    answer = litellm.completion(
        **options, max_tokens=100, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("weather", "Rome")


def test_text_completion(options: dict[str, Any]) -> None:
    """A text goes on."""
    del options["messages"]
    model = {**options, "model": "text-completion-openai/tiny"}
    answer = litellm.text_completion(**model, prompt="One", max_tokens=4, temperature=0)
    assert answer.usage.completion_tokens == 4


def test_wrong_requests(options: dict[str, Any]) -> None:
    """Our errors become litellm's own classes, with our words."""
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**options, temperature=-3)
    with pytest.raises(litellm.NotFoundError, match="'tiny'"):
        litellm.completion(**{**options, "model": "openai/gpt-9"})
