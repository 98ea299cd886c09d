"""Every example runs on the default model, and stays short."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from palmette.runtime.engine import Engine

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
MOST_LINES = 60


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    """No example is longer than 60 lines."""
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.default_model
def test_hello(default_engine: Engine) -> None:
    """The smallest program answers with some text."""
    assert load("hello").hello.run(backend=default_engine)["greeting"].strip()


@pytest.mark.default_model
def test_fork_and_judge(default_engine: Engine) -> None:
    """Three grades, a side and a summary that fits its schema."""
    state = load("fork_and_judge").judge.run(backend=default_engine)
    assert all(grade in "12345" for grade in state["grade"])
    assert len(state["grade"]) == 3
    assert state["side"] in ("for", "against")
    assert json.loads(state["summary"])["verdict"] in ("publish", "revise", "reject")


@pytest.mark.default_model
def test_extract(default_engine: Engine) -> None:
    """The extracted value is a model."""
    example = load("extract")
    meeting = example.extract.run(backend=default_engine)["meeting"]
    assert isinstance(meeting, example.Meeting)
    assert meeting.person


@pytest.mark.default_model
def test_classify(default_engine: Engine) -> None:
    """A batch of messages: each gets one of the moods, and the header comes from the cache."""
    example = load("classify")
    items = [json.loads(line) for line in (FOLDER / "items.jsonl").read_text().splitlines()]
    states = example.classify.run_batch([*items, {"message": example.MESSAGES[0]}], backend=default_engine)
    assert {state["mood"].strip() for state in states} <= {"angry", "happy", "neutral"}
    assert len(items) == 4


@pytest.mark.default_model
def test_tools(default_engine: Engine) -> None:
    """The agent calls tools by valid calls and ends with an answer."""
    example = load("tools")
    state = example.agent.run(backend=default_engine)
    calls = [state[name] for name in state.variable_names()]
    assert all(call.tool in (example.population, example.add, example.answer) for call in calls)
    assert state.ret_value == str(calls[-1].run())


@pytest.mark.default_model
def test_agent(default_engine: Engine) -> None:
    """It thinks before each step, every call is whole and its result is read, and it ends with an answer in words."""
    example = load("agent")
    state = example.agent.run(backend=default_engine)
    steps = [state[name] for name in state.variable_names() if name.startswith("step_")]
    calls = [step for step in steps if not isinstance(step, str)]
    results = [message["content"] for message in state.messages() if message["role"] == "tool"]
    assert results == [str(call.run()) for call in calls] != []
    answers = [step for step in steps if isinstance(step, str)] or [state["answer"]]
    assert [state.ret_value] == answers
    assert all(state[f"thought_{number}"] for number in range(len(steps)))


@pytest.mark.default_model
def test_retrieval(default_engine: Engine) -> None:
    """The paragraphs that were retrieved are in the prompt, and the answer cites one of all."""
    example = load("retrieval")
    state = example.answer.run(backend=default_engine)
    assert state.ret_value[0] == "pear"
    assert state["reply"]["source"] in example.PARAGRAPHS
    assert example.PARAGRAPHS["pear"] in state.text()
    assert example.PARAGRAPHS["cider"] not in state.text()


@pytest.mark.default_model
def test_reflection(default_engine: Engine) -> None:
    """The result is the last draft, and what the critic said is in none of the writer's messages."""
    example = load("reflection")
    state = example.write.run(backend=default_engine)
    assert state.ret_value == state["draft"] != ""
    assert "Is it easy to read?" not in state.text()
    assert len(state.messages()) >= 3


@pytest.mark.default_model
def test_async_agents(default_engine: Engine) -> None:
    """Each of the three gives an opinion of the type."""
    example = load("async_agents")
    opinions = asyncio.run(example.discuss(default_engine))
    assert [opinion.partition(":")[0] for opinion in opinions] == example.ROLES
    assert all(any(f": {word}, " in opinion for word in ("agree", "disagree", "unsure")) for opinion in opinions)


@pytest.mark.default_model
def test_notebook_display(default_engine: Engine, tmp_path: Path) -> None:
    """The page shows the answers of both branches."""
    example = load("notebook_display")
    state = example.names.run(backend=default_engine)
    example.write_page(state, tmp_path / "names.html")
    page = (tmp_path / "names.html").read_text(encoding="utf-8")
    assert all(name in page for name in [*state["name"], state["better"]])


@pytest.mark.default_model
def test_chat_streams(default_engine: Engine) -> None:
    """The streamed pieces join to the answer."""
    state: Any = load("chat").chat.run(backend=default_engine, stream=True)
    assert "".join(state.text_iter("answer_0")) == state["answer_0"]
    assert "".join(state.text_iter("answer_1")) == state["answer_1"]
