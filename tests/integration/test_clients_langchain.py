"""`langchain-openai` against our server."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel, SecretStr
from tests.native_server import ServedEngine

pytest.importorskip("langchain_openai", reason="46 MB with what it needs; pip install langchain-openai")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


class Tree(BaseModel):
    """A tree."""

    name: Literal["oak", "elm"]
    evergreen: bool


@tool
def weather(city: Literal["Rome", "Paris"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def model(roomy_server: ServedEngine) -> ChatOpenAI:
    """A LangChain model on our server."""
    return ChatOpenAI(
        model="tiny",
        base_url=f"{roomy_server.url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        timeout=60,
        temperature=0,
        max_completion_tokens=100,
    )


def test_invoke(model: ChatOpenAI) -> None:
    """An answer has text, usage and why it ended; several are batched."""
    short = model.model_copy(update={"max_tokens": 6})
    answer = short.invoke([SystemMessage("Be brief."), HumanMessage("Name a tree.")])
    assert isinstance(answer.content, str)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 6
    assert answer.response_metadata["finish_reason"] == "length"
    assert [each.content for each in short.batch(["A", "B", "A"])][::2] == [short.invoke("A").content] * 2


def test_stream(model: ChatOpenAI) -> None:
    """Chunks add up to the answer that comes whole, also in asyncio, and bring the usage."""
    short = model.model_copy(update={"max_tokens": 9})
    whole = short.invoke("Name a tree.").content
    chunks = list(short.stream("Name a tree.", stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == whole
    assert any(chunk.usage_metadata and chunk.usage_metadata["output_tokens"] == 9 for chunk in chunks)

    async def collected() -> str:
        return "".join([str(chunk.content) async for chunk in short.astream("Name a tree.")])

    assert asyncio.run(collected()) == whole


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    """A Pydantic class comes back filled in, by schema and by tool."""
    assert isinstance(model.with_structured_output(Tree, method=method).invoke("Name a tree."), Tree)


def test_json_mode(model: ChatOpenAI) -> None:
    """json_mode gives a dict."""
    assert isinstance(
        model.with_structured_output(method="json_mode", schema=None).invoke("Name a tree as JSON."), dict
    )


def test_tools(model: ChatOpenAI) -> None:
    """A bound tool is called with arguments that it takes, and its result goes back."""
    bound = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    question = HumanMessage("What is the weather?")
    answer = bound.invoke([question])
    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert str(result.content).startswith("sunny in ")
    end = model.bind_tools([weather], tool_choice="none").invoke([question, answer, result], max_tokens=4)
    assert end.content is not None


def test_chains(model: ChatOpenAI) -> None:
    """A prompt template piped into a structured model."""
    chain = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("user", "Name a tree.")]) | (
        model.with_structured_output(Tree)
    )
    assert isinstance(chain.invoke({"how": "brief"}), Tree)
