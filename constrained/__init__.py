"""Grammars to automata to token masks: regular expressions, JSON Schema, choices, EBNF, structural tags, reasoning.

No torch; numba is imported with the first mask only. Public names are loaded when they are first used: processes that
compile no grammar import a name or two of this package, and must not wait for its front ends.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .stop_pattern import Match, StopPatterns, StopSearch, stop_patterns
    from .vocabulary import Vocabulary
    from .whole_match import matches

_HOMES = {
    "backends": ("GRAMMAR_BACKENDS", "GrammarBackend", "TokenGrammar", "grammar_backend"),
    "compiled": ("CompiledGrammar",),
    "compiler": ("compile_grammar",),
    "errors": (
        "GrammarBackendError",
        "GrammarError",
        "GrammarLimitError",
        "PalmetteError",
        "TokenRejectedError",
        "UnsatisfiableGrammarError",
        "UnsupportedGrammarError",
        "VocabularyError",
    ),
    "grammar": ("Grammar",),
    "limits": ("CompileLimits",),
    "logits_processor": ("LogitsProcessor",),
    "mask_table": ("MaskTable", "MaskTableFullError"),
    "matcher": ("Matcher",),
    "stop_pattern": ("Match", "StopPatterns", "StopSearch", "stop_patterns"),
    "vocabulary": ("Vocabulary",),
    "whole_match": ("matches",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
