"""The compiled grammars that an engine keeps."""

from __future__ import annotations

from typing import cast

import pytest

from palmette.constrained import CompiledGrammar, Grammar
from palmette.runtime.grammar_cache import GrammarCache, memory_bytes


class Sized:
    """A compiled grammar that says how large it is."""

    def __init__(self, size: int) -> None:
        self.memory_bytes = size


def sized(size: int) -> CompiledGrammar:
    return cast("CompiledGrammar", Sized(size))


def grammar(name: str) -> Grammar:
    return Grammar.regex(name)


def kept(cache: GrammarCache, names: str) -> str:
    """Those of `names` that are kept; asking does not count as use."""
    return "".join(name for name in names if grammar(name) in cache._compiled)


def test_what_was_used_longest_ago_goes_first() -> None:
    """Number and bytes are bounded; asking for a grammar is a use of it."""
    cache = GrammarCache(capacity=2, memory_bytes=100)
    for name in "ab":
        cache.put(grammar(name), sized(10))
    assert cache.get(grammar("a")) is not None
    cache.put(grammar("c"), sized(10))
    assert kept(cache, "abc") == "ac"
    assert cache.get(grammar("b")) is None
    cache.put(grammar("d"), sized(95))
    assert kept(cache, "abcd") == "d"
    assert cache.used_bytes == 95


def test_a_grammar_that_grows_while_it_is_used_is_counted_as_it_is_now() -> None:
    """Sizes are asked for anew, so growth pushes the others out; the grammar in use itself stays."""
    cache = GrammarCache(memory_bytes=100)
    growing = Sized(10)
    cache.put(grammar("other"), sized(50))
    cache.put(grammar("growing"), cast("CompiledGrammar", growing))
    growing.memory_bytes = 1000
    assert cache.get(grammar("growing")) is not None
    assert len(cache) == 1
    assert cache.get(grammar("other")) is None


def test_forgotten_grammars_are_gone() -> None:
    """Forgetting one that is not kept is allowed."""
    cache = GrammarCache()
    cache.put(grammar("a"), sized(1))
    for _ in range(2):
        cache.forget(grammar("a"))
    assert cache.get(grammar("a")) is None


@pytest.mark.parametrize("size", [0, 12345])
def test_sizes(size: int) -> None:
    """A compiled grammar that does not say how large it is counts as a fixed size."""
    assert memory_bytes(sized(size)) == size
    assert memory_bytes(cast("CompiledGrammar", object())) > 0
