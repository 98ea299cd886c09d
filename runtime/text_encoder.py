"""Ordinary text to token ids, by the `tokenizers` package; special tokens are out of its reach."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ModelLoadError, RequestError
from .tokenizer_spec import LEADING_SPACES, TRAILING_SPACES

if TYPE_CHECKING:
    import tokenizers

_CACHED_CHARACTERS = 4_000_000
_ENTRY_CHARACTERS = 64  # what an entry takes beside its text, whose tokens take as much
_WHITE_SPACE = "".join(character for character in map(chr, range(0x3001)) if character.isspace())


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Tokens of one string, and the character at which each begins."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]


class TextEncoder:
    """Encodes strings that are text throughout: what spells a special token or a byte token is only its characters.

    Attributes:
        adds_token: the id that the tokenizer itself puts before a text, None where it puts none there.

    Raises:
        ModelLoadError: the `tokenizers` package refuses the tokenizer.
    """

    def __init__(self, spec: Mapping[str, Any], source: str) -> None:
        """Make one from the object of a tokenizer.json."""
        self._byte_ids = _byte_ids(spec["model"])
        self._unknown_id = spec["model"].get("unk_id")
        self._tokenizer = _build(_only_text(spec), source)
        self._edges = _Edges.of(spec, self._tokenizer)
        self._cache = _EncodingCache()
        self.adds_token = self._first_of_own()
        self._tokenizer.post_processor = None  # it would add tokens, and trim spaces off where tokens begin

    def encode(self, text: str, *, first: bool) -> EncodedText:
        """Ids of a text; `first` where a sequence begins with it, as only there it may get a space of its own."""
        key = (text, first)
        if (known := self._cache.get(key)) is not None:
            return known
        edged, shift = self._edges.apply(text, first=first)
        encoding = self._encoded(edged)
        starts = [start for start, _ in encoding.offsets]
        if shift:
            starts = [max(0, start - shift) for start in starts]
        encoded = EncodedText(tuple(encoding.ids), tuple(starts))
        if self._byte_ids:
            encoded = self._spelled(encoded, encoding.tokens)
        self._cache.put(key, encoded)
        return encoded

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text that goes on from other text, not kept. Where tokens begin takes as long again to find out."""
        if self._byte_ids:
            return self.encode(text, first=False).ids
        return tuple(self._encoded(self._edges.apply(text, first=False)[0]).ids)

    def _encoded(self, text: str) -> tokenizers.Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except BaseException as error:  # the package's panics are no Exception; one must end this request only
            if type(error).__name__ != "PanicException":
                raise
            raise RequestError(f"the tokenizer cannot encode the text {text[:80]!r}: {error}") from error

    def _spelled(self, encoded: EncodedText, tokens: list[str]) -> EncodedText:
        """The same with the bytes of unknown text in place of the unknown token."""
        if self._unknown_id not in encoded.ids:
            return encoded
        ids: list[int] = []
        starts: list[int] = []
        for token_id, start, token in zip(encoded.ids, encoded.starts, tokens, strict=True):
            spelled = [self._byte_ids[b] for b in token.encode()] if token_id == self._unknown_id else [token_id]
            ids += spelled
            starts += [start] * len(spelled)
        return EncodedText(tuple(ids), tuple(starts))

    def _first_of_own(self) -> int | None:
        """The first id that the tokenizer adds before the ids of a text."""
        plain, whole = (self._tokenizer.encode("a", add_special_tokens=added).ids for added in (False, True))
        return whole[0] if whole[:1] != plain[:1] else None


