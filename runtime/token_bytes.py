"""The exact bytes of each token of a vocabulary, decoded once from the escaped form that tokenizer.json keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import ModelLoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_bytes(spec: Mapping[str, Any], *, source: str) -> tuple[bytes | None, ...]:
    """Bytes of every token id; None for special tokens and ids without a token.

    Args:
        spec: the object in tokenizer.json. Byte-level vocabularies (GPT-2's marks) and SentencePiece ones
            (underscores for spaces, <0xHH> for single bytes) are understood.
        source: named in errors.

    Raises:
        ModelLoadError: the vocabulary is of another form.
    """
    decode = _decoder_of(spec, source)
    tokens: dict[int, bytes | None] = {token_id: decode(text) for text, token_id in _ordinary(spec)}
    for added in spec.get("added_tokens") or ():
        tokens[added["id"]] = None if added["special"] else added["content"].encode()
    return tuple(tokens.get(i) for i in range(max(tokens, default=-1) + 1))


def _ordinary(spec: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return iter(vocabulary.items())
    return ((text, token_id) for token_id, (text, _) in enumerate(vocabulary))


def _decoder_of(spec: Mapping[str, Any], source: str) -> Callable[[str], bytes]:
    kinds = set(_types(spec.get("decoder")))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece
    raise ModelLoadError(
        f"{source}: tokenizer.json decodes tokens by {', '.join(sorted(kinds)) or 'nothing'}; supported are byte-level "
        "and SentencePiece vocabularies"
    )


def _types(component: Mapping[str, Any] | None) -> Iterator[str]:
    """Types of a component of tokenizer.json, those inside a sequence one by one."""
    if component is None:
        return iter(())
    parts = component.get("decoders") if component["type"] == "Sequence" else None
    return (part["type"] for part in (parts or [component]))


def _marks() -> dict[str, int]:
    """GPT-2's table: bytes that print stand for themselves, the others for the characters from 256 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


_MARKS = _marks()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_MARKS[character] for character in text])
    except KeyError:  # a token that was put in by hand, unescaped
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode()
