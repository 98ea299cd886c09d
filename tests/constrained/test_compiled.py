"""The laws of masks, endings and forced bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, Derivatives, accepts, is_valid, token_set, walk
from tests.constrained.strategies import patterns, schemas, vocabularies

from palmette.constrained import (
    CompiledGrammar,
    Grammar,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_grammar,
)
from palmette.constrained.compiler import lower
from palmette.constrained.limits import CompileLimits, Deadline
from palmette.constrained.rules import NOTHING, Node
from palmette.constrained.simplify import simplify

LIMITS = CompileLimits()


def derivatives(grammar: Grammar, vocabulary: Vocabulary) -> Derivatives:
    """The slow reference of `grammar`."""
    return Derivatives(simplify(lower(grammar, LIMITS, Deadline(LIMITS)), vocabulary.alphabet))


def compiled_or_none(schema: Any, vocabulary: Vocabulary) -> CompiledGrammar | None:
    """A compiled schema, or None where nothing matches it or a conjunction is refused."""
    try:
        return compile_grammar(Grammar.json_schema(schema), vocabulary)
    except (UnsatisfiableGrammarError, UnsupportedGrammarError):
        return None


def check_masks(grammar: Grammar, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Walk at random and compare every mask on the way with brute force."""
    compiled = compile_grammar(grammar, vocabulary)
    reference = derivatives(grammar, vocabulary)
    state, node = compiled.start, reference.start
    for _ in range(6):
        allowed = reference.allowed(node, vocabulary)
        assert token_set(compiled.mask(state)) == allowed
        assert compiled.is_accepting(state) == reference.accepts(node)
        assert compiled.is_final(state) == (reference.accepts(node) and allowed == vocabulary.end_ids)
        choices = sorted(allowed - vocabulary.end_ids)
        if not choices:
            break
        token_id = data.draw(st.sampled_from(choices))
        following = compiled.advance(state, token_id)
        assert following is not None
        state = following
        node = reference.after_all(node, vocabulary.token_bytes[token_id] or b"")


