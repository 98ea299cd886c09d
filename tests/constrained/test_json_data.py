"""Collected schemas with valid and invalid instances, read from the shared folder beside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.constrained.reference import BYTES, accepts, compact, in_schema_order

from palmette.constrained import CompileLimits, Grammar, GrammarError, compile_grammar

DATA = Path(__file__).parents[3] / "shared" / "data" / "jsonschema"
LIMITS = CompileLimits(seconds=5, positions=100_000)
EVERY = 4  # one in four of the 829 sampled schemas, for time

# Answers of handmade_cases.jsonl that are policies of ours (see json_text.py, json_numbers.py, json_keywords.py) or
# policies of others, by key: the texts on which we differ.
POLICIES = {
    "float-bounds": {'{"p":5e-1}'},  # a number with bounds is written without an exponent
    "key-order": {'{"b":2,"a":1}'},  # members come in the order of the schema
    "whitespace-pattern-bound": {'{ "a": null }'},  # an option of another engine
    "date-format": {'"2023-13-01"', '"2023-02-30"', '"20230101"'},  # format is an annotation
    "datetime-offset": {'"2024-01-02T03:04:05"', '"2024-01-02 03:04"'},  # format is an annotation
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data is not at {DATA}")


def read_lines(name: str) -> list[Any]:
    """The JSON values of a .jsonl file of the shared folder."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def unscored() -> set[tuple[str, int]]:
    """Invalid instances that are so only by `format`, or only by their label."""
    notes = json.loads((DATA / "label_notes.json").read_text())
    return {(schema_id, index) for found in notes.values() for schema_id, index in found}


def test_handmade_cases() -> None:
    """Every class of public bug report: refused when compiled, or answered rightly but for the listed policies."""
    wrong = []
    for case in read_lines("handmade_cases.jsonl"):
        try:
            compiled = compile_grammar(Grammar.json_schema(case["schema"]), BYTES)
        except GrammarError:
            continue
        for example in case["cases"]:
            differs = accepts(compiled, example["text"]) != example["accept"]
            if differs != (example["text"] in POLICIES.get(case["key"], ())):
                wrong.append((case["key"], example))
    assert not wrong


def test_sampled_schemas() -> None:
    """Of the schemas that compile, no invalid instance is accepted, and no valid one rejected in the schema's order."""
    skipped, wrong = unscored(), []
    counts = {"schemas": 0, "compiled": 0, "valid": 0, "invalid": 0}
    for sample in read_lines("jsb_sample.jsonl")[::EVERY]:
        counts["schemas"] += 1
        schema = sample["schema"]
        try:
            compiled = compile_grammar(Grammar.json_schema(schema), BYTES, limits=LIMITS)
        except GrammarError:
            continue
        counts["compiled"] += 1
        for kind in ("valid", "invalid"):
            for index, instance in enumerate(sample[kind]):
                if kind == "invalid" and (sample["id"], index) in skipped:
                    continue
                counts[kind] += 1
                text = compact(in_schema_order(instance, schema, schema))
                if accepts(compiled, text) != (kind == "valid"):
                    wrong.append((sample["id"], kind, index))
    print(f"coverage: {counts}")
    assert not wrong
    assert counts["compiled"] > 60
