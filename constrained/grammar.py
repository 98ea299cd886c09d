"""The frozen description of a grammar: what a request carries, and the key of the grammar cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import GrammarError

GrammarKind = Literal["regex", "json_schema", "choices"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a generated text must match, in full.

    Build one with `Grammar.regex`, `Grammar.json_schema` or `Grammar.choices`. Equal grammars compile once: the value
    itself is the key of the cache, so `source` is kept in one canonical spelling.

    Attributes:
        kind: which front end reads `source`.
        source: the pattern; the schema as compact JSON, members in their given order; or the choices as a JSON array.
    """

    kind: GrammarKind
    source: str

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that `pattern` (Python ``re`` syntax) matches in full."""
        if not isinstance(pattern, str):
            raise GrammarError(f"regex must be a string, not {type(pattern).__name__}: {pattern!r}")
        return cls("regex", pattern)

    @classmethod
    def json_schema(cls, schema: Any) -> Grammar:
        """JSON that validates against `schema`.

        Args:
            schema: a mapping, a boolean, JSON text of either, or a class with Pydantic's ``model_json_schema()``.

        Raises:
            GrammarError: `schema` is none of these, or is not JSON.
        """
        return cls("json_schema", json.dumps(_schema_value(schema), separators=(",", ":"), ensure_ascii=False))

    @classmethod
    def choices(cls, choices: Sequence[str]) -> Grammar:
        """Exactly one of `choices`, which must be a non-empty sequence of non-empty, distinct strings."""
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise GrammarError(f"choices must be a list of strings, not {type(choices).__name__}: {choices!r}")
        if not choices or not all(isinstance(choice, str) and choice for choice in choices):
            raise GrammarError(f"choices must be a non-empty list of non-empty strings, not {list(choices)!r}")
        if len(set(choices)) != len(choices):
            raise GrammarError(f"choices must be distinct: {list(choices)!r}")
        return cls("choices", json.dumps(list(choices), separators=(",", ":"), ensure_ascii=False))


def _schema_value(schema: Any) -> Any:
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise GrammarError(f"json_schema is a string but not JSON: {error}") from error
    if isinstance(schema, bool | Mapping):
        return schema
    raise GrammarError(
        f"json_schema must be a mapping, a boolean, JSON text or a Pydantic model class, not {type(schema).__name__}"
    )
