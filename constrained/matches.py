"""Whether a whole text matches a grammar, without a model's vocabulary."""

from __future__ import annotations

import threading
from functools import lru_cache

from .automaton import DEAD, LazyAutomaton
from .compiler import make_automaton, warm_up
from .grammar import Grammar
from .limits import DEFAULT_LIMITS
from .rules import ALL_BYTES

_lock = threading.Lock()  # automata grow while they are followed


def matches(grammar: Grammar, text: str) -> bool:
    """Whether `grammar` matches `text` in full: what a model held to `grammar` could have answered.

    The automata of the grammars last used are kept. Safe to call from several threads.

    Raises:
        GrammarError: see `compile_grammar`.
    """
    with _lock:
        automaton = _automaton(grammar)
        state = automaton.start
        for byte in text.encode("utf-8", "surrogatepass"):
            state = automaton.step(state, byte)
            if state == DEAD:
                return False
        return automaton.is_accepting(state)


@lru_cache(maxsize=64)
def _automaton(grammar: Grammar) -> LazyAutomaton:
    warm_up()
    return make_automaton(grammar, ALL_BYTES, range(256), DEFAULT_LIMITS)
