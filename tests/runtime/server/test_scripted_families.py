"""Chats of a model that reasons and calls tools as Qwen3 does, over HTTP; what it says is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.native_server import served

from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.engine import Engine
from palmette.runtime.loading import build_scheduler
from palmette.runtime.program import ModelInfo
from palmette.runtime.tokenizer import Tokenizer

ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nFunctions:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    "Answer calls in <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
THOUGHT = "<think>\nLook at the sky.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

Scripted = Callable[[str], openai.OpenAI]


def write_folder(folder: Path) -> Path:
    """The fake model with Qwen3's tokens, which are no special ones, and a template of its form."""
    fake_model.write_folder(folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = len(spec["model"]["vocab"])
    for place, content in enumerate(ADDED):
        spec["added_tokens"].append({"id": first + place, "content": content, "special": False, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


def scripted_engine(folder: Path, script: str) -> Engine:
    """An engine that says `script`, as far as its masks let it, and ends."""
    tokenizer = Tokenizer.load(folder)
    size = len(tokenizer.token_bytes)
    ids = [*tokenizer.encode_text(script), *tokenizer.end_ids]
    runner = fake_model.FakeRunner(fake_model.FakeSizes(4096, size), text_ids=ids, page_size=16, pool_tokens=1 << 16)
    info = ModelInfo(
        name="scripted",
        context_length=4096,
        vocab_size=size,
        chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        special_tokens=tokenizer.special_tokens,
    )
    config = EngineConfig(model=str(folder))
    return Engine(build_scheduler(runner, tokenizer, config), tokenizer, info, seed=0, overlap=True)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """A client of a server whose model says what it is told to, one for each script."""
    folder = write_folder(tmp_path_factory.mktemp("scripted"))
    clients: dict[str, openai.OpenAI] = {}
    with ExitStack() as stack:

        def client_of(script: str) -> openai.OpenAI:
            if script not in clients:
                engine = stack.enter_context(scripted_engine(folder, script))
                url = stack.enter_context(served(engine)).url
                clients[script] = stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0))
            return clients[script]

        yield client_of


def answers(client: openai.OpenAI, *, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """Reasoning, content, calls and finish reason of each answer."""
    fields = {"model": "default", "messages": [{"role": "user", "content": "Warm in Rome?"}], **fields}
    if not stream:
        found = client.chat.completions.create(**fields).choices
        return [
            {
                "reasoning": getattr(choice.message, "reasoning_content", None) or "",
                "content": choice.message.content or "",
                "calls": [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()],
                "finish": choice.finish_reason,
            }
            for choice in found
        ]
    joined: dict[int, dict[str, Any]] = {}
    for chunk in client.chat.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            answer = joined.setdefault(choice.index, {"reasoning": "", "content": "", "calls": {}, "finish": None})
            answer["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            answer["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                name, arguments = answer["calls"].get(call.index, ("", ""))
                answer["calls"][call.index] = (
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments or ""),
                )
            answer["finish"] = choice.finish_reason or answer["finish"]
    return [{**joined[index], "calls": list(joined[index]["calls"].values())} for index in sorted(joined)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("count", [1, 3])
def test_reasoning_is_kept_apart(scripted: Scripted, *, stream: bool, count: int) -> None:
    """Reasoning and answer come in fields of their own, in every answer."""
    client = scripted(THOUGHT + "It is warm.")
    expected = {"reasoning": "Look at the sky.", "content": "It is warm.", "calls": [], "finish": "stop"}
    assert answers(client, stream=stream, n=count) == [expected] * count
    together = answers(client, stream=stream, extra_body={"separate_reasoning": False})
    assert together[0]["content"] == THOUGHT + "It is warm."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_schema_holds_the_answer_alone(scripted: Scripted, *, stream: bool) -> None:
    """What the answer must match begins behind the reasoning."""
    client = scripted(THOUGHT + '{"warm": true}')
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = answers(client, stream=stream, response_format=wanted)[0]
    assert found["reasoning"] == "Look at the sky."
    assert json.loads(found["content"]) == {"warm": True}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("count", [1, 2])
def test_calls_follow_reasoning(scripted: Scripted, choice: str, *, stream: bool, count: int) -> None:
    """Calls behind reasoning, one or several, whether they may come or must."""
    calls = [("weather", '{"city": "Rome"}')]
    for script in (THOUGHT + CALL, THOUGHT + CALL + "\n" + CALL.replace("Rome", "Oslo")):
        expected = {"reasoning": "Look at the sky.", "content": "", "calls": calls, "finish": "tool_calls"}
        found = answers(scripted(script), stream=stream, tools=[TOOL], tool_choice=choice, n=count)
        assert found == [expected] * count
        calls = [*calls, ("weather", '{"city": "Oslo"}')]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_may_be_text_beside_tools(scripted: Scripted, *, stream: bool) -> None:
    """Tools that may be called need not be."""
    found = answers(scripted(THOUGHT + "It is warm."), stream=stream, tools=[TOOL])
    assert found[0] == {"reasoning": "Look at the sky.", "content": "It is warm.", "calls": [], "finish": "stop"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_no_call_where_none_may_be(scripted: Scripted, *, stream: bool) -> None:
    """The model is shown its tools, so that the cached prefix stays the same, and writes no call."""
    client = scripted(THOUGHT + CALL)
    found = answers(client, stream=stream, tools=[TOOL], tool_choice="none", max_tokens=120)[0]
    assert found["calls"] == []
    assert "<tool_call>" not in found["content"]
    messages: Any = [{"role": "user", "content": "Warm in Rome?"}]
    asked: dict[str, Any] = {"model": "default", "messages": messages, "max_tokens": 2}
    sizes = [
        client.chat.completions.create(**asked, **more).usage.prompt_tokens
        for more in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"})
    ]
    assert sizes[0] < sizes[1] == sizes[2]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_calls_are_whole_where_there_is_no_room_for_more(scripted: Scripted, *, stream: bool) -> None:
    """Calls that must come are told as calls, though all the tokens that there were are used up."""
    client = scripted("\n".join([CALL] * 20))
    least = 49  # what the shortest call takes
    for tokens in (least, least + 1, 60, 75, 100, 128):
        found = answers(client, stream=stream, tools=[TOOL], tool_choice="required", max_tokens=tokens)[0]
        assert found["finish"] == "tool_calls", (tokens, found)
        assert found["content"] == ""
        assert all("city" in json.loads(arguments) for _, arguments in found["calls"])
    with pytest.raises(openai.BadRequestError, match=f"takes {least} tokens"):
        answers(client, stream=stream, tools=[TOOL], tool_choice="required", max_tokens=least - 1)
