"""Grammars of other engines in Palmette's own: `launch(grammar_backend=...)`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_grammar import ScriptedGrammar
from tests.fake_runner import VOCABULARY, token
from tests.fakes import make_request
from tests.wire import run_tree

from palmette.constrained import Grammar, GrammarBackendError, MaskTable, grammar_backend, matches
from palmette.constrained.backends import GrammarBackendName
from palmette.runtime import launch
from palmette.runtime.constraint import MaskRows, accept_within_budget, check_length, constrain
from palmette.runtime.engine import Engine
from palmette.runtime.errors import RequestError
from palmette.runtime.program import Failed, Generate, Generated, Node, Text
from palmette.runtime.sampling_params import SamplingParams

PACKAGES: dict[GrammarBackendName, str] = {
    "outlines": "outlines_core",
    "llguidance": "llguidance",
    "xgrammar": "xgrammar",
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.skipif(not importlib.util.find_spec(package), reason=f"no {package}"))
        for name, package in PACKAGES.items()
    ],
)
def engine(request: pytest.FixtureRequest, tiny_model_folder: Path) -> Iterator[Engine]:
    with launch(tiny_model_folder, max_total_tokens=4000, grammar_backend=request.param, processes=False) as engine:
        yield engine


def test_answers_match(engine: Engine) -> None:
    """Requests side by side are held to their grammars, forced text included."""
    grammars = [Grammar.regex("[a-c]{2}(yes|no)"), Grammar.choices(["maple", "palm", "é"]), Grammar.json_schema(SCHEMA)]
    nodes: list[Node] = [Text(0, None, "A tree")]
    for i, grammar in enumerate([*grammars, *grammars], 1):
        nodes.append(Generate(i, 0, SamplingParams(max_tokens=150, temperature=1.0, seed=i), grammar=grammar))
    done = run_tree(engine, nodes).done
    for i, grammar in enumerate([*grammars, *grammars], 1):
        event = done[i]
        assert isinstance(event, Generated), event
        text = event.completions[0].text
        if grammar.kind == "json_schema":  # their white space is wider than ours
            text = "".join(text.split())
        assert matches(grammar, text), text


def test_an_incomplete_answer_is_an_error(engine: Engine) -> None:
    """Endings are not known, so a budget that is too small is told at its end; cut off on request."""
    grammar = Grammar.regex("[a-c]{50}!")
    cut = SamplingParams(max_tokens=4, always_complete=False)
    nodes: list[Node] = [
        Text(0, None, "A tree"),
        Generate(1, 0, SamplingParams(max_tokens=4), grammar=grammar),
        Generate(2, 0, cut, grammar=grammar),
    ]
    done = run_tree(engine, nodes).done
    assert isinstance(done[1], Failed)
    assert "does not match its grammar yet" in done[1].message
    assert isinstance(done[2], Generated)
    assert done[2].completions[0].finish_reason == "length"


def test_a_grammar_that_is_refused_fails_its_request(engine: Engine) -> None:
    """The engine's complaint reaches the request, and no other."""
    nodes: list[Node] = [
        Text(0, None, "A tree"),
        Generate(1, 0, SamplingParams(max_tokens=9), grammar=Grammar.regex("(")),
        Generate(2, 0, SamplingParams(max_tokens=9), grammar=Grammar.regex("[ab]")),
    ]
    done = run_tree(engine, nodes).done
    assert isinstance(done[1], Failed)
    assert isinstance(done[2], Generated)


def test_a_missing_package_is_told_before_the_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    grammar_backend.cache_clear()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, "palmette.constrained.backends.llguidance", raising=False)
    with pytest.raises(GrammarBackendError, match=r"pip install 'palmette\[grammars\]'"):
        launch(tmp_path / "no model here", grammar_backend="llguidance", processes=False)


class WithoutEndings(ScriptedGrammar):
    """A scripted grammar that knows no endings, and whose states are those of one text."""

    always_completes = False
    shares_states = False

    def ending_bytes(self, state: int) -> int:
        raise AssertionError("asked for endings")

    shortest_ending = mask_within = ending_bytes  # type: ignore[assignment]  # of another type: neither may be called


def test_without_endings() -> None:
    """No ending is asked for, rows are private, and the end of the budget is judged by the text."""
    grammar = WithoutEndings(Grammar.regex("ab?"), [{token("a"): 1}, {token("b"): 2}, {token("c"): 3}, {}], [1, 3])
    request = make_request("r", [3], grammar=grammar.grammar, max_tokens=2)
    constrain(request, grammar.compiled())
    table = MaskTable(2, VOCABULARY)
    rows = MaskRows(table)
    first, second = rows.acquire(request), rows.acquire(request)
    assert first != second
    for row in (first, second):
        rows.release(row)
    table.check_invariants()
    assert accept_within_budget(request, token("a"))
    check_length(request)
    assert accept_within_budget(request, token("b"))
    with pytest.raises(RequestError, match="does not match its grammar yet"):
        check_length(request)
