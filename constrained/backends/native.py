"""Palmette's own engine as a backend."""

from __future__ import annotations

from palmette.constrained.compiler import compile_grammar
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits
from palmette.constrained.vocabulary import Vocabulary

from .backend import TokenGrammar


class NativeBackend:
    """All kinds of grammars, exact, with known endings."""

    name = "native"

    def compile(self, grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits) -> TokenGrammar:
        """See `palmette.constrained.compile_grammar`."""
        return compile_grammar(grammar, vocabulary, limits=limits)
