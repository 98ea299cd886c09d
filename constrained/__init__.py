"""Grammars to automata to token masks: regular expressions, JSON Schema, choices, EBNF, structural tags, reasoning.

No torch; numba is imported with the first mask only.
"""

from .backends import GRAMMAR_BACKENDS, GrammarBackend, TokenGrammar, grammar_backend
from .compiled import CompiledGrammar
from .compiler import compile_grammar
from .errors import (
    GrammarBackendError,
    GrammarError,
    GrammarLimitError,
    PalmetteError,
    TokenRejectedError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    VocabularyError,
)
from .grammar import Grammar
from .limits import CompileLimits
from .logits_processor import LogitsProcessor
from .mask_table import MaskTable, MaskTableFullError
from .matcher import Matcher
from .matches import matches
from .stop_pattern import Match, StopPatterns, StopSearch, stop_patterns
from .vocabulary import Vocabulary

__all__ = [
    "GRAMMAR_BACKENDS",
    "CompileLimits",
    "CompiledGrammar",
    "Grammar",
    "GrammarBackend",
    "GrammarBackendError",
    "GrammarError",
    "GrammarLimitError",
    "LogitsProcessor",
    "MaskTable",
    "MaskTableFullError",
    "Match",
    "Matcher",
    "PalmetteError",
    "StopPatterns",
    "StopSearch",
    "TokenGrammar",
    "TokenRejectedError",
    "UnsatisfiableGrammarError",
    "UnsupportedGrammarError",
    "Vocabulary",
    "VocabularyError",
    "compile_grammar",
    "grammar_backend",
    "matches",
    "stop_patterns",
]
