"""The files that describe a tokenizer, as plain values: every form of them becomes a tokenizer.json here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .added_tokens import token_text
from .bpe_files import bpe_files_spec, read_text
from .errors import ModelLoadError
from .models.config import read_json_object
from .sentencepiece_model import read_sentencepiece
from .sentencepiece_spec import sentencepiece_spec
from .tiktoken_file import is_tiktoken, tiktoken_files

_WITH_BOS = ("", "Llama", "CodeLlama", "Gemma")
"""Classes of SentencePiece tokenizers that put the BOS token before a text unless they are told not to."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a tokenizer is made from.

    Attributes:
        source: the folder or file, for errors.
        tokenizer_json: text of tokenizer.json, or of the one that the files amount to.
        tokenizer_config: of tokenizer_config.json, and what special_tokens_map.json, chat_template.json and
            added_tokens.json say besides.
        config, generation_config: the JSON files of those names, empty where missing.
        chat_template_file: text of chat_template.jinja.
    """

    source: str
    tokenizer_json: str
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template_file: str | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerFiles:
        """Read a model folder: tokenizer.json, else tokenizer.model, *.tiktoken, or vocab.json and merges.txt.

        Raises:
            ModelLoadError: there is none of them, or a file cannot be read or used.
        """
        with damage_named(str(folder)):
            tokenizer_json, tokenizer_config = _tokenizer(folder)
        template = folder / "chat_template.jinja"
        return cls(
            source=str(folder),
            tokenizer_json=tokenizer_json,
            tokenizer_config=tokenizer_config,
            config=_optional(folder / "config.json"),
            generation_config=_optional(folder / "generation_config.json"),
            chat_template_file=read_text(template) if template.is_file() else None,
        )

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja source; of several named ones, the default."""
        if self.chat_template_file is not None:
            return self.chat_template_file
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):
            by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
            template = by_name.get("default")
        return template if isinstance(template, str) else None

    @property
    def adds_bos(self) -> bool | None:
        """Whether a text begins with the BOS token, where the config says so itself."""
        adds = self.tokenizer_config.get("add_bos_token")
        return adds if isinstance(adds, bool) else None

    def special_token(self, name: str) -> str:
        """Text of bos_token, eos_token and the like; "" where there is none."""
        return token_text(self.tokenizer_config.get(name))


@contextmanager
def damage_named(source: str) -> Iterator[None]:
    """Tell of a value that the code inside does not expect as of a damaged file.

    Raises:
        ModelLoadError: the code raised what comes of a missing value, or of one of the wrong type.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelLoadError(
            f"{source}: a file of its tokenizer is damaged, or of a form that is not known: a value in it is missing "
            f"or of the wrong kind ({type(error).__name__}: {error})"
        ) from error


def _tokenizer(folder: Path) -> tuple[str, dict[str, Any]]:
    """Text of tokenizer.json, and tokenizer_config.json, from what a folder holds."""
    beside = _optional(folder / "special_tokens_map.json") | _optional(folder / "chat_template.json")
    config = beside | _optional(folder / "tokenizer_config.json")
    if (path := folder / "tokenizer.json").is_file():
        return read_text(path), config
    config = _with_added_tokens(config, folder / "added_tokens.json")
    spec, config = _converted(folder, config)
    return json.dumps(spec, ensure_ascii=False), config


def _converted(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    for path in (folder / "tokenizer.model", folder / "tiktoken.model", *sorted(folder.glob("*.tiktoken"))):
        if path.is_file():
            data = path.read_bytes()
            return (tiktoken_files if is_tiktoken(data) else _sentencepiece_files)(data, config, str(path))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return bpe_files_spec(folder, config), config
    others = [name for name in ("tekken.json", "spiece.model", "vocab.txt", "vocab.json") if (folder / name).is_file()]
    found = f"{', '.join(others)}, which cannot be used here; it" if others else "no tokenizer: it"
    raise ModelLoadError(
        f"{folder} has {found} needs tokenizer.json, tokenizer.model, *.tiktoken, or vocab.json and merges.txt. Other "
        "forms are converted by `transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
    )


def _sentencepiece_files(data: bytes, config: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    model = read_sentencepiece(data, source)
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
    defaults: dict[str, Any] = {"add_bos_token": name in _WITH_BOS}
    for key, token_id in (("bos_token", model.bos_id), ("eos_token", model.eos_id)):
        if token_id is not None:
            defaults[key] = model.pieces[token_id].text
    return sentencepiece_spec(model, source), defaults | dict(config)


def _with_added_tokens(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config with the tokens of added_tokens.json, which maps texts to ids."""
    listed = {str(token_id): text for text, token_id in _optional(path).items()}
    return {**config, "added_tokens_decoder": listed | (config.get("added_tokens_decoder") or {})}


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
