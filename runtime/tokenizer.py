"""Text to token ids, where special tokens come from templates only and text between them is encoded as one string."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .added_tokens import all_added_tokens
from .errors import ModelLoadError
from .models.config import token_ids
from .program import Text
from .special_tokens import SpecialTokens
from .text_encoder import TextEncoder
from .token_bytes import vocabulary_bytes
from .tokenizer_files import TokenizerFiles, damage_named

if TYPE_CHECKING:
    from palmette.constrained.vocabulary import Vocabulary

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>")
"""Tokens that end a turn in known chat templates; where a vocabulary has one, it ends a generation."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a context. `template` text may spell special tokens. `owner` names whose text it is."""

    text: str
    template: bool
    owner: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, and for each the owner of the piece in which its text begins."""

    ids: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        token_bytes: exact bytes of each token id; None for special tokens and ids without a token.
        end_ids: tokens that end a generation: all that the model's files name, and the end of a chat turn.
        bos_id, eos_id: of the tokens that open and end a sequence, where there are such.
        bos_token, eos_token: their text, "" where there is none.
        chat_template: the model's Jinja source, or None.

    Raises:
        ModelLoadError: the files hold no tokenizer, or one that is not supported.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        with damage_named(files.source):
            spec = _parsed(files)
            self.token_bytes = vocabulary_bytes(spec, source=files.source)
            self._encoder = TextEncoder(spec, files.source)
            self._specials = SpecialTokens(spec["added_tokens"])
            self._vocabularies: dict[int, Vocabulary] = {}
            self.bos_token = files.special_token("bos_token")
            self.eos_token = files.special_token("eos_token")
            self.bos_id = self._specials.ids.get(self.bos_token)
            self.eos_id = self._specials.ids.get(self.eos_token)
            self.end_ids = self._end_ids(files)
            self.chat_template = files.chat_template
            self._adds_bos = self.bos_id is not None and (
                self._encoder.adds_token == self.bos_id if files.adds_bos is None else files.adds_bos
            )

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """The tokenizer of a model folder or of a .gguf file.

        Raises:
            ModelLoadError: see the class.
        """
        path = Path(path)
        if path.suffix == ".gguf" and path.is_file():
            from .gguf_reader import GGUFFile
            from .gguf_tokenizer import tokenizer_files

            with damage_named(str(path)):
                files = tokenizer_files(GGUFFile(path))
            return cls(files)
        return cls(TokenizerFiles.from_folder(path))

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts of all special tokens, in the order of their ids."""
        return tuple(text for _, text in sorted(self._specials.texts.items()))

    @property
    def start_id(self) -> int:
        """What an empty context begins with: the BOS token, else the EOS token.

        Raises:
            ModelLoadError: the model has neither.
        """
        start = self.bos_id if self.bos_id is not None else self.eos_id
        if start is None:
            raise ModelLoadError(
                "the tokenizer has neither a bos_token nor an eos_token to begin an empty context with"
            )
        return start

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> Encoded:
        """Encode pieces as one text.

        Special tokens are recognised in template pieces. Everything between two of them is encoded as one string,
        whatever pieces it came in.

        Args:
            start: the text begins a sequence: the BOS token comes first where the tokenizer adds one, unless the text
                begins with it itself (it belongs to the first piece).
        """
        encoded = Encoded()
        run = _Run(first=start)
        for piece in pieces:
            for part in self._specials.split(piece.text) if piece.template else (piece.text,):
                if isinstance(part, str):
                    run.append(part, piece.owner)
                    continue
                self._flush(run, encoded)
                encoded.ids.append(part)
                encoded.owners.append(piece.owner)
        self._flush(run, encoded)
        if start and self._adds_bos and encoded.ids and encoded.ids[0] != self.bos_id:
            assert self.bos_id is not None
            encoded.ids.insert(0, self.bos_id)
            encoded.owners.insert(0, encoded.owners[0])
        return encoded

    def owners_of(self, texts: Sequence[Text], *, start: bool) -> list[int]:
        """For each token of constant text that stands together, the id of the node in which it begins."""
        return self.encode([Piece(text.text, text.template, text.id) for text in texts], start=start).owners

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text that goes on from other text."""
        return list(self._encoder.encode(text, first=False).ids)

    def spell(self, text: str) -> list[int]:
        """The same for a short text that is not expected again: half the work, and nothing is kept."""
        return list(self._encoder.ids(text))

    def token_text(self, token_id: int) -> str:
        """A token's text by itself: the name of a special token, and replacement characters for parts of characters.

        An id without a token has the text "".
        """
        if token_id in self._specials.texts:
            return self._specials.texts[token_id]
        known = self.token_bytes[token_id] if 0 <= token_id < len(self.token_bytes) else None
        return (known or b"").decode(errors="replace")

    def vocabulary(self, size: int) -> Vocabulary:
        """The vocabulary that grammars are compiled against, for `size` logits. Built once a size."""
        from palmette.constrained.vocabulary import Vocabulary

        if size not in self._vocabularies:
            known = self.token_bytes[:size]
            ends = [token_id for token_id in self.end_ids if token_id < size]
            self._vocabularies[size] = Vocabulary(known, end_ids=ends, size=size)
        return self._vocabularies[size]

    def _flush(self, run: _Run, encoded: Encoded) -> None:
        """Encode the text gathered so far."""
        if not run.parts:
            return
        string = self._encoder.encode("".join(run.parts), first=run.first)
        encoded.ids.extend(string.ids)
        if len(run.owners) == 1:
            encoded.owners.extend(run.owners * len(string.ids))
        else:
            encoded.owners.extend([run.owners[bisect_right(run.starts, start) - 1] for start in string.starts])
        run.clear()

    def _end_ids(self, files: TokenizerFiles) -> frozenset[int]:
        sources = (files.config, files.config.get("text_config") or {}, files.generation_config)
        ends = {token_id for source in sources for token_id in token_ids(source.get("eos_token_id"))}
        ends |= {self._specials.ids[token] for token in END_OF_TURN if token in self._specials.ids}
        return frozenset(ends if self.eos_id is None else ends | {self.eos_id})


class _Run:
    """Ordinary text between two special tokens: its parts, and where each begins and whose it is."""

    def __init__(self, *, first: bool) -> None:
        self.first = first
        self.parts: list[str] = []
        self.starts: list[int] = []
        self.owners: list[int] = []
        self._length = 0

    def append(self, text: str, owner: int) -> None:
        if text:
            self.parts.append(text)
            self.starts.append(self._length)
            self.owners.append(owner)
            self._length += len(text)

    def clear(self) -> None:
        """Begin the next run, which is no longer the first."""
        self.first = False
        self.parts, self.starts, self.owners = [], [], []
        self._length = 0


def _parsed(files: TokenizerFiles) -> dict[str, Any]:
    try:
        spec = json.loads(files.tokenizer_json)
        spec["model"]["vocab"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelLoadError(
            f"{files.source}: tokenizer.json does not describe a tokenizer with a vocabulary"
        ) from None
    return {**spec, "added_tokens": all_added_tokens(spec, files.tokenizer_config, files.source)}
