"""What the grammar of a JSON Schema accepts, whichever order the members of objects come in."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from tests.constrained.reference import BYTES, accepts, compact

from palmette.constrained import CompiledGrammar, CompileLimits, Grammar, compile_grammar
from palmette.constrained.json_options import KeyOrder
from palmette.constrained.limits import DEFAULT_LIMITS


def spaced(instance: Any) -> str:
    """JSON text as ``json.dumps`` writes it by default, characters unescaped."""
    return json.dumps(instance, ensure_ascii=False)


class SchemaGrammar:
    """The grammar of `schema`, in the schema's order of keys and, once that is asked for, in any order."""

    def __init__(self, schema: Any, limits: CompileLimits = DEFAULT_LIMITS, *, formats: bool = True) -> None:
        """Raises GrammarError: see `compile_grammar`."""
        self._schema, self._limits, self._formats = schema, limits, formats
        self.ordered = self._compile("schema")

    @cached_property
    def unordered(self) -> CompiledGrammar:
        """The grammar with ``key_order="any"``."""
        return self._compile("any")

    def _compile(self, key_order: KeyOrder) -> CompiledGrammar:
        grammar = Grammar.json_schema(self._schema, key_order=key_order, formats=self._formats)
        return compile_grammar(grammar, BYTES, limits=self._limits)

    def accepts(self, text: str) -> bool:
        """Whether `text` is accepted as it stands, or with members in any order."""
        return accepts(self.ordered, text) or (_may_be_ordered(text) and accepts(self.unordered, text))

    def accepts_value(self, instance: Any) -> bool:
        """Whether `instance` is accepted, written without spaces."""
        return self.accepts(compact(instance))


def _may_be_ordered(text: str) -> bool:
    return text.count(":") > 1  # else no object has two members
