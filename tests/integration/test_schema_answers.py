"""Answers of the real model under schemas of every kind, at small and large budgets: each validates or was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.grammar_answers import UP_FRONT, Answer, ask, first_error
from benchmarks.grammar_sample import Case, read_cases

from palmette.runtime.engine import Engine

pytestmark = pytest.mark.default_model

SCHEMAS: dict[str, Any] = {
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 2},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": k}, k: {}}, "required": ["kind", k]} for k in "xyz"
        ]
    },
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                },
                "required": ["name", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "pattern": {"type": "string", "pattern": "[0-9]{3}", "maxLength": 9},
    "format": {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}, "required": ["at"]},
    "distinct": {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 3},
    "conditional": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"type": ["integer", "string"]}},
        "required": ["a", "b"],
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"properties": {"b": {"type": "integer"}}},
        "else": {"properties": {"b": {"type": "string"}}},
        "additionalProperties": False,
    },
    "long": {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 8},
    "unsatisfiable": {"type": "string", "minLength": 3, "maxLength": 2},
    "anything": True,
}
CASES = [Case(name, name, schema, (), ()) for name, schema in SCHEMAS.items()]


def wrong(answers: list[Answer]) -> list[Answer]:
    """Answers that neither validate nor were refused before their first token."""
    return [each for each in answers if not each.is_right]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_validates_or_was_refused(default_engine: Engine, temperature: float) -> None:
    """At 24 and at 96 tokens every schema is answered with JSON that validates, or refused before the first token."""
    for max_tokens in (24, 96):
        answers = ask(default_engine, CASES, max_tokens, temperature)
        assert not wrong(answers)
        outcomes = {each.schema_id: each.outcome for each in answers}
        assert outcomes.pop("unsatisfiable") == "UnsatisfiableGrammarError"
        assert outcomes.pop("long") == ("RequestError" if max_tokens == 24 else "valid")
        assert set(outcomes.values()) == {"valid"}, outcomes


def test_collected_schemas(default_engine: Engine, jsonschema_data: Path) -> None:
    """A dozen schemas that people have: every answer validates or was refused before the first token."""
    answers = ask(default_engine, read_cases(jsonschema_data / "jsb_sample.jsonl", limit=12), 64, 1.0)
    assert not wrong(answers)
    assert sum(each.outcome == "valid" for each in answers) >= 3


def test_the_judge() -> None:
    """What counts as right: JSON that python-jsonschema finds valid, formats apart."""
    schema = {"type": "string", "format": "date"}
    assert first_error("x", schema) is None
    assert first_error("x", schema, formats=True) is not None
    assert "at $" in (first_error(3, schema) or "")
    assert "GrammarLimitError" in UP_FRONT
