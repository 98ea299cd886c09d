"""The tokenizer inside a GGUF file, as the files of a model folder."""

from __future__ import annotations

import json
from typing import Any

from .errors import ModelLoadError
from .gguf_reader import GGUFFile
from .tokenizer_files import TokenizerFiles

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def tokenizer_files(file: GGUFFile) -> TokenizerFiles:
    """Rebuild tokenizer.json and tokenizer_config.json from a file's metadata.

    Raises:
        ModelLoadError: its vocabulary is not byte-level BPE, or splits words in a way that is not known.
    """
    return TokenizerFiles(
        source=str(file.path),
        tokenizer_json=json.dumps(_tokenizer_json(file), ensure_ascii=False),
        tokenizer_config=_tokenizer_config(file),
        config=file.config_values(),
    )


def _tokenizer_json(file: GGUFFile) -> dict[str, Any]:
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(
            f"{file.path}: a vocabulary of kind {kind!r} is not supported in GGUF (known: gpt2, which is byte-level "
            "BPE); give the model as a folder with safetensors and tokenizer.json"
        )
    tokens = _required(file, "tokens")
    types = _required(file, "token_type")
    merges = [pair.split(" ", 1) for pair in _required(file, "merges")]
    added = [_added(i, text, types[i]) for i, text in enumerate(tokens) if types[i] in (_CONTROL, _USER_DEFINED)]
    pre_tokenizer, ignore_merges = _pre_tokenizer(file)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(file, tokens),
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": merges,
        },
    }


def _required(file: GGUFFile, name: str) -> list[Any]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise ModelLoadError(f"{file.path}: the metadata has no tokenizer.ggml.{name}")
    return value


def _added(token_id: int, text: str, token_type: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": text, **flags, "special": token_type == _CONTROL}


def _pre_tokenizer(file: GGUFFile) -> tuple[dict[str, Any], bool]:
    """How text is split into words, and whether a whole word in the vocabulary is taken without merges."""
    words = {**_BYTE_LEVEL, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    match file.metadata.get("tokenizer.ggml.pre", "default"):
        case "gpt-2" | "default":
            return words, False
        case "smollm":
            return {"type": "Sequence", "pretokenizers": [digits, words]}, False
        case "llama-bpe" | "llama3" | "llama-v3":
            return _split_by(_LLAMA3_WORDS), True
        case "qwen2":
            return _split_by(_QWEN2_WORDS), False
        case other:
            known = "gpt-2, default, smollm, llama-bpe, qwen2"
            raise ModelLoadError(f"{file.path}: tokenizer.ggml.pre={other!r} is not supported; known: {known}")


def _split_by(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**_BYTE_LEVEL, "use_regex": False}]}


def _post_processor(file: GGUFFile, tokens: list[str]) -> dict[str, Any] | None:
    bos_id = file.metadata.get("tokenizer.ggml.bos_token_id")
    if not file.metadata.get("tokenizer.ggml.add_bos_token") or bos_id is None:
        return None
    bos, text = {"SpecialToken": {"id": tokens[bos_id], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {tokens[bos_id]: {"id": tokens[bos_id], "ids": [bos_id], "tokens": [tokens[bos_id]]}}
    pair = {"Sequence": {"id": "B", "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, pair], "special_tokens": special}


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    tokens = _required(file, "tokens")
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.config_values()["max_position_embeddings"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    if template := file.metadata.get("tokenizer.chat_template"):
        values["chat_template"] = template
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            values[f"{name}_token"] = tokens[token_id]
    return values
