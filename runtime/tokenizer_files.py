"""The files that describe a tokenizer, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ModelLoadError
from .models.config import read_json_object


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a tokenizer is made from.

    Attributes:
        source: the folder or file, for errors.
        tokenizer_json: text of tokenizer.json.
        tokenizer_config, config, generation_config: the JSON files of those names, empty where missing.
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
        """Read the files of a model folder.

        Raises:
            ModelLoadError: there is no tokenizer.json, or a file cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(
                f"{folder} has no tokenizer.json. Tokenizers of other forms (tokenizer.model, vocab.json) are "
                "converted by `transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            )
        template = folder / "chat_template.jinja"
        return cls(
            source=str(folder),
            tokenizer_json=path.read_text(encoding="utf-8"),
            tokenizer_config=_optional(folder / "tokenizer_config.json"),
            config=_optional(folder / "config.json"),
            generation_config=_optional(folder / "generation_config.json"),
            chat_template_file=template.read_text(encoding="utf-8") if template.is_file() else None,
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

    def special_token(self, name: str) -> str:
        """Text of bos_token, eos_token and the like; "" where there is none."""
        token = self.tokenizer_config.get(name)
        if isinstance(token, Mapping):
            token = token.get("content")
        return token if isinstance(token, str) else ""


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
