"""The tokenizer inside a GGUF file, as the files of a model folder."""

from __future__ import annotations

import json
from typing import Any

from .errors import ModelLoadError
from .gguf_reader import GGUFFile
from .sentencepiece_model import PieceType, SentencePiece, SentencePieceModel
from .sentencepiece_spec import sentencepiece_spec
from .tokenizer_files import TokenizerFiles
from .tokenizer_spec import added_token, byte_level_spec
from .word_splits import WORD_SPLITS, WordSplit

_ADDED = (PieceType.CONTROL, PieceType.USER_DEFINED)


def tokenizer_files(file: GGUFFile) -> TokenizerFiles:
    """Rebuild tokenizer.json and tokenizer_config.json from a file's metadata.

    Raises:
        ModelLoadError: its vocabulary is neither byte-level BPE nor SentencePiece, or it splits words in a way that is
            not known.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        split = _word_split(file)
        spec, adds_bos = _byte_level(file, split), split.adds_bos
    elif kind == "llama":
        spec, adds_bos = sentencepiece_spec(_sentencepiece(file), str(file.path)), True
    else:
        raise ModelLoadError(
            f"{file.path}: a vocabulary of kind {kind!r} is not supported in GGUF (known: gpt2, which is byte-level "
            "BPE, and llama, which is SentencePiece); give the model as a folder with safetensors and tokenizer.json"
        )
    return TokenizerFiles(
        source=str(file.path),
        tokenizer_json=json.dumps(spec, ensure_ascii=False),
        tokenizer_config=_tokenizer_config(file, adds_bos=adds_bos),
        config=file.config_values(),
        generation_config={"eos_token_id": _end_ids(file)},
    )


def _byte_level(file: GGUFFile, split: WordSplit) -> dict[str, Any]:
    tokens, types = _required(file, "tokens"), _required(file, "token_type")
    merges = [pair.split(" ", 1) for pair in _required(file, "merges")]
    typed = list(enumerate(zip(tokens, types, strict=True)))
    added = [added_token(i, text, special=kind == PieceType.CONTROL) for i, (text, kind) in typed if kind in _ADDED]
    vocabulary = {text: i for i, (text, kind) in typed if kind != PieceType.UNUSED}
    return byte_level_spec(vocabulary, merges, added, split)


def _word_split(file: GGUFFile) -> WordSplit:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name not in WORD_SPLITS:
        known = ", ".join(WORD_SPLITS)
        raise ModelLoadError(f"{file.path}: tokenizer.ggml.pre={name!r} is not supported; known: {known}")
    return WORD_SPLITS[name]


def _sentencepiece(file: GGUFFile) -> SentencePieceModel:
    columns = (_required(file, name) for name in ("tokens", "scores", "token_type"))
    pieces = (SentencePiece(text, score, _piece_type(kind)) for text, score, kind in zip(*columns, strict=True))
    return SentencePieceModel(
        pieces=tuple(pieces), dummy_prefix=bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    )


def _piece_type(value: int) -> PieceType:
    return PieceType(value) if value in list(PieceType) else PieceType.UNUSED


def _required(file: GGUFFile, name: str) -> list[Any]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise ModelLoadError(f"{file.path}: the metadata has no tokenizer.ggml.{name}")
    return value


def _end_ids(file: GGUFFile) -> list[int]:
    """Tokens that end a sequence, a turn or a message."""
    ids = (file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return [token_id for token_id in ids if token_id is not None]


def _tokenizer_config(file: GGUFFile, *, adds_bos: bool) -> dict[str, Any]:
    tokens = _required(file, "tokens")
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.config_values()["max_position_embeddings"],
        "add_prefix_space": False,
        "add_bos_token": bool(file.metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        "clean_up_tokenization_spaces": False,
    }
    if template := file.metadata.get("tokenizer.chat_template"):
        values["chat_template"] = template
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            values[f"{name}_token"] = tokens[token_id]
    return values
