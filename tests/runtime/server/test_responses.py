"""/v1/responses, as OpenAI's client and plain HTTP see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem
from pydantic import BaseModel
from tests.native_server import ServedEngine, served
from tests.tiny_models import CHAT_TEMPLATE, write_tiny_model

from palmette.runtime import launch
from palmette.runtime.engine import Engine
from palmette.runtime.server.errors import ApiError
from palmette.runtime.server.response_store import ResponseStore, StoredResponse
from palmette.runtime.server.responses_output import ResponseOutput

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


class Grade(BaseModel):
    """What a structured answer holds."""

    grade: Literal["good", "bad"]
    points: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def server(tiny_engine: Engine) -> Iterator[ServedEngine]:
    """The tiny model, served."""
    with served(tiny_engine) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServedEngine) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def created(client: openai.OpenAI, **fields: Any) -> Any:
    """A response; greedy and short unless `fields` say otherwise."""
    asked: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 12} | fields
    return client.responses.create(**asked)


def events_of(client: openai.OpenAI, **fields: Any) -> list[Any]:
    """All events of a streamed response."""
    return list(created(client, stream=True, **fields))


def test_text(client: openai.OpenAI) -> None:
    """A text is answered by one message, with what it cost and with what was asked."""
    response = created(client, input="Hello", metadata={"a": "b"}, instructions="Be brief.", user="u")
    assert response.object == "response"
    assert response.metadata == {"a": "b"}
    assert response.instructions == "Be brief."
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0, 1, 12)
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    again = created(client, input="Hello", instructions="Be brief.")
    assert again.output_text == response.output_text
    assert again.usage.input_tokens_details.cached_tokens == response.usage.input_tokens - 1


def test_cut_off(client: openai.OpenAI) -> None:
    """An answer that met max_output_tokens is incomplete, and says why."""
    response = created(client, input="Hello", max_output_tokens=3, extra_body={"ignore_eos": True})
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 3


def test_same_as_chat_completions(client: openai.OpenAI) -> None:
    """Items are answered as the messages that they amount to."""
    messages: list[Any] = [
        {"role": "system", "content": "You are kind.\n\nVery."},
        {"role": "user", "content": "One two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    chat = client.chat.completions.create(model="default", messages=messages, temperature=0, max_tokens=12)
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Very."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "One "}, {"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "three"}]},
        {"role": "user", "content": "four"},
    ]
    response = created(client, instructions="You are kind.", input=items)
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens if chat.usage else False


@pytest.mark.parametrize("temperature", [0, 1])
def test_stream_of_text(client: openai.OpenAI, temperature: float) -> None:
    """Events come in their order, numbered, and their deltas join to the text of the response at the end."""
    events = events_of(client, input="Hello", temperature=temperature, extra_body={"seed": 3})
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    before = ["created", "in_progress", "output_item.added", "content_part.added"]
    after = ["output_text.done", "content_part.done", "output_item.done", events[-1].response.status]
    assert kinds == before + ["output_text.delta"] * (len(kinds) - len(before) - len(after)) + after
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert text == final.output_text == events[-4].text == events[-3].part.text
    assert {event.item_id for event in events[3:-2]} == {final.output[0].id}
    assert events[0].response.status == "in_progress"
    assert events[0].response.id == final.id
    assert final.usage.output_tokens > 0
    if temperature == 0:
        assert text == created(client, input="Hello").output_text


def test_log_probabilities(client: openai.OpenAI) -> None:
    """Asked for by `include` they stand in the message and in its deltas."""
    asked: Any = {"input": "Hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = created(client, **asked).output[0].content[0].logprobs
    assert len(whole) == 12
    assert all(len(entry.top_logprobs) == 2 for entry in whole)
    events = events_of(client, **asked)
    entries = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in whole], abs=1e-4)


def test_structured_outputs(client: openai.OpenAI) -> None:
    """`parse` gives an object of the class that was asked for, from a random model at temperature 1."""
    for _ in range(3):
        response = client.responses.parse(
            model="default", input="Grade it.", text_format=Grade, max_output_tokens=80, temperature=1
        )
        assert response.status == "completed"
        assert isinstance(response.output_parsed, Grade)
    json_object = created(client, input="x", text={"format": {"type": "json_object"}}, max_output_tokens=60)
    assert isinstance(json.loads(json_object.output_text), dict)
    pattern = created(client, input="x", extra_body={"regex": "[ab]{3}"})
    assert set(pattern.output_text) <= {"a", "b"}


def test_structured_stream(client: openai.OpenAI) -> None:
    """The client's helper for streams parses what it has at the end."""
    with client.responses.stream(
        model="default", input="Grade it.", text_format=Grade, max_output_tokens=80, temperature=1
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Grade)


def test_function_calls(client: openai.OpenAI) -> None:
    """A call that is required comes as an item, valid by the function's schema."""
    response = created(
        client, input="Rome?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_output_tokens=80
    )
    assert [item.type for item in response.output] == ["function_call"]
    call = response.output[0]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.status) == ("weather", "completed")
    assert call.call_id.startswith("call_")
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    assert response.tools[0].name == "weather"
    assert response.parallel_tool_calls is False


