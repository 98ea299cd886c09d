"""Small real tokenizers in every form that files have, trained on a few sentences of several scripts."""

from __future__ import annotations

import base64
import functools
import io
import json
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.tiny_models import tiny_tokenizer_spec, write_tiny_tokenizer

from palmette.runtime.token_bytes import byte_marks
from palmette.runtime.tokenizer import Tokenizer

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "日本語の文章をいくつか書きます。日本語は楽しい。",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "नमस्ते दुनिया, यह एक वाक्य है।",
    "def f(x):\n    return x  # four spaces\n",
    "😀 emoji 👨‍👩‍👧 and more 😀",
)
PAT_STR = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@functools.cache
def trained_sentencepiece(
    kind: str, *, charsmap: str = "identity", symbols: tuple[str, ...] = (), **options: Any
) -> bytes:
    """A `tokenizer.model` from SentencePiece's own trainer, with byte fallback."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_writer=model,
        model_type=kind,
        vocab_size=420,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name=charsmap,
        user_defined_symbols=list(symbols),
        minloglevel=2,
        **{"remove_extra_whitespaces": False} | options,
    )
    return model.getvalue()


def write_tokenizer_model(folder: Path, model: bytes, **config: Any) -> Path:
    """A folder with tokenizer.model and tokenizer_config.json."""
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def sentencepiece_model(
    pieces: Iterable[tuple[str, float, int]],
    *,
    trainer: Mapping[int, Any] | None = None,
    normalizer: Mapping[int, Any] | None = None,
) -> bytes:
    """A hand-made `tokenizer.model`: pieces as text, score and type; fields of trainer and normalizer by number."""
    message = b"".join(
        _field(1, _field(1, text.encode()) + _field(2, score) + _field(3, kind)) for text, score, kind in pieces
    )
    for number, fields in ((2, trainer), (3, normalizer)):
        message += _field(number, b"".join(_field(inner, value) for inner, value in (fields or {}).items()))
    return message


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


@functools.cache
def tiktoken_ranks() -> dict[bytes, int]:
    """Tokens by their rank: all bytes, and what the tiny tokenizer merges."""
    of_mark = {mark: byte for byte, mark in enumerate(byte_marks())}
    merged = [bytes(of_mark[mark] for mark in "".join(pair)) for pair in tiny_tokenizer_spec()["model"]["merges"]]
    tokens = [*(bytes([byte]) for byte in range(256)), *dict.fromkeys(merged)]
    return {token: rank for rank, token in enumerate(tokens)}


def tiktoken_file(ranks: Mapping[bytes, int]) -> bytes:
    """The text form of ranks."""
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items())


def write_tiktoken(folder: Path, name: str = "tiny.tiktoken", **config: Any) -> Path:
    """A folder with a vocabulary in tiktoken's form and tokenizer_config.json."""
    (folder / name).write_bytes(tiktoken_file(tiktoken_ranks()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pat_str": PAT_STR} | config))
    return folder


def write_bpe_files(folder: Path, **config: Any) -> Path:
    """A folder with GPT-2's vocab.json and merges.txt, and tokenizer_config.json."""
    model = tiny_tokenizer_spec()["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>"} | config))
    return folder


def _tokenizer_json(folder: Path) -> Path:
    write_tiny_tokenizer(folder)
    return folder


FORMS: dict[str, Callable[[Path], Path]] = {
    "tokenizer.json": _tokenizer_json,
    "vocab.json and merges.txt": write_bpe_files,
    "tiktoken": write_tiktoken,
    "sentencepiece bpe": lambda folder: write_tokenizer_model(folder, trained_sentencepiece("bpe")),
    "sentencepiece unigram": lambda folder: write_tokenizer_model(folder, trained_sentencepiece("unigram")),
    "symbols": lambda folder: write_tokenizer_model(
        folder, trained_sentencepiece("bpe", symbols=("<sep>", "▁▁", "日本", "\n\n"))
    ),
    "no dummy prefix": lambda folder: write_tokenizer_model(
        folder, trained_sentencepiece("bpe", add_dummy_prefix=False)
    ),
}


@functools.cache
def folder_of(form: str) -> Path:
    return FORMS[form](Path(tempfile.mkdtemp()))


@functools.cache
def tokenizer_of(form: str) -> Tokenizer:
    return Tokenizer.load(folder_of(form))
