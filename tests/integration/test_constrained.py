"""Constrained answers of the real model: every one matches its grammar in full."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from tests.wire import run_tree

from palmette.constrained import Grammar
from palmette.runtime.engine import Engine
from palmette.runtime.program import Event, Generate, Generated, Node, Text
from palmette.runtime.sampling_params import SamplingParams

pytestmark = pytest.mark.default_model

PATTERNS = (
    r"[1-5]", r"yes|no", r"(red|green|blue) (car|bike)", r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8}", r"[0-9]+(\.[0-9]+)?",
    r"-?(0|[1-9]\d*)", r"(\w+, ){2}\w+", r"[^\n]{1,20}", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"([01]\d|2[0-3]):[0-5]\d", r"#[0-9a-f]{6}", r"(a|b)*c", r"(ab|cd){2,4}", r"x{0,3}y", r"[a-z]+@[a-z]+\.(com|org)",
    r"\((\d{1,3}, )*\d{1,3}\)", r"(?:one|two|three)(?: and (?:one|two|three)){0,2}", r".{5}", r"[\w ]{3,12}\.",
    r"\d{1,3}(\.\d{1,3}){3}", r"[aeiou]{3,6}", r"(true|false|null)", r"[+-]\d+", r"\$\d{1,4}\.\d{2}",
    r"(Mr|Ms)\. [A-Z][a-z]+", r"[A-Z]{2}\d{2}[A-Z]{3}", r"(ha){1,5}!", r"\s?word\s?", r"a?b?c?d", r"[^aeiou\s]{4}",
    r"é+", r"[а-я]{2,6}", r"[一-龥]{1,4}", r"🙂{1,3}", r"(🙂|🙃)+\.", r"café|thé", r"[\u00e0-\u00ff]{2}",
    r"\[\d(,\d)*\]",
    r"\{\}", r"\"[^\"]{0,10}\"", r"'\w*'", r"(\d)(\d)(\d)", r"(?P<year>\d{4})", r"[\d\-]{5}", r"\t\w", r"a{3}",
    r"a{2,}b", r"(a+b+)+c", r"(|x)y", r"[0-9A-F]{2}(:[0-9A-F]{2}){5}", r"\w{1,5}\d*",
    r"(Jan|Feb|Mar|Apr|May|Jun) \d{1,2}", r"v\d+\.\d+\.\d+", r"Answer: (A|B|C|D)", r"[.!?]{1,3}",
    r"(foo|foobar|foobarbaz)", r"\\n", r"\+\d{1,3} \d{4,10}", r"[a-c][x-z]?[0-2]*z",
)  # fmt: skip

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string", "maxLength": 20}, "number": {"type": "integer", "minimum": 1}},
    "required": ["street", "number"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 12},
    {"type": "integer", "minimum": -5, "maximum": 117},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["a", 1, None, {"x": [True]}]},
    {"const": {"kind": "fixed", "list": [1, 2]}},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}, {"type": "null"}]},
    {"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 6},
    ADDRESS,
    {
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 10}, "home": ADDRESS, "tags": {}},
        "required": ["name", "home"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"open": {"type": "boolean"}}},
    {"type": ["integer", "null"], "minimum": 3},
    {
        "type": "object",
        "properties": {"p": {"anyOf": [ADDRESS, {"type": "null"}]}},
        "required": ["p"],
        "additionalProperties": False,
    },
)


def ask(engine: Engine, grammars: list[tuple[Grammar, SamplingParams]]) -> list[str]:
    """The answer to one question under each grammar, all in one tree."""
    nodes: list[Node] = [Text(0, None, "Question: what do you think of it, and when?\nAnswer: ")]
    nodes += [Generate(index + 1, 0, params, grammar) for index, (grammar, params) in enumerate(grammars)]
    done = run_tree(engine, nodes).done
    return [_text(done[index + 1]) for index in range(len(grammars))]


def _text(event: Event) -> str:
    assert isinstance(event, Generated), event
    return event.completions[0].text


def test_regex_answers_match_in_full(default_engine: Engine) -> None:
    """60 patterns, three seeds each: `re.fullmatch` agrees with every answer, however few tokens there are."""
    assert len(PATTERNS) == 60
    cases = [(pattern, seed) for pattern in PATTERNS for seed in range(3)]
    sampling = [SamplingParams(temperature=1.0, seed=seed, max_tokens=(24, 28, 40)[seed]) for _, seed in cases]
    answers = ask(default_engine, [(Grammar.regex(p), s) for (p, _), s in zip(cases, sampling, strict=True)])
    wrong = [(p, answer) for (p, _), answer in zip(cases, answers, strict=True) if not re.fullmatch(p, answer)]
    assert not wrong


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_json_answer_validates(default_engine: Engine, temperature: float) -> None:
    """Answers under a schema are whole JSON texts that validate, at small and at large budgets."""
    budgets = (48, 128)
    cases = [(schema, budget) for schema in SCHEMAS for budget in budgets]
    answers = ask(
        default_engine,
        [(Grammar.json_schema(s), SamplingParams(temperature=temperature, max_tokens=b, seed=5)) for s, b in cases],
    )
    for (schema, _), answer in zip(cases, answers, strict=True):
        jsonschema.validate(json.loads(answer), schema)


TEMPTING = 'Fill in. Keys: {"a": 1, "a": 1, "a": 1}. Numbers: [1, 1, 1, 1]. Words: ["no", "no", "no"].\nAnswer: '
DISTINCT: tuple[dict[str, Any], ...] = (
    {"type": "object", "minProperties": 3, "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 3},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True, "minItems": 5},
    {"type": "array", "items": {"enum": ["no", "yes", "maybe"]}, "uniqueItems": True, "minItems": 3},
)


def distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What `json.loads` makes an object of, where no key comes twice."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_key_and_no_element_comes_twice(default_engine: Engine, temperature: float) -> None:
    """Even where the prompt is full of repetitions, at budgets that the answer only just fits and at large ones."""
    cases = [(schema, budget, seed) for schema in DISTINCT for budget in (24, 40, 96) for seed in range(3)]
    nodes: list[Node] = [Text(0, None, TEMPTING)]
    for index, (schema, budget, seed) in enumerate(cases, 1):
        params = SamplingParams(temperature=temperature, max_tokens=budget, seed=seed)
        nodes.append(Generate(index, 0, params, Grammar.json_schema(schema)))
    done = run_tree(default_engine, nodes).done
    for index, (schema, _, _) in enumerate(cases, 1):
        answer = json.loads(_text(done[index]), object_pairs_hook=distinct_members)
        jsonschema.validate(answer, schema)


def test_forced_tokens_have_logprobs(default_engine: Engine) -> None:
    """A greedy answer is the same with logprobs and without; every token has one, forced ones too."""
    grammar = Grammar.json_schema(ADDRESS, whitespace="none")
    nodes: list[Node] = [Text(0, None, "Question: where do you live?\nAnswer: ")]
    for index, count in enumerate((None, 0, 2), 1):
        nodes.append(Generate(index, 0, SamplingParams(temperature=0.0, max_tokens=48, logprobs=count), grammar))
    done = run_tree(default_engine, nodes).done
    plain, *scored = [event.completions[0] for event in (done[1], done[2], done[3]) if isinstance(event, Generated)]
    assert plain.forced_tokens > 0
    for completion in scored:
        assert completion.text == plain.text
        assert completion.forced_tokens > 0
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
        assert all(entry.logprob <= 0 for entry in completion.logprobs)
