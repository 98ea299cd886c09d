"""The exact bytes of each token of a vocabulary, decoded once from the escaped form that tokenizer.json keeps."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import VocabularyError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNDERSTOOD = {"ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}  # the last two change no token of its own

_MAX_TOKENS = 1 << 24
"""More than any vocabulary has; each id up to the largest takes room in every mask and buffer."""

Decode = Callable[[str], bytes]


def vocabulary_bytes(spec: Mapping[str, Any], *, source: str) -> tuple[bytes | None, ...]:
    """Bytes of every token id: what the decoder writes for it. None for special tokens and ids without a token.

    Args:
        spec: the object in tokenizer.json. Byte-level vocabularies (GPT-2's marks) and SentencePiece ones
            (underscores for spaces, <0xHH> for single bytes) are understood.
        source: named in errors.

    Raises:
        VocabularyError: the vocabulary is of another form, or an id is out of range.
    """
    decode = _decoder_of(spec, source)
    tokens: dict[int, bytes | None] = {token_id: decode(text) for text, token_id in _ordinary(spec)}
    decode_added = str.encode if decode is _byte_level else decode  # marks are for words of the model only
    for added in spec.get("added_tokens") or ():
        tokens[added["id"]] = None if added["special"] else decode_added(added["content"])
    if strays := [i for i in tokens if not 0 <= i < _MAX_TOKENS]:
        raise VocabularyError(f"{source}: a token has the id {strays[0]}; ids are 0 to {_MAX_TOKENS - 1:,}")
    return tuple(tokens.get(i) for i in range(max(tokens, default=-1) + 1))


def tokenizer_spec(tokenizer: object) -> dict[str, Any]:
    """What tokenizer.json would hold for a fast tokenizer of `transformers`, or one of `tokenizers`.

    Raises:
        VocabularyError: it is none of these.
    """
    fast: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not callable(getattr(fast, "to_str", None)):
        raise VocabularyError(
            f"{type(tokenizer).__name__} is no fast tokenizer of transformers and no tokenizers.Tokenizer; give "
            "Vocabulary(token_bytes, end_ids=...) the bytes of its tokens"
        )
    spec: dict[str, Any] = json.loads(fast.to_str())
    return spec


def byte_marks() -> list[str]:
    """GPT-2's printable mark of each byte."""
    return [mark for mark, _ in sorted(_MARKS.items(), key=lambda item: item[1])]


def _ordinary(spec: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return iter(vocabulary.items())
    return ((text, token_id) for token_id, (text, _) in enumerate(vocabulary))


def _decoder_of(spec: Mapping[str, Any], source: str) -> Decode:
    parts = list(_parts(spec.get("decoder")))
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds and kinds <= _UNDERSTOOD:
        replaced = [change for part in parts if (change := _replacement(part)) is not None]
        return functools.partial(_escaped, replaced=replaced or [("▁", " ")], byte_tokens="ByteFallback" in kinds)
    raise VocabularyError(
        f"{source}: tokenizer.json decodes tokens by {', '.join(sorted(kinds)) or 'nothing'}; supported are byte-level "
        "and SentencePiece vocabularies"
    )


def _parts(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The parts of a component of tokenizer.json: those inside a sequence one by one."""
    if component is None:
        return []
    return list(component["decoders"]) if component["type"] == "Sequence" else [component]


def _replacement(part: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a decoder writes for which string, where it replaces one."""
    match part:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return old, new
        case {"type": "Metaspace"}:
            return part.get("replacement", "▁"), " "
    return None


def _escaped(text: str, *, replaced: list[tuple[str, str]], byte_tokens: bool) -> bytes:
    """Bytes of a token of SentencePiece's form."""
    if byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    for old, new in replaced:
        text = text.replace(old, new)
    return text.encode()


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
