"""Mask rows of a step, and endings that fit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fake_grammar import ScriptedGrammar, scripted_brackets
from tests.fake_runner import VOCABULARY, token, unpack
from tests.fakes import make_request

from palmette.constrained import Grammar, MaskTable, MaskTableFullError, compile_grammar
from palmette.runtime.batch import UNCONSTRAINED
from palmette.runtime.constraint import MaskRows, accept_within_budget, constrain
from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.request import Request

BRACKETS = scripted_brackets("brackets", 12)


def constrained(grammar: ScriptedGrammar, max_tokens: int) -> Request:
    request = make_request("r", [3], grammar=grammar.grammar, max_tokens=max_tokens)
    constrain(request, grammar.compiled())
    return request


def test_a_token_after_which_no_ending_fits_is_refused_once() -> None:
    """The matcher stays where it was, and the next mask leaves the token out."""
    request = constrained(BRACKETS, 12)
    assert not request.steered
    assert not accept_within_budget(request, token("b"))
    assert request.matcher is not None
    assert request.matcher.state == 0
    assert request.steered
    masks = MaskRows(MaskTable(4, VOCABULARY))
    row = masks.acquire(request)
    updates = masks.take_updates()
    assert updates is not None
    allowed = unpack(updates[1][updates[0].tolist().index(row)])
    assert not allowed[token("b")]
    assert allowed[token("a")]
    with pytest.raises(EngineError, match="ending after it takes 13 of 11 tokens"):
        accept_within_budget(request, token("b"))


def test_private_rows_are_used_near_the_end_only() -> None:
    """Far from the end of the budget the grammar's own row serves, shared by all in that state."""
    table = MaskTable(4, VOCABULARY)
    masks = MaskRows(table)
    far = [masks.acquire(constrained(BRACKETS, 100)) for _ in range(2)]
    near = [masks.acquire(constrained(BRACKETS, 3)) for _ in range(2)]
    assert len(set(far)) == 1
    assert len({*far, *near}) == 3
    for row in far + near:
        masks.release(row)
    table.check_invariants()


def test_endings_far_away_are_not_measured() -> None:
    """With a large budget a token costs no walk to the end of the grammar."""
    measured = 0

    class Counting(ScriptedGrammar):
        def shortest_ending(self, state: int) -> tuple[int, ...]:
            nonlocal measured
            measured += 1
            return super().shortest_ending(state)

    counting = Counting(Grammar.regex("c"), BRACKETS.transitions, [0])
    request = constrained(counting, 100)
    before = measured
    assert accept_within_budget(request, token("b"))
    assert measured == before


def test_no_grammar_no_mask() -> None:
    """An unconstrained request has no row."""
    masks = MaskRows(MaskTable(1, VOCABULARY))
    assert masks.acquire(make_request("r", [3])) == UNCONSTRAINED
    masks.release(UNCONSTRAINED)
    assert masks.take_updates() is None
    assert MaskRows(None).take_updates() is None


def test_a_full_table_is_told() -> None:
    """With every row in use the request that wants another learns it."""
    masks = MaskRows(MaskTable(1, VOCABULARY))
    masks.acquire(constrained(BRACKETS, 100))
    with pytest.raises(MaskTableFullError):
        masks.acquire(constrained(BRACKETS, 3))


def test_no_way_to_end() -> None:
    """A budget that is spent before the text is complete is an error, never a mask of nothing."""
    request = constrained(BRACKETS, 20)
    assert accept_within_budget(request, token("b"))
    request.max_output, request.steered = 3, True
    with pytest.raises(EngineError, match="no ending of the grammar fits the 3 tokens left"):
        MaskRows(MaskTable(1, VOCABULARY)).acquire(request)


def test_an_ending_that_is_far_out_of_reach_is_not_walked() -> None:
    """A grammar whose shortest text is a hundred million bytes ends its request at once, by a lower bound."""
    request = make_request("far", [1], max_tokens=5)
    huge = compile_grammar(Grammar.ebnf('root ::= ("a"{10000}){10000}'), VOCABULARY)
    with pytest.raises(RequestError, match=r"takes \d+ tokens or more, but max_tokens=5"):
        constrain(request, huge)
    assert len(huge._automaton) < 10


def test_too_short_from_the_start() -> None:
    """The error says how many tokens the shortest match takes."""
    chain = ScriptedGrammar(Grammar.regex("ab"), [{token("a"): 1}, {token("b"): 2}, {}], [2])
    with pytest.raises(RequestError, match="takes 2 tokens, but max_tokens=1; allow at least 2"):
        constrained(chain, 1)
    assert np.count_nonzero(unpack(chain.mask(2))) == 2


def test_forced_text_that_does_not_fit_is_left_to_the_model() -> None:
    """The tokenizer may spell forced text in more tokens than are left; that is no error, and nothing is taken."""
    request = constrained(BRACKETS, 20)
    request.max_output, request.steered = 1, True
    assert request.matcher is not None
    state = request.matcher.state
    assert not accept_within_budget(request, token("b"), is_forced=True)
    assert request.matcher.state == state
    with pytest.raises(EngineError, match="was allowed, but the ending after it takes"):
        accept_within_budget(request, token("b"))
