"""What the tests of JSON Schema's keywords check: texts are accepted exactly if they are valid, and can be ended."""

from __future__ import annotations

import json
from typing import Any

from tests.constrained.reference import BYTES, accepts, compact, is_valid

from palmette.constrained import Grammar, compile_grammar


def check_values(schema: Any, values: list[Any], **options: Any) -> None:
    """Each of `values` is accepted exactly if python-jsonschema finds it valid; `options` are those of the grammar.

    Members of objects among them stand in the order in which the grammar writes them.
    """
    compiled = compile_grammar(Grammar.json_schema(schema, **options), BYTES)
    for value in values:
        for text in (compact(value), json.dumps(value)):
            assert accepts(compiled, text) == is_valid(value, schema), text


def check_accepted(schema: Any, good: list[str], bad: list[str], **options: Any) -> None:
    """All of the texts `good` and none of `bad` are accepted."""
    compiled = compile_grammar(Grammar.json_schema(schema, **options), BYTES)
    assert [text for text in good if not accepts(compiled, text)] == []
    assert [text for text in bad if accepts(compiled, text)] == []
