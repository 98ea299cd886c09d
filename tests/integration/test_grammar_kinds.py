"""EBNF, structural tags and reasoning through the engine: answers of a random model are complete."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from tests.wire import run_tree

from palmette.constrained import Grammar, matches
from palmette.runtime.engine import Engine
from palmette.runtime.program import Event, Generate, Generated, Node, Text
from palmette.runtime.sampling_params import SamplingParams

SUMS = Grammar.ebnf('root ::= root "+" item | item\nitem ::= [0-9]{1,3} | "(" root ")"')
CALLS = Grammar.structural_tag(
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f=add>", "schema": {"type": "array", "items": {"type": "integer"}}, "end": "</f>"}],
        "triggers": ["<f="],
    }
)
ONE_CALL = Grammar.structural_tag(
    {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "say: ",
            "content": {"type": "any_text", "excludes": ["a"]},
            "end": ["\n", "."],
        },
    }
)
REASONED = Grammar.reasoning(Grammar.regex("yes|no"), required=True)
BEGUN = Grammar.reasoning(Grammar.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}}), begun=True)

CASES = {
    "ebnf": (SUMS, r"[0-9+()]+"),
    "calls": (CALLS, r"(?s:(?:(?!<f=).)*(?:<f=add>\[[-0-9, .eE+]*\]</f>(?:(?!<f=).)*)*)"),
    "tag": (ONE_CALL, r"say: [^a\n.]*[\n.]"),
    "reasoning": (REASONED, r"(?s:\s{0,2}<think>(?:(?!</think>).)*</think>\s{0,2}(?:yes|no))"),
    "begun": (BEGUN, r"(?s:(?:(?!</think>).)*</think>\s{0,2}\{.*\})"),
}


def answers(engine: Engine, grammar: Grammar, budgets: list[int]) -> list[Event]:
    """What the engine says under `grammar`, one answer a budget and seed."""
    nodes: list[Node] = [Text(0, None, "Question: how many?\nAnswer: ")]
    for index, budget in enumerate(budgets):
        sampling = SamplingParams(temperature=1.0, seed=index, max_tokens=budget)
        nodes.append(Generate(index + 1, 0, sampling, grammar))
    done = run_tree(engine, nodes).done
    return [done[index + 1] for index in range(len(budgets))]


@pytest.mark.parametrize("name", CASES)
def test_answers_are_complete_at_any_budget(tiny_engine: Engine, name: str) -> None:
    """At temperature 1, budgets from the least that the engine takes: every answer matches, none is cut off."""
    grammar, pattern = CASES[name]
    budgets = [*range(1, 30), 48]
    taken = 0
    for event in answers(tiny_engine, grammar, budgets):
        if isinstance(event, Generated):
            taken += 1
            text = event.completions[0].text
            assert matches(grammar, text), text
            assert re.fullmatch(pattern, text), text
        else:
            assert "max_tokens" in str(event)
            assert not taken, "a larger budget was refused after a smaller one was taken"
    assert taken > 5


def test_the_guide_is_true() -> None:
    """Every example of docs/guides/grammars.md gives what it says."""
    guide = Path(__file__).parents[2] / "docs" / "guides" / "grammars.md"
    failed, tried = doctest.testfile(str(guide), module_relative=False)
    assert tried > 10
    assert not failed
