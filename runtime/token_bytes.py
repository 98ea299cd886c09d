"""The exact bytes of each token of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette.constrained import token_bytes
from palmette.constrained.errors import VocabularyError
from palmette.constrained.token_bytes import byte_marks

from .errors import ModelLoadError

__all__ = ["byte_marks", "vocabulary_bytes"]


def vocabulary_bytes(spec: Mapping[str, Any], *, source: str) -> tuple[bytes | None, ...]:
    """`palmette.constrained.token_bytes.vocabulary_bytes`, of a model's file.

    Raises:
        ModelLoadError: the vocabulary is of another form, or an id is out of range.
    """
    try:
        return token_bytes.vocabulary_bytes(spec, source=source)
    except VocabularyError as error:
        raise ModelLoadError(str(error)) from None