@settings(max_examples=40, deadline=None)
@given(patterns, vocabularies, st.data())
def test_masks_of_patterns_equal_brute_force(pattern: str, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """In every state reached, the mask holds exactly the tokens whose bytes a slow automaton takes one by one."""
    check_masks(Grammar.regex(pattern), vocabulary, data)


@settings(max_examples=40, deadline=None)
@given(schemas, vocabularies, st.data())
def test_masks_of_schemas_equal_brute_force(schema: Any, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """The same for schemas, where tokens span several parts of the grammar."""
    if compiled_or_none(schema, vocabulary) is not None:
        check_masks(Grammar.json_schema(schema), vocabulary, data)


@settings(max_examples=60, deadline=None)
@given(schemas, vocabularies, st.data())
def test_masked_walks_end_in_valid_json(schema: Any, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """A random walk that is steered to its shortest ending always ends in JSON that validates."""
    compiled = compiled_or_none(schema, vocabulary)
    if compiled is None:
        return
    state, text = walk(compiled, lambda allowed: data.draw(st.sampled_from(allowed)), data.draw(st.integers(0, 12)))
    for token_id in compiled.shortest_ending(state):
        following = compiled.advance(state, token_id)
        assert following is not None
        state, text = following, text + (vocabulary.token_bytes[token_id] or b"")
    assert compiled.is_accepting(state)
    assert is_valid(json.loads(text), schema), text


@settings(max_examples=60, deadline=None)
@given(patterns | schemas, vocabularies, st.integers(0, 6), st.data())
def test_mask_within_always_ends_in_time(source: Any, vocabulary: Vocabulary, slack: int, data: st.DataObject) -> None:
    """From any budget that the shortest ending fits, following mask_within ends in an accepting state."""
    grammar = Grammar.regex(source) if isinstance(source, str) else Grammar.json_schema(source)
    try:
        compiled = compile_grammar(grammar, vocabulary)
    except (UnsatisfiableGrammarError, UnsupportedGrammarError):
        return
    state = compiled.start
    for left in range(len(compiled.shortest_ending(state)) + slack, 0, -1):
        within = token_set(compiled.mask_within(state, left))
        assert within <= token_set(compiled.mask(state))
        ending = compiled.shortest_ending(state)
        assert not ending or ending[0] in within
        choices = sorted(within - vocabulary.end_ids)
        if not choices:
            break
        following = compiled.advance(state, data.draw(st.sampled_from(choices)))
        assert following is not None
        state = following
    assert compiled.is_accepting(state)


@settings(max_examples=40, deadline=None)
@given(patterns, st.data())
def test_shortest_endings_are_shortest(pattern: str, data: st.DataObject) -> None:
    """No text of fewer bytes ends in an accepting state: breadth-first search over states finds none."""
    compiled = compile_grammar(Grammar.regex(pattern), BYTES)
    state, _ = walk(compiled, lambda allowed: data.draw(st.sampled_from(allowed)), data.draw(st.integers(0, 4)))
    distance, frontier, seen = 0, {state}, {state}
    while not any(compiled.is_accepting(here) for here in frontier):
        reached = {compiled.advance(here, byte) for here in frontier for byte in token_set(compiled.mask(here)) - {256}}
        frontier = {here for here in reached if here is not None} - seen
        seen |= frontier
        distance += 1
    assert len(compiled.shortest_ending(state)) == distance


@settings(max_examples=60, deadline=None)
@given(patterns, st.data())
def test_forced_bytes_are_what_all_continuations_share(pattern: str, data: st.DataObject) -> None:
    """While the text may not end and one byte only may follow, that byte is forced; nothing else is."""
    reference = derivatives(Grammar.regex(pattern), BYTES)
    compiled = compile_grammar(Grammar.regex(pattern), BYTES)
    state, text = walk(compiled, lambda allowed: data.draw(st.sampled_from(allowed)), data.draw(st.integers(0, 4)))
    node: Node = reference.after_all(reference.start, text)
    for byte in compiled.forced_bytes(state):
        assert reference.allowed(node, BYTES) == {byte}
        node = reference.after(node, byte)
    assert len(reference.allowed(node, BYTES)) != 1 or reference.accepts(node)
    assert node != NOTHING


def test_ids_that_no_mask_allows() -> None:
    """Special ids, empty tokens, ids past the vocabulary and padding bits are never allowed; end ids only at an end."""
    vocabulary = Vocabulary([b"a", None, b"", b"a", b"b", b"a"], end_ids=[5, 9], size=40)
    compiled = compile_grammar(Grammar.regex("a+"), vocabulary)
    assert token_set(compiled.mask(compiled.start)) == {0, 3}
    state = compiled.advance(compiled.start, 3)
    assert state is not None
    assert token_set(compiled.mask(state)) == {0, 3, 5, 9}
    assert compiled.mask(state).shape == (2,)
    for token_id in (1, 2, 4, 5, 6, 39, 40, -1):
        assert compiled.advance(state, token_id) is None


def test_masks_are_cached_and_read_only() -> None:
    """The same state gives the same array, which nobody can write to."""
    compiled = compile_grammar(Grammar.choices(["yes", "no"]), BYTES)
    mask = compiled.mask(compiled.start)
    assert compiled.mask(compiled.start) is mask
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = 1


def test_ending_uses_the_fewest_tokens() -> None:
    """The byte-shortest ending is spelled with the fewest tokens that the vocabulary has for it."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b'"a', b'a"', b'b"}', b'":{"', b"a"], end_ids=[])
    schema = {"const": {"a": {"b": 1}}}
    compiled = compile_grammar(Grammar.json_schema(schema), vocabulary)
    ending = [vocabulary.token_bytes[i] for i in compiled.shortest_ending(compiled.start)]
    assert ending == [b"{", b'"a', b'":{"', b"b", b'"', b":", b"1", b"}", b"}"]


def test_far_endings_are_not_walked() -> None:
    """mask_within with a small budget does not walk an ending of thousands of bytes."""
    compiled = compile_grammar(Grammar.regex("x|(?:a{9000}b){5}"), BYTES)
    assert token_set(compiled.mask_within(compiled.start, 3)) == {ord("x")}


def test_no_budget_allows_nothing() -> None:
    """With no tokens left, or too few for any ending, nothing is allowed."""
    compiled = compile_grammar(Grammar.regex("abc"), BYTES)
    assert not compiled.mask_within(compiled.start, 0).any()
    assert not compiled.mask_within(compiled.start, 2).any()
    assert token_set(compiled.mask_within(compiled.start, 3)) == {ord("a")}


def test_a_vocabulary_that_cannot_spell_the_grammar() -> None:
    """Bytes that no token holds are as good as not in the grammar: an error or fewer ways, never a dead end."""
    digits = Vocabulary([b"1", b"2", b"12"])
    with pytest.raises(UnsatisfiableGrammarError):
        compile_grammar(Grammar.regex("[a-z]+"), digits)
    compiled = compile_grammar(Grammar.regex("1x|[a-z0-9]{2}"), digits)
    assert token_set(compiled.mask(compiled.start)) == {0, 1, 2}


_PLAIN_LOOPS = """
from palmette.constrained import Grammar, Vocabulary, compile_grammar
vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b"ab", b"abb", b"ba", b'a"', b'", "b'])
schema = {"properties": {"a": {"type": "string", "maxLength": 3}, "b": {"pattern": "^[a-c]+$"}}}
for grammar in Grammar.regex("(ab|ba){1,3}c?"), Grammar.json_schema(schema):
    compiled = compile_grammar(grammar, vocabulary)
    state = compiled.start
    for byte in b'{"a": "ab"' if grammar.kind == "json_schema" else b"abba":
        print(compiled.mask(state).tolist(), compiled.shortest_ending(state))
        state = compiled.advance(state, byte)
"""


def test_the_compiled_loops_equal_the_plain_ones() -> None:
    """Masks and endings are the same with numba's machine code and with the same functions as plain Python."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", _PLAIN_LOOPS],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disabled in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 14


def test_recursion_has_no_depth_limit() -> None:
    """A thousand nested arrays are followed without unrolling and without recursion."""
    compiled = compile_grammar(
        Grammar.json_schema({"items": {"$ref": "#"}, "type": "array"}),
        BYTES,
    )
    assert accepts(compiled, "[" * 1000 + "]" * 1000)
    assert not accepts(compiled, "[" * 1000 + "]" * 999)


def test_use_while_others_compile() -> None:
    """One thread masks while others compile grammars over the same vocabulary."""
    compiled = compile_grammar(Grammar.json_schema({}), BYTES)
    failures: list[BaseException] = []

    def compile_many() -> None:
        try:
            for number in range(20):
                other = compile_grammar(Grammar.regex(f"a{{{number}}}[bc]+"), BYTES)
                assert len(other.shortest_ending(other.start)) == number + 1
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=compile_many) for _ in range(2)]
    for thread in threads:
        thread.start()
    state, _ = walk(compiled, lambda allowed: allowed[len(allowed) // 2], 30)
    for thread in threads:
        thread.join()
    assert not failures
    assert compiled.shortest_ending(state) is not None
