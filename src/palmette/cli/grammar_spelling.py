"""Why a text that a schema's grammar rejects may still be what its writer meant."""

from __future__ import annotations

import json
from typing import Any

from palmette.constrained import GrammarError, matches

from .grammar_source import Source, schema_grammar


def note_on(source: Source, text: str) -> str | None:
    """What else there is to say of a rejected text of a schema: not JSON at all, or valid in another spelling."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except _DuplicateKeyError as error:
        return f"the key {error.args[0]!r} is given twice in one object"
    except RecursionError:
        return None
    except ValueError as error:
        return f"it is not JSON: {error}"
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if matches(source.grammar, plain):
        return "it is valid JSON for the schema, but not in this spelling: white space, escapes or numbers"
    if _matches_in_any_order(source, plain):
        return "it is valid JSON for the schema, but not in this spelling: key order (--key-order any allows it)"
    return _verdict(source.schema, value)


def _matches_in_any_order(source: Source, text: str) -> bool:
    if (source.options or {}).get("key_order") == "any":
        return False
    options: dict[str, Any] = {**(source.options or {}), "key_order": "any"}
    try:
        return matches(schema_grammar(source.schema, options), text)
    except GrammarError:  # in any order it may be too large, or not decidable
        return False


def _verdict(schema: Any, value: Any) -> str | None:
    """What the package jsonschema says, where it is installed."""
    try:
        import jsonschema
    except ImportError:
        return None
    try:
        kind = jsonschema.validators.validator_for(schema)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except Exception:  # any of jsonschema's, re's and referencing's: a second opinion is worth no error
        return None
    if error is None:
        return "it is valid JSON for the schema by the package jsonschema, but not in this spelling"
    pointer = "".join(f"/{part}" for part in error.absolute_path)
    return f"jsonschema says: {error.message[:200]}" + (f" (at {pointer} of the instance)" if pointer else "")


class _DuplicateKeyError(ValueError):
    """The key."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise _DuplicateKeyError(key)
        members[key] = value
    return members
