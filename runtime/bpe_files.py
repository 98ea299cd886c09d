"""GPT-2's two files, vocab.json and merges.txt, as the object of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ModelLoadError
from .models.config import read_json_object
from .tokenizer_spec import byte_level_spec
from .word_splits import BYTE_LEVEL, QWEN2_NFC, WordSplit

_GPT2 = WordSplit(BYTE_LEVEL)
_SPLITS = {"": _GPT2, "PreTrainedTokenizer": _GPT2, "GPT2Tokenizer": _GPT2, "Qwen2Tokenizer": QWEN2_NFC}


def bpe_files_spec(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level BPE as `tokenizer_class` of the config splits words; GPT-2's where there is none.

    Raises:
        ModelLoadError: a file is damaged, or the class is not known.
    """
    split = _split(config, folder)
    if config.get("add_prefix_space") and split is _GPT2:
        split = WordSplit({**BYTE_LEVEL, "add_prefix_space": True})
    vocabulary = read_json_object(folder / "vocab.json")
    if not all(isinstance(token_id, int) for token_id in vocabulary.values()):
        raise ModelLoadError(f"{folder / 'vocab.json'} must map each token to its id, a whole number")
    return byte_level_spec(vocabulary, _merges(folder / "merges.txt"), [], split)


def _split(config: Mapping[str, Any], folder: Path) -> WordSplit:
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if name not in _SPLITS:
        known = ", ".join(filter(None, _SPLITS))
        raise ModelLoadError(
            f"{folder}: how {name} splits the text that vocab.json and merges.txt apply to is not known (known: "
            f"{known}); make a tokenizer.json"
        )
    return _SPLITS[name]


def read_text(path: Path) -> str:
    """The text of a file of a tokenizer.

    Raises:
        ModelLoadError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read as text: {error}") from error


def _merges(path: Path) -> list[list[str]]:
    lines = read_text(path).split("\n")
    merges = [line.rstrip("\r").split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    if wrong := next((pair for pair in merges if len(pair) != 2), None):
        raise ModelLoadError(f"{path}: a line must hold two tokens, not {' '.join(wrong)!r}")
    return merges
