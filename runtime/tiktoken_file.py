"""Vocabularies in tiktoken's text form: a line holds a token's bytes in base64 and its rank, which is its id."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ModelLoadError
from .token_bytes import byte_marks
from .tokenizer_spec import added_token, byte_level_spec, join_pairs
from .word_splits import LLAMA3_WORDS, QWEN2_WORDS, WordSplit, split_by

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d+)")
_FOREIGN_SYNTAX = re.compile(r"\{\d+(?:,\d*)?\}\+|(?<!\\)\$")


@dataclass(frozen=True, slots=True)
class _Family:
    """A published vocabulary: its split pattern, special tokens in the order of their ids, and normalization."""

    pattern: str
    specials: tuple[str, ...]
    bos_token: str = ""
    eos_token: str = ""
    composes: bool = False


def _llama3() -> _Family:
    named = {
        0: "begin_of_text",
        1: "end_of_text",
        4: "finetune_right_pad_id",
        6: "start_header_id",
        7: "end_header_id",
        8: "eom_id",
        9: "eot_id",
        10: "python_tag",
    }
    unnamed = iter(range(256))
    specials = tuple(f"<|{named.get(i) or f'reserved_special_token_{next(unnamed)}'}|>" for i in range(256))
    return _Family(LLAMA3_WORDS, specials, bos_token=specials[0], eos_token=specials[1])


def _qwen() -> _Family:
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
    return _Family(QWEN2_WORDS, specials, eos_token="<|endoftext|>", composes=True)


_FAMILIES = {128_000: _llama3(), 151_643: _qwen()}
"""By the number of tokens that are not special."""


def is_tiktoken(data: bytes) -> bool:
    """Whether a file is of this form, by its first line."""
    return _LINE.fullmatch(data[: data.find(b"\n")].rstrip() if b"\n" in data else data) is not None


def tiktoken_files(data: bytes, config: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object of an equivalent tokenizer.json, and what tokenizer_config.json would say.

    Words are split by `pat_str` of the config, which is tiktoken's name for it, or as the published vocabulary of this
    size does. Special tokens are the config's `added_tokens_decoder`, or the published ones.

    Raises:
        ModelLoadError: a line cannot be read, single bytes are missing, or the pattern is not known.
    """
    ranks = _ranks(data, source)
    family = _FAMILIES.get(len(ranks))
    pattern = _pattern(config, family, len(ranks), source)
    marks = byte_marks()
    text_of = {token: "".join(marks[byte] for byte in token) for token in ranks}
    vocabulary = {text_of[token]: rank for token, rank in ranks.items()}
    merges = join_pairs(sorted(vocabulary, key=vocabulary.__getitem__), vocabulary)
    listed = config.get("added_tokens_decoder")
    specials = family.specials if family and not listed else ()
    first = max(ranks.values()) + 1
    added = [added_token(first + i, text, special=True) for i, text in enumerate(specials)]
    split = WordSplit(split_by(pattern), whole_words=True, composes=family is not None and family.composes)
    defaults: dict[str, Any] = {}
    if family is not None:
        defaults = {"bos_token": family.bos_token, "eos_token": family.eos_token}
        defaults["add_bos_token"] = bool(family.bos_token)
    return byte_level_spec(vocabulary, merges, added, split), defaults | dict(config)


def _ranks(data: bytes, source: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        try:
            if match is None:
                raise ValueError("it is not a token in base64 and a rank")
            ranks[base64.b64decode(match[1], validate=True)] = int(match[2])
        except (ValueError, binascii.Error) as error:
            raise ModelLoadError(f"{source}, line {number}: {error}") from error
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ModelLoadError(
            f"{source} cannot spell all text: {len(missing)} single bytes have no token, {missing[0]:#04x} among them"
        )
    return ranks


def _pattern(config: Mapping[str, Any], family: _Family | None, size: int, source: str) -> str:
    pattern = config.get("pat_str")
    if pattern is None and family is not None:
        return family.pattern
    if not isinstance(pattern, str):
        known = " and ".join(f"{size:,}" for size in _FAMILIES)
        raise ModelLoadError(
            f"{source} holds {size:,} tokens, and how text is split into words before they apply is not in the file "
            f'(it is known for vocabularies of {known}). Give the pattern as "pat_str" in tokenizer_config.json, or '
            "make a tokenizer.json"
        )
    if _FOREIGN_SYNTAX.search(pattern):
        raise ModelLoadError(
            f"pat_str of {source}: {pattern!r} uses `{{n,m}}+` or `$`, which mean something else here; write the "
            r"possessive `{n,m}+` as `(?>...{n,m})` and `$` as `\z`"
        )
    return pattern
