"""A model's files without its weights: the chat template, sampling defaults and tokenizer that prompts rest on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .errors import EngineError
from .generation_config import sampling_defaults
from .model_path import find_model, model_name
from .program import ModelInfo, Text
from .service import EventSink, ServiceSession
from .tokenizer import Tokenizer


class DescribedModel:
    """A backend to compile programs for (`Function.compile`): it knows what a prompt will be, and runs nothing.

    Loads no torch.

    Raises:
        ModelLoadError: the files hold no tokenizer that is supported.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._tokenizer = tokenizer = Tokenizer.load(path)
        self._model_info = ModelInfo(
            name=name,
            context_length=0,
            vocab_size=len(tokenizer.token_bytes),
            chat_template=tokenizer.chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            special_tokens=tokenizer.special_tokens,
            sampling_defaults=sampling_defaults(path),
        )

    @classmethod
    def find(cls, model: str | None, *, revision: str | None = None) -> DescribedModel:
        """The model that a user names, None for the default one; fetched where it is not in the cache.

        Raises:
            ModelLoadError: there is no such model; see the class.
        """
        path = find_model(model, revision=revision)
        return cls(path, model_name(model, path))

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    def token_owners(self, texts: Sequence[Text], *, start: bool) -> list[int]:
        """For each token of constant text that stands together, the id of the node in which it begins.

        Args:
            start: a prompt begins with it.
        """
        return self._tokenizer.owners_of(texts, start=start)

    def open(self, events: EventSink, *, program: str | None = None) -> ServiceSession:
        """Refuse: there are no weights.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"{self._model_info.name} is only described here, to compile programs; launch it to run them")
