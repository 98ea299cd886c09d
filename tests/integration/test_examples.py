"""Every example runs on the default model, and stays short."""

from __future__ import annotations

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
    """The extracted object is a valid model."""
    example = load("extract")
    meeting = example.Meeting.model_validate_json(example.extract.run(backend=default_engine)["meeting"])
    assert meeting.person


@pytest.mark.default_model
def test_classify(default_engine: Engine) -> None:
    """A batch of messages: each gets one of the moods, and the header comes from the cache."""
    example = load("classify")
    states = example.classify.run_batch([{"message": m} for m in example.MESSAGES], backend=default_engine)
    assert {state["mood"].strip() for state in states} <= {"angry", "happy", "neutral"}


@pytest.mark.default_model
def test_agent(default_engine: Engine) -> None:
    """The agent calls tools by valid JSON and ends with an answer."""
    assert isinstance(load("agent").agent.run(backend=default_engine).ret_value, str)


@pytest.mark.default_model
def test_chat_streams(default_engine: Engine) -> None:
    """The streamed pieces join to the answer."""
    state: Any = load("chat").chat.run(backend=default_engine, stream=True)
    assert "".join(state.text_iter("answer_0")) == state["answer_0"]
    assert "".join(state.text_iter("answer_1")) == state["answer_1"]
