"""The json workload: its schema and grammar, the tokenizer it needs, and how many of its answers are valid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from palmette.constrained import Grammar
from palmette.runtime.batch import Int32Array
from palmette.runtime.default_model import ensure_default_model
from palmette.runtime.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "alive": {"type": "boolean"},
        "wand": {
            "type": "object",
            "properties": {
                "wood": {"type": "string", "maxLength": 16},
                "core": {"enum": ["phoenix", "dragon", "unicorn"]},
                "length": {"type": "integer", "minimum": 1, "maximum": 40},
            },
            "required": ["wood", "core", "length"],
            "additionalProperties": False,
        },
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "house", "age", "alive", "wand", "friends"],
    "additionalProperties": False,
}
"""That of shared/bench/schema.json."""

_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")


def grammar() -> Grammar:
    """JSON of the schema without whitespace."""
    return Grammar.json_schema(json.dumps(SCHEMA), whitespace="none")


def export_tokenizer(folder: Path) -> Path:
    """Copy what `Tokenizer.load` reads of the default model into `folder`: a few MB for machines without a network."""
    model = ensure_default_model()
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(model / name, folder / name)
    return folder


def load_tokenizer(folder: Path | None) -> Tokenizer:
    """The tokenizer in a folder, or the default model's."""
    return Tokenizer.load(folder or ensure_default_model())


def text_of(token_ids: Iterable[int], token_bytes: Sequence[bytes | None]) -> str:
    """What an answer says; special tokens say nothing."""
    return b"".join(token_bytes[token_id] or b"" for token_id in token_ids).decode(errors="replace")


def valid_answers(outputs: Sequence[Int32Array], token_bytes: Sequence[bytes | None]) -> int:
    """How many of the answers are JSON that the schema accepts, by the package jsonschema."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(SCHEMA)
    return sum(_is_valid(text_of(output.tolist(), token_bytes), validator) for output in outputs)


def _is_valid(text: str, validator: Any) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except json.JSONDecodeError:
        return False
