"""Ways to split text into words before byte pairs are merged, by the names that files give them.

Each is the `pre_tokenizer` of a tokenizer.json. Source: the published tokenizer.json of each family; the names are
those that llama.cpp's converter writes into `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""GPT-2's words, as bytes in printable marks."""

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALIZED, _CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

LLAMA3_WORDS = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_WORDS = rf"{_CAPITALIZED}|{_CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_O200K_WORDS = (
    rf"{_CAPITALIZED}{_ENDINGS}?|{_CAPITALS}{_ENDINGS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_CODER_WORDS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3_WORDS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)


@dataclass(frozen=True, slots=True)
class WordSplit:
    """How a family of byte-level tokenizers splits text.

    Attributes:
        pre_tokenizer: the component of tokenizer.json.
        whole_words: a word that is in the vocabulary is taken as it is, without merges.
        adds_bos: text begins with the BOS token where the file does not say.
        composes: text is normalized to NFC first.
    """

    pre_tokenizer: dict[str, Any]
    whole_words: bool = False
    adds_bos: bool = False
    composes: bool = False


def split_by(*patterns: str) -> dict[str, Any]:
    """Words are the matches of each regular expression in turn, and what lies between them."""
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, {**BYTE_LEVEL, "use_regex": False}]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = WordSplit(BYTE_LEVEL)
_GPT2_DIGITS = WordSplit({"type": "Sequence", "pretokenizers": [_DIGITS, BYTE_LEVEL]})
_LLAMA3 = WordSplit(split_by(LLAMA3_WORDS), whole_words=True, adds_bos=True)
_CL100K = WordSplit(split_by(LLAMA3_WORDS))
_QWEN2 = WordSplit(split_by(QWEN2_WORDS))
QWEN2_NFC = WordSplit(split_by(QWEN2_WORDS), composes=True)
_O200K = WordSplit(split_by(_O200K_WORDS))
_DEEPSEEK_V3 = WordSplit(split_by(*_DEEPSEEK_V3_WORDS))

WORD_SPLITS: dict[str, WordSplit] = {
    **dict.fromkeys(("gpt-2", "default", "phi-2", "olmo", "mpt", "jais", "trillion", "exaone4", "mellum"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _GPT2_DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN2_NFC),
    **dict.fromkeys(("stablelm2", "megrez", "kormo", "hunyuan", "grok-2"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _O200K),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_V3),
    "deepseek-coder": WordSplit(split_by(*_DEEPSEEK_CODER_WORDS)),
    "tekken": WordSplit(split_by(_TEKKEN_WORDS), whole_words=True, adds_bos=True),
}
"""By the names in `tokenizer.ggml.pre`."""
