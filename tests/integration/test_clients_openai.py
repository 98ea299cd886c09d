"""The official `openai` client against our server: what its users do, and what they get when they do it wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel
from tests.native_server import ServedEngine

from palmette.runtime.engine import Engine

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name a tree."}]

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Paris"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Tree(BaseModel):
    name: Literal["oak", "elm"]
    evergreen: bool


@pytest.fixture
def client(roomy_server: ServedEngine) -> Iterator[openai.OpenAI]:
    """A client of our server."""
    with openai.OpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


# -- models, completions -----------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    """The one model is listed and found by name; another one is not found."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "palmette"
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.models.retrieve("gpt-9")


def test_completions(client: openai.OpenAI) -> None:
    """A text goes on, for each prompt and as often as was asked, the same for the same seed."""
    first = client.completions.create(model="tiny", prompt=["One", "Two"], n=2, max_tokens=4, seed=1, logprobs=1)
    again = client.completions.create(model="tiny", prompt=["One", "Two"], n=2, max_tokens=4, seed=1)
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert first.choices[0].logprobs is not None
    assert len(first.choices[0].logprobs.token_logprobs or ()) == 4
    assert first.usage is not None
    assert first.usage.completion_tokens == 16


def test_streamed_completions(client: openai.OpenAI) -> None:
    """The pieces join to the text that comes whole."""
    whole = client.completions.create(model="tiny", prompt="One", max_tokens=12, temperature=0)
    pieces = client.completions.create(model="tiny", prompt="One", max_tokens=12, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text


# -- chat --------------------------------------------------------------------------------------------------------------


def test_chat(client: openai.OpenAI) -> None:
    """An answer has its text, why it ended and what it used; the next turn finds the conversation in the cache."""
    answer = client.chat.completions.create(model="tiny", messages=QUESTION, max_completion_tokens=6, temperature=0)
    message = answer.choices[0].message
    assert answer.usage is not None
    assert (message.role, answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("assistant", "length", 6)
    turn = client.chat.completions.create(
        model="tiny",
        messages=[*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": "More."}],
        max_completion_tokens=2,
    )
    assert turn.usage is not None
    assert turn.usage.prompt_tokens_details is not None
    assert (turn.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_streamed_chat(client: openai.OpenAI) -> None:
    """Deltas join to the whole answer, for each of several, and the usage comes last."""
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": QUESTION,
        "max_tokens": 8,
        "temperature": 0.9,
        "seed": 4,
        "n": 2,
    }
    whole = client.chat.completions.create(**options)
    texts, ends, usage = ["", ""], ["", ""], None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == ["length", "length"]
    assert usage is not None
    assert usage.completion_tokens == 16


def test_the_client_s_own_stream(client: openai.OpenAI) -> None:
    """The helper that gathers a stream ends with the same message as the stream's pieces."""
    ends = {"regex": "[a-z ]{9}"}  # the helper takes an answer that was cut off for an error
    with client.chat.completions.stream(model="tiny", messages=QUESTION, max_tokens=30, extra_body=ends) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(pieces) == stream.get_final_completion().choices[0].message.content


def test_logprobs_and_bias(client: openai.OpenAI) -> None:
    """Log-probabilities come one a token with as many of the likeliest as were asked; a bias decides a token."""
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2, logit_bias={"70": 100}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content or ()] == [2, 2, 2]
    assert len({entry.token for entry in logprobs.content or ()}) == 1


def test_stop(client: openai.OpenAI) -> None:
    """A stop string is not part of the text, whole or streamed."""
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": QUESTION,
        "max_tokens": 40,
        "seed": 7,
        "stop": ["e", "a", "o"],
    }
    whole = client.chat.completions.create(**options).choices[0]
    streamed = [
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**options, stream=True)
    ]
    assert "".join(streamed) == whole.message.content
    assert not set("eao") & set(whole.message.content or "")


# -- structured outputs ------------------------------------------------------------------------------------------------


def test_parse(client: openai.OpenAI) -> None:
    """A Pydantic class comes back filled in."""
    answer = client.chat.completions.parse(model="tiny", messages=QUESTION, response_format=Tree, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Tree)


def test_streamed_parse(client: openai.OpenAI) -> None:
    """The same over the client's stream."""
    with client.chat.completions.stream(model="tiny", messages=QUESTION, response_format=Tree, max_tokens=60) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Tree)


def test_json_object(client: openai.OpenAI) -> None:
    """json_object is any JSON object."""
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, response_format={"type": "json_object"}, max_tokens=60
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


