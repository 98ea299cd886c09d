"""The same answers whatever the engine does with its requests: cache, overlap, chunks, policies, pages, processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.wire import run_tree

from palmette.constrained import Grammar
from palmette.lang.backend import Backend
from palmette.runtime import launch
from palmette.runtime.program import Event, Failed, Fork, Generate, Generated, Node, Select, Selected, Text
from palmette.runtime.sampling_params import SamplingParams

STORY = "The old castle stood over the river, and seven birds counted the names of all who walked under it. " * 3
PERSON = (
    '{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,'
    '"maximum":150},"tags":{"type":"array","items":{"enum":["red","green","blue"]},"maxItems":3}},'
    '"required":["name","age"]}'
)
GRAMMARS = (
    None,
    Grammar.json_schema(PERSON),
    Grammar.regex(r"(yes|no|maybe), because [a-z ]{3,20}\."),
    Grammar.ebnf('root ::= item ("," item)*\nitem ::= [a-z]+ "=" [0-9]+'),
    Grammar.regex(r"\d{3}-\d{4}"),
)

BRANCHES = 18

FACTORS: dict[str, tuple[Any, ...]] = {
    "radix_cache": (True, False),
    "overlap": (False, True),
    "chunk_size": (16, 2048),
    "policy": ("lpm", "fcfs", "dfs-weight", "random"),
    "page_size": (1, 16),
    "max_total_tokens": (1_500, 30_000),
}
MATRIX = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
IN_PROCESS = MATRIX[3::23]
"""Six of 128, in which every value of every factor occurs."""
IN_PROCESSES = (MATRIX[41], MATRIX[114])


def tree() -> list[Node]:
    """One program of every kind of request, in branches that share parts of a prompt."""
    nodes: list[Node] = [Text(0, None, STORY), Fork(1, 0, BRANCHES)]
    for branch in range(BRANCHES):
        first = len(nodes)
        grammar = GRAMMARS[branch % len(GRAMMARS)]
        params = SamplingParams(
            temperature=(0.0, 1.0, 0.7)[branch % 3],
            top_p=0.9 if branch % 4 == 0 else 1.0,
            max_tokens=64 if grammar is not None else 12 + branch % 9,
            seed=branch,
            frequency_penalty=0.5 if branch % 7 == 0 else 0.0,
            stop=("e ", "\n\n") if grammar is None and branch % 2 else (),
            logprobs=2 if branch % 11 == 0 else None,
        )
        nodes += [
            Text(first, 1, f" Branch {branch % 13}:"),
            Generate(first + 1, first, params, grammar, n=2 if branch % 9 == 0 else 1, stream=branch % 2 == 0),
            Text(first + 2, first + 1, " And then"),
            Select(first + 3, first + 2, (" nothing", " everything came", " he")),
            Generate(first + 4, first + 3, SamplingParams(temperature=0, max_tokens=6)),
        ]
    return nodes


def answers(backend: Backend) -> dict[int, object]:
    """What the tree comes to: all that may not depend on how it was run."""
    return {node: essence(event) for node, event in run_tree(backend, tree()).done.items()}


def essence(event: Event) -> object:
    """Texts, tokens, ends and choices; no counts of cached tokens, no times."""
    if isinstance(event, Generated):
        return [(each.text, each.token_ids, each.finish_reason, each.matched) for each in event.completions]
    if isinstance(event, Selected):
        return event.choice
    assert not isinstance(event, Failed), event
    return msgspec.to_builtins(event)


@pytest.fixture(scope="module")
def expected(tiny_model_folder: Path) -> Iterator[dict[int, object]]:
    """The answers of the plainest engine there is."""
    with launch(
        str(tiny_model_folder),
        processes=False,
        seed=0,
        max_total_tokens=30_000,
        radix_cache=False,
        overlap=False,
        policy="fcfs",
        page_size=1,
    ) as engine:
        yield answers(engine)


@pytest.mark.xdist_group("same-output")  # the plain answers are made once
@pytest.mark.parametrize("settings", IN_PROCESS, ids=str)
def test_no_setting_changes_an_answer(
    tiny_model_folder: Path, expected: dict[int, object], settings: dict[str, Any]
) -> None:
    """Mixed grammars, streams, selects and forks give the same texts and tokens under every combination."""
    with launch(str(tiny_model_folder), processes=False, seed=0, **settings) as engine:
        assert answers(engine) == expected


@pytest.mark.xdist_group("same-output")
@pytest.mark.parametrize("settings", IN_PROCESSES, ids=str)
def test_processes_change_no_answer(
    tiny_model_folder: Path, expected: dict[int, object], settings: dict[str, Any]
) -> None:
    """Through three processes and their sockets the answers are the same."""
    with launch(str(tiny_model_folder), seed=0, **settings) as runtime:
        assert answers(runtime) == expected
