"""Text to token ids, where special tokens come from templates only and text between them is encoded as one string."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelLoadError
from .models.config import token_ids
from .token_bytes import vocabulary_bytes
from .tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    import tokenizers

    from palmette.constrained.vocabulary import Vocabulary

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>")
"""Tokens that end a turn in known chat templates; where a vocabulary has one, it ends a generation."""

_CACHED_FROM = 256
_CACHED_CHARACTERS = 4_000_000


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


@dataclass(frozen=True, slots=True)
class _Ids:
    """Tokens of one string, and the character at which each begins."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]


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
        spec = _parsed(files)
        self._whole = _build(spec, files.source)
        self._inner = _without_dummy_prefix(spec, files.source) or self._whole
        self._cache = _EncodingCache()
        self._vocabularies: dict[int, Vocabulary] = {}
        self.token_bytes = vocabulary_bytes(spec, source=files.source)
        self._specials = {token["content"]: token["id"] for token in spec["added_tokens"] if token["special"]}
        self._special_pattern = _pattern([token for token in spec["added_tokens"] if token["special"]])
        self.bos_token = files.special_token("bos_token")
        self.eos_token = files.special_token("eos_token")
        self.bos_id = self._id_of(self.bos_token)
        self.eos_id = self._id_of(self.eos_token)
        self.end_ids = self._end_ids(files)
        self.chat_template = files.chat_template
        self._adds_bos = self.bos_id is not None and _adds(self._whole, self.bos_id)
        for tokenizer in (self._whole, self._inner):
            tokenizer.encode_special_tokens = True  # special tokens spelled in text are ordinary text
            tokenizer.post_processor = None  # it would add tokens, and trim spaces off where tokens begin

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

            return cls(tokenizer_files(GGUFFile(path)))
        return cls(TokenizerFiles.from_folder(path))

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
            for part in self._parts(piece):
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

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text that goes on from other text."""
        return list(self._encode_string(text, first=False).ids)

    def vocabulary(self, size: int) -> Vocabulary:
        """The vocabulary that grammars are compiled against, for `size` logits. Built once a size."""
        from palmette.constrained.vocabulary import Vocabulary

        if size not in self._vocabularies:
            known = self.token_bytes[:size]
            ends = [token_id for token_id in self.end_ids if token_id < size]
            self._vocabularies[size] = Vocabulary(known, end_ids=ends, size=size)
        return self._vocabularies[size]

    def _parts(self, piece: Piece) -> Iterator[str | int]:
        """A piece as ordinary strings and ids of special tokens."""
        if not piece.template or self._special_pattern is None:
            yield piece.text
            return
        for i, part in enumerate(self._special_pattern.split(piece.text)):
            if i % 2 == 0:
                yield part
            else:
                yield self._specials[part] if part in self._specials else self._specials[part.strip()]

    def _flush(self, run: _Run, encoded: Encoded) -> None:
        """Encode the text gathered so far."""
        if not run.parts:
            return
        string = self._encode_string("".join(run.parts), first=run.first)
        encoded.ids.extend(string.ids)
        encoded.owners.extend(run.owners[bisect_right(run.starts, start) - 1] for start in string.starts)
        run.clear()

    def _encode_string(self, text: str, *, first: bool) -> _Ids:
        key = (text, first)
        if (known := self._cache.get(key)) is not None:
            return known
        encoding = (self._whole if first else self._inner).encode(text, add_special_tokens=False)
        ids = _Ids(tuple(encoding.ids), tuple(start for start, _ in encoding.offsets))
        self._cache.put(key, ids)
        return ids

    def _id_of(self, token: str) -> int | None:
        return self._whole.token_to_id(token) if token else None

    def _end_ids(self, files: TokenizerFiles) -> frozenset[int]:
        ends = {*token_ids(files.config.get("eos_token_id")), *token_ids(files.generation_config.get("eos_token_id"))}
        ends |= {self._specials[token] for token in END_OF_TURN if token in self._specials}
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


class _EncodingCache:
    """Encodings of long strings, least recently used dropped first; bounded by characters kept."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, bool], _Ids] = OrderedDict()
        self._characters = 0

    def get(self, key: tuple[str, bool]) -> _Ids | None:
        if (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: tuple[str, bool], ids: _Ids) -> None:
        if not _CACHED_FROM <= len(key[0]) <= _CACHED_CHARACTERS or key in self._entries:
            return
        self._entries[key] = ids
        self._characters += len(key[0])
        while self._characters > _CACHED_CHARACTERS:
            (text, _), _ = self._entries.popitem(last=False)
            self._characters -= len(text)


def _parsed(files: TokenizerFiles) -> dict[str, Any]:
    try:
        spec = json.loads(files.tokenizer_json)
        spec["model"]["vocab"]
    except (ValueError, KeyError, TypeError):
        raise ModelLoadError(
            f"{files.source}: tokenizer.json does not describe a tokenizer with a vocabulary"
        ) from None
    spec["added_tokens"] = spec.get("added_tokens") or []
    return dict(spec)


def _build(spec: dict[str, Any], source: str) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the package raises bare Exception
        raise ModelLoadError(f"{source}: tokenizer.json cannot be used: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_dummy_prefix(spec: dict[str, Any], source: str) -> tokenizers.Tokenizer | None:
    """The tokenizer that puts no space before its text, or None where it never does."""
    changed = {**spec, "normalizer": _no_prepend(spec.get("normalizer")), "pre_tokenizer": _no_prefix(spec)}
    return None if changed == spec else _build(changed, source)


def _no_prepend(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    return {**normalizer, "normalizers": [part for part in normalizer["normalizers"] if part["type"] != "Prepend"]}


def _no_prefix(spec: dict[str, Any]) -> dict[str, Any] | None:
    pre_tokenizer: dict[str, Any] | None = spec.get("pre_tokenizer")
    if pre_tokenizer is None:
        return None
    if pre_tokenizer["type"] == "Sequence":
        return {**pre_tokenizer, "pretokenizers": [_unprefixed(part) for part in pre_tokenizer["pretokenizers"]]}
    return _unprefixed(pre_tokenizer)


def _unprefixed(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("add_prefix_space"):
        part = {**part, "add_prefix_space": False}
    return {**part, "prepend_scheme": "never"} if "prepend_scheme" in part else part


def _pattern(specials: list[dict[str, Any]]) -> re.Pattern[str] | None:
    """Matches special tokens in template text, the longest first, with the spaces that they swallow."""
    longest_first = sorted(specials, key=lambda token: -len(token["content"]))
    alternatives = (
        (r"\s*" if token.get("lstrip") else "") + re.escape(token["content"]) + (r"\s*" if token.get("rstrip") else "")
        for token in longest_first
    )
    return re.compile(f"({'|'.join(alternatives)})") if specials else None


def _adds(tokenizer: tokenizers.Tokenizer, bos_id: int) -> bool:
    """Whether the tokenizer itself puts the BOS token before a text."""
    return tokenizer.encode("a").ids[:1] == [bos_id]
