"""Builds the object of a tokenizer.json, which every other form of tokenizer is turned into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .word_splits import BYTE_LEVEL, WordSplit

LEADING_SPACES: dict[str, Any] = {"type": "Replace", "pattern": {"Regex": r"\A +"}, "content": ""}
TRAILING_SPACES: dict[str, Any] = {"type": "Replace", "pattern": {"Regex": r" +\z"}, "content": ""}
"""The normalizers that take spaces off the beginning of a sequence, and off the end of a text."""


def added_token(token_id: int, content: str, *, special: bool, normalized: bool = False) -> dict[str, Any]:
    """A token that is found in text as it stands, before words are split."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized}
    return {"id": token_id, "content": content, **flags, "special": special}


def byte_level_spec(
    vocabulary: Mapping[str, int], merges: Iterable[Sequence[str]], added: list[dict[str, Any]], split: WordSplit
) -> dict[str, Any]:
    """Byte-level BPE. `vocabulary` and `merges` are in GPT-2's printable marks; each merge is a pair, in order."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if split.composes else None,
        "pre_tokenizer": split.pre_tokenizer,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": bpe_model(vocabulary, merges, ignore_merges=split.whole_words),
    }


def bpe_model(vocabulary: Mapping[str, int], merges: Iterable[Sequence[str]], **options: Any) -> dict[str, Any]:
    """The model of a tokenizer that merges pairs."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(vocabulary),
        "merges": [list(pair) for pair in merges],
    }
    return model | options


def join_pairs(tokens: Iterable[str], known: Mapping[str, int] | set[str]) -> list[tuple[str, str]]:
    """All pairs of known strings that join to a token, in the order of the tokens.

    These are the merges of SentencePiece and tiktoken, which rank what a merge makes and not what is merged.
    """
    return [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
