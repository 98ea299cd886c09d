"""Whether a whole text matches a grammar, without a model's vocabulary."""

from __future__ import annotations

import sys
import threading
from functools import cache, lru_cache

from .compiled import CompiledGrammar
from .compiler import compile_grammar, compile_plain
from .grammar import Grammar
from .vocabulary import Vocabulary

_SHORT_BYTES = 2000

_lock = threading.Lock()  # automata grow while they are followed


def matches(grammar: Grammar, text: str) -> bool:
    """Whether `grammar` matches `text` in full: what a model held to `grammar` could have answered.

    The automata of the grammars last used are kept. Safe to call from several threads. Short texts take no numba.

    Raises:
        GrammarError: see `compile_grammar`.
    """
    data = text.encode("utf-8", "surrogatepass")
    is_plain = len(data) <= _SHORT_BYTES and "numba" not in sys.modules
    with _lock:
        compiled = _compiled(grammar, is_plain)
        state = compiled.start
        for byte in data:
            following = compiled.advance(state, byte)
            if following is None:
                return False
            state = following
        return compiled.is_accepting(state)


@lru_cache(maxsize=64)
def _compiled(grammar: Grammar, is_plain: bool) -> CompiledGrammar:
    return (compile_plain if is_plain else compile_grammar)(grammar, single_bytes())


@cache
def single_bytes() -> Vocabulary:
    """The vocabulary whose token i is byte i."""
    return Vocabulary([bytes((byte,)) for byte in range(256)])