@pytest.mark.parametrize(
    "extra",
    [
        {"regex": "[A-C][0-9]{3}"},
        {"ebnf": 'root ::= "A" [0-9]{3}'},
        {"grammar": {"kind": "choices", "source": '["A123", "B456"]'}},
    ],
)
def test_extensions(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    """Palmette's own fields go in extra_body, of every endpoint."""
    answer = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=9, extra_body=extra)
    completion = client.completions.create(model="tiny", prompt="x", max_tokens=9, extra_body=extra)
    response = client.responses.create(model="tiny", input="x", max_output_tokens=20, extra_body=extra)
    for text in (answer.choices[0].message.content or "", completion.choices[0].text, response.output_text):
        assert (len(text), text[0] in "ABC", text[1:].isdigit()) == (4, True, True)


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    """A required call has arguments that its schema allows, and its result goes back in a tool message."""
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=100
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    history: list[Any] = [
        *QUESTION,
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    end = client.chat.completions.create(
        model="tiny", messages=history, tools=[WEATHER], tool_choice="none", max_tokens=4
    )
    assert end.choices[0].message.tool_calls is None


def test_streamed_tools(client: openai.OpenAI) -> None:
    """A streamed call is put together from its pieces, by index."""
    name, arguments, ended = "", "", None
    for chunk in client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
        stream=True,
    ):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == 0
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        ended = chunk.choices[0].finish_reason or ended
    assert (name, ended) == ("weather", "tool_calls")
    assert set(json.loads(arguments)) == {"city", "days"}


def test_tools_of_pydantic_classes(client: openai.OpenAI) -> None:
    """The client makes a tool of a class and reads the arguments back into it."""
    answer = client.chat.completions.parse(
        model="tiny",
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Tree)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert isinstance(call.function.parsed_arguments, Tree)


# -- responses ---------------------------------------------------------------------------------------------------------


def test_responses(client: openai.OpenAI) -> None:
    """/v1/responses answers text, instructions and a conversation."""
    response = client.responses.create(
        model="tiny", instructions="Be brief.", input="Name a tree.", max_output_tokens=6, temperature=0
    )
    assert response.usage is not None
    assert (response.status, response.usage.output_tokens) == ("incomplete", 6)
    assert isinstance(response.output_text, str)
    turns: list[Any] = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "C"},
    ]
    assert client.responses.create(model="tiny", input=turns, max_output_tokens=2).object == "response"


def test_parsed_responses(client: openai.OpenAI) -> None:
    """A class given as text_format comes back filled in."""
    response = client.responses.parse(model="tiny", input="Name a tree.", text_format=Tree, max_output_tokens=60)
    assert isinstance(response.output_parsed, Tree)


def test_streamed_responses(client: openai.OpenAI) -> None:
    """The deltas join to the text of the response that the last event holds."""
    text, final = "", None
    for event in client.responses.create(
        model="tiny", input="Name a tree.", max_output_tokens=8, temperature=0, stream=True
    ):
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type in ("response.completed", "response.incomplete"):
            final = event.response
    assert final is not None
    assert final.output_text == text


# -- async, and what goes wrong ----------------------------------------------------------------------------------------


def test_many_async_requests(roomy_server: ServedEngine) -> None:
    """Requests of every kind at once, streamed and not, each with its own answer."""

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", timeout=60) as client:

            async def whole(digit: int) -> str:
                answer = await client.chat.completions.create(
                    model="tiny", messages=QUESTION, max_tokens=9, extra_body={"regex": f"{digit}{{5}}"}
                )
                return answer.choices[0].message.content or ""

            async def streamed(digit: int) -> str:
                chunks = await client.chat.completions.create(
                    model="tiny", messages=QUESTION, max_tokens=9, extra_body={"regex": f"{digit}{{5}}"}, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            texts = await asyncio.gather(*(ask(digit) for digit in range(8) for ask in (whole, streamed)))
        assert texts == [str(digit) * 5 for digit in range(8) for _ in range(2)]

    asyncio.run(main())


def test_a_stream_that_is_left(client: openai.OpenAI, roomy_engine: Engine) -> None:
    """A client that closes a stream ends its generation: the pages come back."""
    stream = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=200, extra_body={"ignore_eos": True}, stream=True
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 60
    while (stats := roomy_engine.stats()).running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stats.running == 0


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
        ({"n": 0}, "n"),
        ({"extra_body": {"regex": "("}}, "regex"),
        ({"extra_body": {"topk": 3}}, "topk"),
        ({"extra_body": {"grammar": {"kind": "choices", "source": "no JSON"}}}, "grammar"),
        ({"extra_body": {"regex": "a", "ebnf": 'root ::= "a"'}}, "ebnf"),
        ({"extra_body": {"min_tokens": 9}}, "min_tokens"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "(?=a)b"}},
                }
            },
            "response_format",
        ),
    ],
)
def test_wrong_requests(client: openai.OpenAI, wrong: dict[str, Any], param: str) -> None:
    """A mistake is a 400 that names its field."""
    with pytest.raises(openai.BadRequestError) as failure:
        client.chat.completions.create(**{"model": "tiny", "messages": QUESTION, "max_tokens": 4, **wrong})
    assert (failure.value.param or "").split(".")[0] == param
    assert failure.value.type == "invalid_request_error"


def test_an_unknown_model(client: openai.OpenAI) -> None:
    """A 404 that says what is served."""
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