def test_stream_of_function_calls(client: openai.OpenAI) -> None:
    """Calls are told by an item, deltas of its arguments and their whole; several come one after the other."""
    fields: Any = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 120, "temperature": 1}
    events = events_of(client, input="Rome?", extra_body={"seed": 1}, **fields)
    final = events[-1].response
    assert final.output
    for index, item in enumerate(final.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        kinds = [event.type.removeprefix("response.") for event in own]
        deltas = ["function_call_arguments.delta"] * (len(kinds) - 3)
        assert kinds == ["output_item.added", *deltas, "function_call_arguments.done", "output_item.done"]
        assert "".join(event.delta for event in own[1:-2]) == item.arguments == own[-2].arguments
        assert own[0].item.arguments == ""
        jsonschema.validate(json.loads(item.arguments), PARAMETERS)


def test_conversation_with_a_function(roomy_server: ServedEngine) -> None:
    """The items of a response and the output of its call are sent back, in one list or by the response's id."""
    with openai.OpenAI(base_url=f"{roomy_server.url}/v1", api_key="none", max_retries=0) as client:
        _converse(client, model="tiny", tools=[WEATHER], max_output_tokens=80)


def _converse(client: openai.OpenAI, **fields: Any) -> None:
    choice = {"type": "function", "name": "weather"}
    first = created(client, input="Rome?", tool_choice=choice, **fields)
    call = first.output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    items = [{"role": "user", "content": "Rome?"}, *(item.to_dict() for item in first.output), output]
    whole = created(client, input=items, tool_choice="none", **fields)
    gone_on = created(client, input=[output], previous_response_id=first.id, tool_choice="none", **fields)
    assert gone_on.previous_response_id == first.id
    assert gone_on.output_text == whole.output_text
    assert gone_on.usage.input_tokens == whole.usage.input_tokens
    third = created(client, input="And now?", previous_response_id=gone_on.id, tool_choice="none", **fields)
    assert third.usage.input_tokens > gone_on.usage.input_tokens


def test_stored_responses(client: openai.OpenAI) -> None:
    """A response can be fetched, with its input, until it is forgotten; not so with store=False."""
    response = created(client, input="Hello")
    assert client.responses.retrieve(response.id).output_text == response.output_text
    listed = client.responses.input_items.list(response.id).data
    assert [item.type for item in listed] == ["message"]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    unstored = created(client, input="Hello", store=False)
    with pytest.raises(openai.NotFoundError, match="not stored"):
        created(client, input="Go on.", previous_response_id=unstored.id)


async def _asynchronous(url: str) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "default", "input": "Hello", "temperature": 0, "max_output_tokens": 12}
        whole = await client.responses.create(**asked)
        stream = await client.responses.create(**asked, stream=True)
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        return whole.output_text, "".join(deltas)


def test_asynchronous_client(server: ServedEngine) -> None:
    """OpenAI's asynchronous client gets the same."""
    import asyncio

    whole, streamed = asyncio.run(_asynchronous(server.url))
    assert whole == streamed


