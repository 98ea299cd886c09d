"""Calls of a model whose marker is a special token, which neither text shows nor a grammar can spell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from tests.native_server import served
from tests.tiny_models import CHAT_TEMPLATE, write_tiny_model

from palmette.runtime import launch

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: Any = {"name": "weather", "parameters": PARAMETERS}
TEMPLATES = {
    "mistral": '{% if tools %}{{ "[TOOL_CALLS][" }}{% endif %}',
    "mistral_named": '{% if tools %}{{ "[TOOL_CALLS]" + tools[0].function.name + "[ARGS]" }}{% endif %}',
}


@dataclass(frozen=True)
class Marked:
    """A served model, and the id of its marker."""

    client: openai.OpenAI
    marker: int


@pytest.fixture(scope="module", params=TEMPLATES)
def marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marked]:
    """A tiny model with Mistral's special tokens and a chat template that writes them."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp(request.param))
    spec = json.loads((folder / "tokenizer.json").read_text())
    marker = len(spec["model"]["vocab"])
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    for place, text in enumerate(("[TOOL_CALLS]", "[ARGS]") if request.param == "mistral_named" else ("[TOOL_CALLS]",)):
        spec["added_tokens"].append({"id": marker + place, "content": text, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATES[request.param] + CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with (
        launch(str(folder), seed=0, max_total_tokens=6_000, processes=False) as engine,
        served(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert "[TOOL_CALLS]" in engine.model_info.special_tokens
        yield Marked(client, marker)


def completed(marked: Marked, **fields: Any) -> Any:
    asked: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "Rome?"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "max_tokens": 90,
        "temperature": 1,
    }
    return marked.client.chat.completions.create(**asked | fields)


def assert_calls(message: Any) -> None:
    assert message.tool_calls
    for call in message.tool_calls:
        assert call.function.name == "weather"
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_a_call_that_the_model_begins(marked: Marked) -> None:
    """Where the model itself takes the marker the answer goes on with valid calls, and nothing else is shown."""
    bias = {str(marked.marker): 100}
    for seed in range(3):
        answer = completed(marked, logit_bias=bias, seed=seed, parallel_tool_calls=False)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert not answer.choices[0].message.content
        assert_calls(answer.choices[0].message)


def test_streamed(marked: Marked) -> None:
    """Streamed calls join to the same."""
    asked: dict[str, Any] = {"logit_bias": {str(marked.marker): 100}, "seed": 1, "parallel_tool_calls": False}
    whole = completed(marked, **asked).choices[0].message.tool_calls[0].function.arguments
    arguments = ""
    for chunk in completed(marked, stream=True, **asked):
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += call.function.arguments or ""
    assert arguments == whole


def test_text_without_a_call(marked: Marked) -> None:
    """Where the model does not take the marker the answer is text."""
    answer = completed(marked, logit_bias={str(marked.marker): -100}, max_tokens=12)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_come(marked: Marked, choice: Any) -> None:
    """A call that is asked for begins at once, after the marker that the prompt ends with."""
    answer = completed(marked, tool_choice=choice, parallel_tool_calls=False)
    assert not answer.choices[0].message.content
    assert_calls(answer.choices[0].message)
    tools: Any = [{"type": "function", "strict": True, **FUNCTION}]
    response = marked.client.responses.create(
        model="default", input="Rome?", tools=tools, tool_choice="required", max_output_tokens=90
    )
    assert {item.type for item in response.output} == {"function_call"}


@pytest.mark.parametrize("fields", [{"logit_bias": 100}, {"tool_choice": "required"}], ids=["auto", "required"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_several_answers(marked: Marked, fields: dict[str, Any], *, stream: bool) -> None:
    """Each answer has calls of its own, which are valid."""
    if "logit_bias" in fields:
        fields = {"logit_bias": {str(marked.marker): fields["logit_bias"]}}
    asked: dict[str, Any] = {**fields, "n": 3, "seed": 5, "parallel_tool_calls": False}
    if not stream:
        answer = completed(marked, **asked)
        assert [choice.finish_reason for choice in answer.choices] == ["tool_calls"] * 3
        for choice in answer.choices:
            assert_calls(choice.message)
        return
    arguments = ["", "", ""]
    for chunk in completed(marked, stream=True, **asked):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                arguments[choice.index] += call.function.arguments or ""
    for each in arguments:
        jsonschema.validate(json.loads(each), PARAMETERS)


def test_no_call_where_none_may_be(marked: Marked) -> None:
    """Where no tool may be called the marker is never taken, however likely it is."""
    answer = completed(marked, logit_bias={str(marked.marker): 100}, tool_choice="none", max_tokens=12)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
