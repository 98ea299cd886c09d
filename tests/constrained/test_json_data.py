"""Collected schemas with valid and invalid instances, read from the shared folder beside the repository.

By default a part of the sample is run; PALMETTE_FULL_DATA=1 runs all of it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest
from tests.constrained.json_acceptance import SchemaGrammar, spaced
from tests.constrained.reference import BYTES, accepts, compact
from tests.constrained.shared_data import DATA, read_lines, unscored

from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    compile_grammar,
)

FULL = os.environ.get("PALMETTE_FULL_DATA") == "1"
EVERY = 1 if FULL else 6  # of the 829 sampled schemas
EVERY_INDENTED = 10 if FULL else 60
LIMITS = CompileLimits(seconds=20 if FULL else 5)
SHARE_THAT_COMPILES = 0.97  # of the ten splits of JSONSchemaBench; what is unsatisfiable is answered too

# Answers of handmade_cases.jsonl that are policies, by key: the texts on which the default options differ.
POLICIES = {
    "key-order": {'{"b":2,"a":1}'},  # members come in the order of the schema unless key_order="any"
    "whitespace-pattern-bound": {'{ "a": null }'},  # an option of another engine; no space inside brackets by default
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data is not at {DATA}")


def test_handmade_cases() -> None:
    """Every class of public bug report: refused when compiled, or answered rightly but for the listed policies."""
    wrong = []
    for case in read_lines("handmade_cases.jsonl"):
        try:
            grammar = SchemaGrammar(case["schema"])
        except GrammarError:
            if any(example["accept"] for example in case["cases"]):
                wrong.append((case["key"], "refused"))
            continue
        for example in case["cases"]:
            differs = accepts(grammar.ordered, example["text"]) != example["accept"]
            if differs != (example["text"] in POLICIES.get(case["key"], ())):
                wrong.append((case["key"], example))
    assert not wrong


def test_any_key_order_is_an_option() -> None:
    """The handmade case of key order, with the option: both orders, and no duplicate key."""
    (case,) = (case for case in read_lines("handmade_cases.jsonl") if case["key"] == "key-order")
    grammar = SchemaGrammar(case["schema"])
    assert [accepts(grammar.unordered, example["text"]) for example in case["cases"]] == [
        example["accept"] for example in case["cases"]
    ]


def scored(sample: dict[str, Any], skipped: set[tuple[str, int]]) -> list[tuple[str, int, Any]]:
    """The instances of `sample` whose labels hold: (kind, index, instance)."""
    return [
        (kind, index, instance)
        for kind in ("valid", "invalid")
        for index, instance in enumerate(sample[kind])
        if kind == "valid" or (sample["id"], index) not in skipped
    ]


def wrong_answers(sample: dict[str, Any], skipped: set[tuple[str, int]], counts: Counter[str]) -> list[Any]:
    """The instances of `sample` on which its grammar differs from their labels; counts its outcome."""
    instances = scored(sample, skipped)
    try:
        grammar = SchemaGrammar(sample["schema"], LIMITS)
    except UnsatisfiableGrammarError:
        counts["unsatisfiable"] += 1
        return [(sample["id"], kind, index) for kind, index, _ in instances if kind == "valid"]
    except GrammarError as error:
        counts[type(error).__name__] += 1
        return []
    counts["compiled"] += 1
    wrong: list[tuple[Any, ...]] = []
    for kind, index, instance in instances:
        counts[kind] += 1
        try:
            answers = {grammar.accepts(text) for text in (compact(instance), spaced(instance))}
        except GrammarLimitError as error:
            wrong.append((sample["id"], kind, index, str(error)))
            continue
        if answers != {kind == "valid"}:
            wrong.append((sample["id"], kind, index))
    return wrong


def test_sampled_schemas() -> None:
    """No invalid instance is accepted and no valid one rejected, with and without spaces; few schemas are refused."""
    skipped, wrong = unscored(), []
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for sample in read_lines("jsb_sample.jsonl")[::EVERY]:
        of_the_bench = sample["split"] not in ("Handwritten", "Synthesized")
        counts[of_the_bench]["schemas"] += 1
        wrong += wrong_answers(sample, skipped, counts[of_the_bench])
    print(f"ten splits: {dict(counts[True])}; others: {dict(counts[False])}")
    assert not wrong
    bench = counts[True]
    assert bench["compiled"] + bench["unsatisfiable"] >= SHARE_THAT_COMPILES * bench["schemas"]


def test_indented_instances() -> None:
    """With spaces as an option, valid instances are accepted however `json.dumps` lays them out."""
    wrong = []
    for sample in read_lines("jsb_sample.jsonl")[::EVERY_INDENTED]:
        try:
            grammar = Grammar.json_schema(sample["schema"], whitespace="indented", key_order="any")
            compiled = compile_grammar(grammar, BYTES, limits=LIMITS)
        except GrammarError:
            continue  # counted elsewhere
        for instance in sample["valid"]:
            laid_out = (json.dumps(instance, indent=indent, ensure_ascii=False) for indent in (2, 4, "\t"))
            texts = [compact(instance), spaced(instance), *laid_out]
            wrong += [(sample["id"], text) for text in texts if not accepts(compiled, text)]
    assert not wrong
