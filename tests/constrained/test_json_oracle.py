"""Grammars of random JSON Schemas against python-jsonschema: what they accept, and what walking their masks writes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.constrained.json_acceptance import SchemaGrammar
from tests.constrained.json_oracle import Oracle, instances, schemas
from tests.constrained.reference import token_set

from palmette.constrained import (
    CompiledGrammar,
    CompileLimits,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
)

LIMITS = CompileLimits(seconds=5, states=20_000)
_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def grammar_of(schema: Any) -> SchemaGrammar | None:
    """The grammar of `schema`; None where nothing satisfies it. Schemas that are refused are not looked at."""
    try:
        return SchemaGrammar(schema, LIMITS)
    except UnsatisfiableGrammarError:
        return None
    except (UnsupportedGrammarError, GrammarLimitError):
        assume(False)
    except GrammarError as error:
        if "refers to itself" not in str(error):
            raise
        assume(False)
    return None


@given(schemas(), st.lists(instances, min_size=1, max_size=8))
@settings(max_examples=300, deadline=None, suppress_health_check=_SLOW)
def test_acceptance_is_validity(schema: Any, values: list[Any]) -> None:
    """An instance is accepted, in some order of its keys, exactly if it is valid."""
    oracle = Oracle(schema)
    grammar = grammar_of(schema)
    for value in values:
        expected = oracle.says_valid(value)
        if expected is not None:
            assert (grammar is not None and grammar.accepts_value(value)) == expected, value


@given(schemas(), st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=_SLOW)
def test_walks_end_in_valid_instances(schema: Any, data: st.DataObject) -> None:
    """Whatever tokens masks allow, there is an ending, and it leaves an instance that validates, no key twice."""
    oracle = Oracle(schema)
    grammar = grammar_of(schema)
    assume(grammar is not None)
    assert grammar is not None
    for compiled in (grammar.ordered, grammar.unordered):
        text = _written(compiled, data, steps=24)
        value = json.loads(text, object_pairs_hook=_members)
        assert oracle.says_valid(value) is not False, text


def _written(compiled: CompiledGrammar, data: st.DataObject, steps: int) -> bytes:
    """A text that masks allow: up to `steps` bytes at random, and from there the shortest ending."""
    state, text = compiled.start, b""
    for _ in range(steps):
        allowed = sorted(token_set(compiled.mask(state)) - compiled.vocabulary.end_ids)
        if not allowed:
            assert compiled.is_accepting(state), f"a dead end after {text!r}"
            return text
        byte = data.draw(st.sampled_from(allowed))
        following = compiled.advance(state, byte)
        assert following is not None, f"byte {byte} is in the mask after {text!r}, but not allowed"
        state, text = following, text + bytes([byte])
    return text + bytes(compiled.shortest_ending(state))


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs), f"a key stands twice: {pairs!r}"
    return members
