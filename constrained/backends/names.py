"""The names of the grammar backends, apart from what they import."""

from __future__ import annotations

from typing import Literal, get_args

GrammarBackendName = Literal["native", "outlines", "llguidance", "xgrammar"]

GRAMMAR_BACKENDS: tuple[str, ...] = get_args(GrammarBackendName)