def test_aborted_stream_ends_in_a_failure(client: openai.OpenAI, server: ServedEngine) -> None:
    """A stream that cannot go on ends with `response.failed`, which names the error and has what there was."""
    stream = created(client, input="Hello", max_output_tokens=400, stream=True, extra_body={"ignore_eos": True})
    events = []
    for event in stream:
        events.append(event)
        if event.type == "response.created":
            response_id = event.response.id
            server.on_loop(lambda: server.app.state.exchanges.abort(response_id))  # noqa: B023
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error.code == "aborted"
    assert last.sequence_number == len(events) - 1


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({}, "input", 400),
        ({"input": []}, "input", 400),
        ({"input": 3}, "input", 400),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", 400),
        ({"input": [{"content": "x"}]}, "input[0].role", 400),
        ({"input": [{"role": "user"}]}, "input[0].content", 400),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", 400),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", 400),
        (
            {"instructions": "a", "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].tool_call_id",
            400,
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", 400),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name", 400),
        ({"input": [{"type": "function_call", "name": "c"}]}, "input[0].call_id", 400),
        ({"input": "x", "model": "gpt-9"}, "model", 404),
        ({"input": "x", "previous_response_id": "resp_0"}, "previous_response_id", 404),
        ({"input": "x", "background": True}, "background", 400),
        ({"input": "x", "conversation": "c"}, "conversation", 400),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt", 400),
        ({"input": "x", "truncation": "auto"}, "truncation", 400),
        ({"input": "x", "n": 2}, "n", 400),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", 400),
        ({"input": "x", "temperature": -1}, "temperature", 400),
        ({"input": "x", "top_p": 2}, "top_p", 400),
        ({"input": "x", "metadata": {"a": 1}}, "metadata.a", 400),
        ({"input": "x", "max_tokens": 4}, "max_tokens", 400),
        ({"input": "x", "stream_options": {"a": 1}}, "stream_options.a", 400),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type", 400),
        ({"input": "x", "tool_choice": "required"}, "tool_choice", 400),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", 400),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type", 400),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
            "text.format",
            400,
        ),
        ({"input": "x", "regex": "a", "text": {"format": {"type": "json_object"}}}, "regex", 400),
        ({"input": "x", "regex": "("}, "regex", 400),
        ({"input": "x " * 2000}, None, 400),
        (
            {
                "input": "x",
                "tool_choice": "required",
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "minProperties": -1}}],
            },
            "tools[0].parameters",
            400,
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(
    server: ServedEngine, fields: dict[str, Any], param: str | None, status: int, stream: bool
) -> None:
    """What cannot be carried out is refused with a status and the part of the request that is wrong."""
    answer = httpx.post(f"{server.url}/v1/responses", json={**fields, "stream": stream}, timeout=60)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert len(error["message"]) > 10


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a tiny model whose chat template has the answer begin inside its reasoning."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("thinking"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = CHAT_TEMPLATE.replace("assistant\n'", "assistant\n<think>\n'")
    assert "<think>" in config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with (
        launch(str(folder), seed=0, max_total_tokens=4_000, processes=False) as engine,
        served(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_reasoning_comes_first(thinking: openai.OpenAI) -> None:
    """Reasoning is an item of its own before the message, which alone is held to the schema."""
    fields: Any = {"input": "x", "temperature": 1, "max_output_tokens": 100, "extra_body": {"seed": 5}}
    text: Any = {"format": {"type": "json_schema", "name": "g", "schema": Grade.model_json_schema()}}
    response = created(thinking, text=text, **fields)
    reasoning, message = response.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert isinstance(message, ResponseOutputMessage)
    assert reasoning.content
    assert reasoning.content[0].text
    Grade.model_validate_json(response.output_text)
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < 100
    events = events_of(thinking, text=text, **fields)
    deltas = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert deltas == reasoning.content[0].text
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    again = created(thinking, input=[*(item.to_dict() for item in response.output), {"role": "user", "content": "y"}])
    assert again.output


def test_calls_after_reasoning(thinking: openai.OpenAI) -> None:
    """A required call comes behind the reasoning."""
    fields: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    response = created(thinking, input="x", temperature=1, max_output_tokens=120, **fields)
    assert [item.type for item in response.output][-1:] == ["function_call"]
    jsonschema.validate(json.loads(response.output[-1].arguments), PARAMETERS)


def test_reasoning_is_text_where_it_is_not_to_be_separate(thinking: openai.OpenAI) -> None:
    """With separate_reasoning=False a chat's answer is what the model wrote, tags and all."""
    asked: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "g", "schema": Grade.model_json_schema()}},
    }
    split = thinking.chat.completions.create(**asked, seed=2, temperature=1).choices[0].message
    whole = thinking.chat.completions.create(
        **asked, seed=2, temperature=1, extra_body={"separate_reasoning": False}
    ).choices[0]
    reasoning, _, content = (whole.message.content or "").partition("</think>")
    assert (split.to_dict()["reasoning_content"], split.content) == (reasoning.strip(), content.strip())
    assert "reasoning_content" not in whole.message.to_dict()


# -- parts by themselves ----------------------------------------------------------------------------------------------


def stored(name: str, size: int = 0) -> StoredResponse:
    return StoredResponse({"id": name, "output": []}, [{"id": "i", "text": "x" * size}])


def test_store_is_bounded() -> None:
    """The responses used last are kept: so many, and of so many bytes."""
    store = ResponseStore(max_responses=3, max_bytes=1000)
    for name in "abc":
        store.put(stored(name))
    store.get("a")
    store.put(stored("d"))
    with pytest.raises(ApiError):
        store.get("b")
    store.put(stored("large", 700))
    assert store.get("large")
    store.put(stored("larger", 800))
    assert len(store) == 1
    store.put(stored("too large", 2000))
    assert len(store) == 1
    store.remove("larger")
    assert len(store) == 0
    with pytest.raises(ApiError):
        store.remove("larger")


def test_items_in_any_order() -> None:
    """Text behind a call is a message of its own, and every item that begins also ends."""
    events: list[tuple[str, dict[str, Any]]] = []
    output = ResponseOutput(lambda kind, fields: events.append((kind, fields)), with_logprobs=False)
    call = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{"}}
    output.take({"content": "a"}, None)
    output.take({"tool_calls": [call]}, None)
    output.take({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, None)
    output.take({"content": "b"}, None)
    output.finish(is_complete=True)
    assert [item["type"] for item in output.items] == ["message", "function_call", "message"]
    assert output.items[1]["arguments"] == "{}"
    assert all(item["status"] == "completed" for item in output.items)
    kinds = [kind for kind, _ in events]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3


def test_empty_answer() -> None:
    """An answer without anything is a message without text."""
    output = ResponseOutput(lambda kind, fields: None, with_logprobs=False)
    output.finish(is_complete=True)
    assert output.items[0]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
