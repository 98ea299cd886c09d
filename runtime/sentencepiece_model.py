"""Reads SentencePiece's `tokenizer.model`: a small reader of the fields of its protocol buffer that encoding needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from .errors import ModelLoadError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_PIECE, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5  # fields of the model
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

Value = int | bytes
Fields = dict[int, Value]


class PieceType(IntEnum):
    """What a piece stands for; GGUF's token types are the same."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """One entry of the vocabulary; spaces are written as U+2581."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """A vocabulary and its rules.

    Attributes:
        kind: unigram, bpe, word or char.
        pieces: by token id.
        bos_id, eos_id: None where there is none.
        charsmap: the precompiled table of character normalization, empty for none.
        dummy_prefix: a space is put before a text.
        extra_spaces_removed: spaces at both ends of a text are dropped, and several in a row become one.
        spaces_escaped: spaces become U+2581.
        space_as_suffix: that stands at the end of words instead of before them.
        denormalizes: decoded text is changed by rules.
    """

    pieces: tuple[SentencePiece, ...]
    kind: str = "bpe"
    bos_id: int | None = None
    eos_id: int | None = None
    charsmap: bytes = b""
    dummy_prefix: bool = True
    extra_spaces_removed: bool = False
    spaces_escaped: bool = True
    space_as_suffix: bool = False
    denormalizes: bool = False


def read_sentencepiece(data: bytes, source: str) -> SentencePieceModel:
    """Read the bytes of a `tokenizer.model`.

    Raises:
        ModelLoadError: they are not a SentencePiece model.
    """
    try:
        fields = list(_fields(data))
        pieces = tuple(_piece(value) for number, value in fields if number == _PIECE)
        trainer, normalizer, denormalizer = (_last(fields, number) for number in (_TRAINER, _NORMALIZER, _DENORMALIZER))
        if not pieces:
            raise ValueError("it holds no pieces")
        return SentencePieceModel(
            kind=_MODEL_TYPES.get(_number(trainer, 3, 1), "unknown"),
            pieces=pieces,
            bos_id=_control_id(pieces, trainer, 41, 1),
            eos_id=_control_id(pieces, trainer, 42, 2),
            charsmap=_bytes(normalizer, 2),
            dummy_prefix=bool(_number(normalizer, 3, 1)),
            extra_spaces_removed=bool(_number(normalizer, 4, 1)),
            spaces_escaped=bool(_number(normalizer, 5, 1)),
            space_as_suffix=bool(_number(trainer, 24, 0)),
            denormalizes=bool(_bytes(denormalizer, 2)),
        )
    except (ValueError, IndexError, struct.error) as error:
        raise ModelLoadError(f"{source} is not a SentencePiece model, or it is damaged or cut off: {error}") from error


def _piece(value: Value) -> SentencePiece:
    fields = dict(_fields(value))
    (score,) = struct.unpack("<f", _bytes(fields, 2) or b"\0\0\0\0")
    return SentencePiece(_bytes(fields, 1).decode(), score, PieceType(_number(fields, 3, PieceType.NORMAL)))


def _last(fields: list[tuple[int, Value]], number: int) -> Fields:
    """The fields of a part of the model; as in every protocol buffer, later ones win."""
    return {inner: value for outer, part in fields if outer == number for inner, value in _fields(part)}


def _control_id(pieces: tuple[SentencePiece, ...], trainer: Fields, number: int, default: int) -> int | None:
    """An id that the trainer was given, where it is a control token's."""
    token_id = _number(trainer, number, default)
    known = token_id < len(pieces) and pieces[token_id].type is PieceType.CONTROL
    return token_id if known else None


def _number(fields: Fields, number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not a number")
    return value


def _bytes(fields: Fields, number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is a number")
    return value


def _fields(data: Value) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message; numbers as int, strings, messages and floats as their bytes."""
    if not isinstance(data, bytes):
        raise ValueError("a number stands where a message should")
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            size, place = _varint(data, place)
        elif wire_type in _SIZES:
            size = _SIZES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {place}")
        if place + size > len(data):
            raise ValueError(f"a field of {size} bytes at byte {place} goes past the end")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