@dataclass(frozen=True, slots=True)
class _Edges:
    """What happens at the ends of a text. At its beginning it does where a sequence begins, and nowhere else.

    Attributes:
        leading, trailing: characters that are taken off.
        prefix: what is put before a text.
        unless: beginnings of texts that get no prefix.
    """

    leading: str = ""
    trailing: str = ""
    prefix: str = ""
    unless: tuple[str, ...] = ()

    def apply(self, text: str, *, first: bool) -> tuple[str, int]:
        """The text to encode, and by how much its characters have moved."""
        text = text.rstrip(self.trailing)
        if not first:
            return text, 0
        edged = text.lstrip(self.leading)
        if edged and not edged.startswith(self.unless):
            edged = self.prefix + edged
        return edged, len(edged) - len(text)

    @classmethod
    def of(cls, spec: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> _Edges:
        leading = trailing = prefix = ""
        unless: tuple[str, ...] = ()
        for part in [*_parts(spec, "normalizer"), *_parts(spec, "pre_tokenizer")]:
            match part:
                case {"type": "Prepend", "prepend": str(prefix)}:
                    pass
                case {"type": "Strip", "strip_left": True}:
                    leading = _WHITE_SPACE
                case {"type": "Metaspace"} if _prefixes(part):
                    prefix = part["replacement"]
                    unless = (prefix, " ")
                case {"type": "ByteLevel"} if _prefixes(part):
                    prefix, unless = " ", (" ",)
                case _ if part == LEADING_SPACES:
                    leading = _spaces(tokenizer)
                case _ if part == TRAILING_SPACES:
                    trailing = _spaces(tokenizer) + tokenizer.normalizer.normalize_str(" ")
        return cls(leading, trailing, prefix, unless)


def _spaces(tokenizer: tokenizers.Tokenizer) -> str:
    """The characters that the normalizer makes a space of."""
    normalize = tokenizer.normalizer.normalize_str
    return "".join(character for character in _WHITE_SPACE if normalize(character) == normalize(" "))


def _parts(spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The parts of a component of tokenizer.json: those inside a sequence one by one."""
    component = spec.get(name)
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return list(component["normalizers" if name == "normalizer" else "pretokenizers"])


def _prefixes(part: Mapping[str, Any]) -> bool:
    return bool(part["prepend_scheme"] != "never" if "prepend_scheme" in part else part.get("add_prefix_space"))


def _only_text(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer without special tokens, and without what its `_Edges` do."""
    added = spec["added_tokens"]
    normalizers = [changed for part in _parts(spec, "normalizer") if (changed := _edgeless_normalizer(part))]
    pre_tokenizers = [_edgeless_pre_tokenizer(part) for part in _parts(spec, "pre_tokenizer")]
    return {
        **spec,
        "added_tokens": [token for token in added if not token["special"]],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers} if pre_tokenizers else None,
        "model": _text_model(spec["model"], added),
    }


def _edgeless_normalizer(part: dict[str, Any]) -> dict[str, Any] | None:
    if part["type"] == "Prepend" or part in (LEADING_SPACES, TRAILING_SPACES):
        return None
    return {**part, "strip_left": False} if part["type"] == "Strip" else part


def _edgeless_pre_tokenizer(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("add_prefix_space"):
        part = {**part, "add_prefix_space": False}
    return {**part, "prepend_scheme": "never"} if "prepend_scheme" in part else part


def _text_model(model: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    """The model with an entry for each added token that text may spell: without one the package gives it another id."""
    if isinstance(model["vocab"], list):
        return _unigram_of_text(model, added)
    vocabulary = model["vocab"] | {token["content"]: token["id"] for token in added if not token["special"]}
    if model.get("ignore_merges"):  # a whole word is looked up in the vocabulary
        needed = {model.get("unk_token"), *("".join(_pair(merge)) for merge in model["merges"])}
        hidden = {token["content"] for token in added if token["special"]} - needed
        vocabulary = {text: token_id for text, token_id in vocabulary.items() if text not in hidden}
    return {**model, "vocab": vocabulary} | ({"dropout": None} if "dropout" in model else {})


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _unigram_of_text(model: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    """A unigram model looks up all of its vocabulary in text: special and byte tokens get names that no text has."""
    vocabulary = [list(entry) for entry in model["vocab"]]
    hidden = {token["id"] for token in added if token["special"]} | set(_byte_ids(model))
    size = max([len(vocabulary), *(token["id"] + 1 for token in added)])
    hidden |= set(range(len(vocabulary), size))
    vocabulary += [["", 0.0] for _ in range(len(vocabulary), size)]
    for token_id in hidden:
        vocabulary[token_id][0] = f" \uffff{token_id}"  # spaces are escaped before the model sees text
    for token in added:
        if not token["special"]:
            vocabulary[token["id"]][0] = token["content"]
    return {**model, "vocab": vocabulary, "byte_fallback": False}


def _byte_ids(model: Mapping[str, Any]) -> list[int]:
    """Ids of the 256 byte tokens of a unigram model that falls back to them; else none.

    The package's own fallback would also take ``<0x41>`` in a text for a byte token.
    """
    if not (isinstance(model["vocab"], list) and model.get("byte_fallback")):
        return []
    ids = {text: token_id for token_id, (text, _) in enumerate(model["vocab"])}
    byte_ids = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    return [token_id for token_id in byte_ids if token_id is not None] if None not in byte_ids else []


def _build(spec: dict[str, Any], source: str) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the package raises bare Exception
        raise ModelLoadError(f"{source}: tokenizer.json cannot be used: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class _EncodingCache:
    """Encodings of strings, least recently used dropped first; bounded by characters kept. Any thread may ask.

    Short ones are worth keeping too: what a chat template puts between two special tokens is the same in every chat.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, bool], EncodedText] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, bool]) -> EncodedText | None:
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: tuple[str, bool], encoded: EncodedText) -> None:
        if len(key[0]) > _CACHED_CHARACTERS:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = encoded
            self._characters += len(key[0]) + _ENTRY_CHARACTERS
            while self._characters > _CACHED_CHARACTERS:
                (text, _), _ = self._entries.popitem(last=False)
                self._characters -= len(text) + _ENTRY_CHARACTERS
