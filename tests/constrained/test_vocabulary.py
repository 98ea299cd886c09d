"""Token bytes and the trie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.constrained import Vocabulary

_TOKENS = st.lists(st.none() | st.binary(max_size=4), max_size=30)


@given(_TOKENS)
def test_trie_holds_every_ordinary_token_once(tokens: list[bytes | None]) -> None:
    """Reading the flat trie back gives each non-empty token with its id, in nested subtrees."""
    trie = Vocabulary(tokens).trie
    found: list[tuple[bytes, int]] = []
    path = b""
    for node in range(len(trie.byte)):
        path = path[: trie.depth[node] - 1] + bytes([trie.byte[node]])
        assert len(path) == trie.depth[node]
        found.extend((path, int(i)) for i in trie.ids[trie.first[node] : trie.first[node + 1]])
        inside = trie.depth[node + 1 : trie.end[node]]
        assert (inside > trie.depth[node]).all()
        assert trie.end[node] == len(trie.byte) or trie.depth[trie.end[node]] <= trie.depth[node]
    assert found == sorted((token, i) for i, token in enumerate(tokens) if token)


@given(_TOKENS, st.binary(max_size=5))
def test_children_lead_along_bytes(tokens: list[bytes | None], text: bytes) -> None:
    """Following `child` finds exactly the beginnings of tokens, and `token_at` the lowest id there."""
    vocabulary = Vocabulary(tokens)
    node = -1
    for length in range(1, len(text) + 1):
        prefix = text[:length]
        node = vocabulary.child(node, prefix[-1])
        assert (node >= 0) == any(token is not None and token.startswith(prefix) for token in tokens)
        if node < 0:
            break
        assert vocabulary.token_at(node) == (tokens.index(prefix) if prefix in tokens else None)


def test_sizes() -> None:
    """`words` covers every logit; end ids may lie past the tokens."""
    vocabulary = Vocabulary([b"a"] * 32, end_ids=[32], size=33)
    assert (vocabulary.size, vocabulary.words) == (33, 2)
    assert vocabulary.bytes_of(32) is None
    assert Vocabulary([]).words == 0


def test_an_end_token_is_never_text() -> None:
    """An end id's bytes are not in the trie, so text that spells it matches other tokens only."""
    vocabulary = Vocabulary([b"<", b"<end>"], end_ids=[1])
    assert vocabulary.bytes_of(1) is None
    assert len(vocabulary.trie.byte) == 1


def test_bad_arguments() -> None:
    """A size below the tokens and end ids out of range are refused with the values."""
    with pytest.raises(ValueError, match="size must be at least the number of tokens, 2, not 1"):
        Vocabulary([b"a", b"b"], size=1)
    with pytest.raises(ValueError, match=r"end_ids must be in range\(2\), not \[2\]"):
        Vocabulary([b"a", b"b"], end_ids=[1, 2])
