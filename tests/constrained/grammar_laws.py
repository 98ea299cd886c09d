"""Laws that hold for grammars of every kind, to be called with hypothesis data."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.constrained.reference import Derivatives, token_set

from palmette.constrained import Grammar, Vocabulary, compile_grammar
from palmette.constrained.compiler import lower
from palmette.constrained.limits import CompileLimits, Deadline
from palmette.constrained.simplify import simplify

_LIMITS = CompileLimits()


def check_masks(grammar: Grammar, vocabulary: Vocabulary, data: st.DataObject, steps: int = 6) -> None:
    """Walk at random and compare every mask, and every forced byte, with brute force over derivatives."""
    compiled = compile_grammar(grammar, vocabulary)
    reference = Derivatives(simplify(lower(grammar, _LIMITS, Deadline(_LIMITS)), vocabulary.alphabet))
    state, node = compiled.start, reference.start
    for _ in range(steps):
        allowed = reference.allowed(node, vocabulary)
        assert token_set(compiled.mask(state)) == allowed
        assert compiled.is_accepting(state) == reference.accepts(node)
        forced = compiled.forced_bytes(state)
        assert all(forced.startswith(token[: len(forced)]) for token in _spelled(vocabulary, allowed))
        choices = sorted(allowed - vocabulary.end_ids)
        if not choices:
            break
        token_id = data.draw(st.sampled_from(choices))
        following = compiled.advance(state, token_id)
        assert following is not None
        state = following
        node = reference.after_all(node, vocabulary.token_bytes[token_id] or b"")


def _spelled(vocabulary: Vocabulary, token_ids: set[int]) -> list[bytes]:
    return [vocabulary.token_bytes[each] or b"" for each in token_ids - vocabulary.end_ids]


def steered_answer(
    grammar: Grammar, vocabulary: Vocabulary, slack: int, data: st.DataObject, limits: CompileLimits = _LIMITS
) -> str:
    """A random text held to `mask_within`, with `slack` tokens above the shortest one to spend; it ends in time."""
    compiled = compile_grammar(grammar, vocabulary, limits=limits)
    state, text = compiled.start, b""
    for left in range(len(compiled.shortest_ending(state)) + slack, 0, -1):
        choices = sorted(token_set(compiled.mask_within(state, left)) - vocabulary.end_ids)
        if not choices:
            break
        token_id = data.draw(st.sampled_from(choices))
        following = compiled.advance(state, token_id)
        assert following is not None
        state, text = following, text + (vocabulary.token_bytes[token_id] or b"")
    assert compiled.is_accepting(state)
    return text.decode()
