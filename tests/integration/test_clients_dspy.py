"""`dspy` against our server. Its programs write long prompts, and read fields out of the answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from tests.native_server import ServedEngine

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network for prices
litellm = pytest.importorskip("litellm", reason="252 MB with what it needs; pip install litellm")
dspy = pytest.importorskip("dspy", reason="265 MB with litellm; pip install dspy")

pytestmark = [
    pytest.mark.usefixtures("loops_of_litellm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore:unclosed:ResourceWarning"),
]
"""dspy and litellm use pydantic in ways that pydantic warns of, and close none of the event loops that they make."""


@pytest.fixture
def lm(roomy_server: ServedEngine) -> Iterator[Any]:
    """A dspy model on our server, without dspy's own cache, and with the adapter that asks for JSON schemas.

    litellm is told what the server can do: of a model that it does not know it says no, and dspy would send no schema.
    """
    known = {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}
    litellm.register_model({"openai/tiny": known, "tiny": known})
    model = dspy.LM(
        "openai/tiny",
        engine="litellm",
        api_base=f"{roomy_server.url}/v1",
        api_key="none",
        max_tokens=120,
        cache=False,
        num_retries=0,
        temperature=0.0,
    )
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        yield model


@pytest.mark.parametrize("engine", ["litellm", "lm15"])
def test_plain_call(lm: Any, engine: str) -> None:
    """A model may be called with a text, over litellm and over dspy's own client."""
    model = lm.copy(engine=engine)
    (text,) = model("Name a tree.", max_tokens=6)
    assert text
    assert model.history[-1]["usage"]["completion_tokens"] == 6


def test_predict(lm: Any) -> None:
    """A signature's typed fields are held by the schema that dspy sends, whatever the model knows."""

    class Grade(dspy.Signature):  # type: ignore[misc, name-defined]  # dspy may not be installed
        """Grade an answer."""

        answer: str = dspy.InputField()
        mark: Literal["good", "bad"] = dspy.OutputField()
        certain: bool = dspy.OutputField()

    predicted = dspy.Predict(Grade)(answer="4")
    assert predicted.mark in ("good", "bad")
    assert isinstance(predicted.certain, bool)


def test_several_predictions(lm: Any) -> None:
    """n answers at once become n completions."""
    predicted = dspy.Predict("question -> verdict: bool", n=3, temperature=1.0)(question="Is it?")
    assert [type(each) for each in predicted.completions.verdict] == [bool] * 3
