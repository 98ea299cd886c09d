"""A SentencePiece vocabulary as the object of a tokenizer.json that gives the same ids."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from .errors import ModelLoadError
from .sentencepiece_model import PieceType, SentencePiece, SentencePieceModel
from .tokenizer_spec import LEADING_SPACES, TRAILING_SPACES, added_token, bpe_model, join_pairs

SPACE = "▁"
_SYMBOL_SCORE = -0.1  # of a user-defined symbol: above those of pieces, which are logarithms of their frequencies
_SPECIAL = (PieceType.CONTROL, PieceType.UNKNOWN)


def sentencepiece_spec(model: SentencePieceModel, source: str) -> dict[str, Any]:
    """The same tokenizer in the form of a tokenizer.json. Pieces that are unused get no token.

    Raises:
        ModelLoadError: a rule of the model has no counterpart there.
    """
    _check(model, source)
    byte_fallback = sum(piece.type is PieceType.BYTE for piece in model.pieces) == 256
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added_tokens(model)),
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model, byte_fallback)},
        "model": _bpe(model, byte_fallback) if model.kind == "bpe" else _unigram(model, byte_fallback),
    }


def _check(model: SentencePieceModel, source: str) -> None:
    if model.kind not in ("bpe", "unigram"):
        why = f"it is of type {model.kind!r}, and bpe and unigram are supported"
    elif not model.spaces_escaped:
        why = "it keeps spaces as they are (escape_whitespaces=false)"
    elif model.space_as_suffix:
        why = "it puts spaces behind words (treat_whitespace_as_suffix=true)"
    elif model.denormalizes:
        why = "it changes decoded text by rules (denormalizer_spec)"
    elif _unknown_id(model) is None:
        why = "it has no token for unknown text"
    else:
        return
    raise ModelLoadError(f"{source} is a SentencePiece model that cannot be used: {why}")


def _unknown_id(model: SentencePieceModel) -> int | None:
    return next((i for i, piece in enumerate(model.pieces) if piece.type is PieceType.UNKNOWN), None)


def _added_tokens(model: SentencePieceModel) -> Iterator[dict[str, Any]]:
    """Special tokens, and the user-defined symbols that are found before pieces are looked for.

    A symbol with escaped spaces is found once characters are normalized, others before, so that they keep their own.
    """
    for token_id, piece in enumerate(model.pieces):
        if piece.type in _SPECIAL or (piece.type is PieceType.UNUSED and model.kind == "unigram"):
            yield added_token(token_id, piece.text, special=True)
        elif piece.type is PieceType.USER_DEFINED and not _is_scored(piece, model):
            escaped = not model.charsmap or (SPACE in piece.text and not model.extra_spaces_removed)
            yield added_token(token_id, piece.text, special=False, normalized=escaped)


def _is_scored(piece: SentencePiece, model: SentencePieceModel) -> bool:
    """Whether a symbol competes with the pieces of a unigram model, as it needs no protection from normalization."""
    return model.kind == "unigram" and (SPACE in piece.text or not model.charsmap)


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    normalizers: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.extra_spaces_removed:
        normalizers += [LEADING_SPACES, TRAILING_SPACES, _replace({"Regex": " {2,}"}, " ")]
    if model.dummy_prefix:
        normalizers.append({"type": "Prepend", "prepend": SPACE})
    return [*normalizers, _replace({"String": " "}, SPACE)]


def _decoders(model: SentencePieceModel, byte_fallback: bool) -> list[dict[str, Any]]:
    decoders: list[dict[str, Any]] = [_replace({"String": SPACE}, " ")]
    if byte_fallback:
        decoders.append({"type": "ByteFallback"})
    decoders.append({"type": "Fuse"})
    if model.dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return decoders


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _bpe(model: SentencePieceModel, byte_fallback: bool) -> dict[str, Any]:
    """The pair that makes the piece of the highest score is merged first, so merges are listed by what they make."""
    pieces = list(enumerate(model.pieces))
    vocabulary = {piece.text: i for i, piece in pieces if piece.type is not PieceType.UNUSED}
    normal = [(-piece.score, i, piece.text) for i, piece in pieces if piece.type is PieceType.NORMAL]
    merges = join_pairs([text for _, _, text in sorted(normal)], {text for _, _, text in normal})
    unknown = model.pieces[_unknown_id(model) or 0].text
    return bpe_model(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)


def _unigram(model: SentencePieceModel, byte_fallback: bool) -> dict[str, Any]:
    """The likeliest pieces. Of several segmentations that are equally likely, SentencePiece may choose another."""
    vocabulary = [[piece.text, piece.score] for piece in model.pieces]
    for entry, piece in zip(vocabulary, model.pieces, strict=True):
        if piece.type is PieceType.USER_DEFINED:
            entry[1] = _SYMBOL_SCORE
    return {"type": "Unigram", "unk_id": _unknown_id(model), "vocab": vocabulary, "byte_fallback": byte_fallback}
