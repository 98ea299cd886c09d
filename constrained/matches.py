"""Whether a whole text matches a grammar, without a model's vocabulary."""

from __future__ import annotations

import threading
from functools import cache, lru_cache

from .compiled import CompiledGrammar
from .compiler import compile_grammar
from .grammar import Grammar
from .vocabulary import Vocabulary

_lock = threading.Lock()  # automata grow while they are followed


def matches(grammar: Grammar, text: str) -> bool:
    """Whether `grammar` matches `text` in full: what a model held to `grammar` could have answered.

    The automata of the grammars last used are kept. Safe to call from several threads.

    Raises:
        GrammarError: see `compile_grammar`.
    """
    with _lock:
        compiled = _compiled(grammar)
        state: int | None = compiled.start
        for byte in text.encode("utf-8", "surrogatepass"):
            state = compiled.advance(state, byte)
            if state is None:
                return False
        return compiled.is_accepting(state)


@lru_cache(maxsize=64)
def _compiled(grammar: Grammar) -> CompiledGrammar:
    return compile_grammar(grammar, single_bytes())


@cache
def single_bytes() -> Vocabulary:
    """The vocabulary whose token i is byte i."""
    return Vocabulary([bytes((byte,)) for byte in range(256)])
