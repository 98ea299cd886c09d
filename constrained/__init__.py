"""Grammars to automata to token masks: regular expressions, JSON Schema, choices, EBNF, structural tags, reasoning.

No torch; numba is imported with the first mask only.
"""

from .compiled import CompiledGrammar
from .compiler import compile_grammar
from .errors import (
    GrammarError,
    GrammarLimitError,
    PalmetteError,
    TokenRejectedError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
)
from .grammar import Grammar
from .limits import CompileLimits
from .mask_table import MaskTable, MaskTableFullError
from .matcher import Matcher
from .matches import matches
from .stop_pattern import Match, StopPatterns, StopSearch, stop_patterns
from .vocabulary import Vocabulary

__all__ = [
    "CompileLimits",
    "CompiledGrammar",
    "Grammar",
    "GrammarError",
    "GrammarLimitError",
    "MaskTable",
    "MaskTableFullError",
    "Match",
    "Matcher",
    "PalmetteError",
    "StopPatterns",
    "StopSearch",
    "TokenRejectedError",
    "UnsatisfiableGrammarError",
    "UnsupportedGrammarError",
    "Vocabulary",
    "compile_grammar",
    "matches",
    "stop_patterns",
]
