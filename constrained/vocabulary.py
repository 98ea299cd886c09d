"""The tokens of a model as bytes, and the trie that masks walk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .mask_cache import MaskCache
from .plain_machine import load_machine
from .slices import FEWEST_TOKENS, MOST_CHARACTERS, MOST_COVERED, Slice, tokens_by_lane
from .token_bytes import tokenizer_spec, vocabulary_bytes

_FEW_TOKENS = 256  # whose trie is made faster than numba is imported

_CACHED_MASK_BYTES = 64 << 20


class TokenTrie(NamedTuple):
    """All ordinary tokens as a trie without its root, flat in pre-order.

    A node is an index; its children follow it, and its subtree is ``range(node, end[node])``.

    Attributes:
        nodes: [nodes + 1, 4] int32, the columns below in this order; the last row is a guard.
        ids: [tokens] int32, token ids; tokens with equal bytes share a node.
    """

    nodes: NDArray[np.int32]
    ids: NDArray[np.int32]

    @property
    def byte(self) -> NDArray[np.int32]:
        """[nodes] the byte that leads to the node."""
        return self.nodes[:-1, 0]

    @property
    def end(self) -> NDArray[np.int32]:
        """[nodes] one past the last node of its subtree."""
        return self.nodes[:-1, 1]

    @property
    def depth(self) -> NDArray[np.int32]:
        """[nodes] bytes from the root, so at least 1."""
        return self.nodes[:-1, 2]

    @property
    def first(self) -> NDArray[np.int32]:
        """[nodes + 1] the node's tokens are ``ids[first[node]:first[node + 1]]``."""
        return self.nodes[:, 3]


class Vocabulary:
    """What every token of a model writes. Built once a model and shared by its grammars; never changes.

    Attributes:
        token_bytes: exact bytes of ordinary token i; None for special and unused ids, which no mask ever allows.
        end_ids: tokens that end a text; masks allow them exactly in accepting states, whatever their bytes are.
        size: number of logits. Ids past `token_bytes` are never allowed.
        words: uint32 words of a mask, ``ceil(size / 32)``.
        alphabet: bit b says whether byte b occurs in some token.
        preferred_bytes: all bytes, those that are tokens of their own first, letters and digits before the rest.
        longest: bytes of the longest token.
    """

    def __init__(
        self, token_bytes: Sequence[bytes | None], *, end_ids: Collection[int] = (), size: int | None = None
    ) -> None:
        """
        Raises:
            ValueError: `size` is below the number of tokens, or an end id is not in ``range(size)``.
        """
        self.token_bytes = tuple(token_bytes)
        self.end_ids = frozenset(end_ids)
        self.size = len(self.token_bytes) if size is None else size
        if self.size < len(self.token_bytes):
            raise ValueError(f"size must be at least the number of tokens, {len(self.token_bytes)}, not {self.size}")
        outside = sorted(i for i in self.end_ids if not 0 <= i < self.size)
        if outside:
            raise ValueError(f"end_ids must be in range({self.size}), not {outside}")
        self.words = -(-self.size // 32)
        ordinary = [(token, i) for i, token in enumerate(self.token_bytes) if token and i not in self.end_ids]
        self._sorted = SortedTokens.of(sorted(ordinary))
        self.alphabet = sum(1 << byte for byte in np.unique(self._sorted.spelled).tolist())
        self.preferred_bytes = _preferred_bytes({token[0] for token, _ in ordinary if len(token) == 1})
        self.longest = max((len(token) for token, _ in ordinary), default=0)
        self._children: dict[int, int] = {}

    @classmethod
    def of(cls, tokenizer: object, *, end_ids: Collection[int] | int | None = None, size: int | None = None) -> Self:
        """The vocabulary of a tokenizer of `transformers` or `tokenizers`, neither of which is imported.

        Args:
            tokenizer: a fast tokenizer of transformers, or a `tokenizers.Tokenizer`, with a byte-level or SentencePiece
                vocabulary.
            end_ids: tokens that end a text: as a rule ``model.generation_config.eos_token_id``, one or several. None
                takes the tokenizer's own `eos_token_id`, if it has one.
            size: number of logits, ``model.config.vocab_size``; None is the number of tokens.

        Raises:
            VocabularyError: the tokenizer is of another kind.
            ValueError: see `Vocabulary`.
        """
        spec = tokenizer_spec(tokenizer)
        token_bytes = vocabulary_bytes(spec, source=type(tokenizer).__name__)
        if end_ids is None:
            end_ids = getattr(tokenizer, "eos_token_id", None)
        ends = () if end_ids is None else (end_ids,) if isinstance(end_ids, int) else end_ids
        return cls(token_bytes, end_ids=ends, size=size)

    @cached_property
    def trie(self) -> TokenTrie:
        """The ordinary, non-empty tokens."""
        return build_trie(self._sorted)

    @cached_property
    def mask_cache(self) -> MaskCache:
        """Masks of all grammars over this vocabulary."""
        return MaskCache(_CACHED_MASK_BYTES)

    @cached_property
    def end_bits(self) -> NDArray[np.uint32]:
        """[words] uint32, the mask of `end_ids` alone."""
        return self._bits(np.array(sorted(self.end_ids), np.int32))

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """Tokens that many states allow as a whole, the larger sets first."""
        tokens = self._sorted
        found = []
        for lane, characters in enumerate(tokens_by_lane(tokens.spelled, tokens.lengths)):
            longest = min(MOST_COVERED, int(characters.max(initial=0)))
            for most in sorted({longest, *(most for most in MOST_CHARACTERS if most < longest)}):
                inside = (characters > 0) & (characters <= most)
                if inside.sum() >= FEWEST_TOKENS:
                    rest = partial(_trie_of_others, tokens, inside)
                    found.append((int(inside.sum()), Slice(lane, most, self._bits(tokens.ids[inside]), rest)))
        return tuple(each for _, each in sorted(found, key=lambda pair: -pair[0]))

    def _bits(self, ids: NDArray[np.int32]) -> NDArray[np.uint32]:
        flags = np.zeros(self.words * 32, np.bool_)
        flags[ids] = True
        return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32, copy=False)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.token_bytes)} tokens, size={self.size}, end_ids={sorted(self.end_ids)})"

    def bytes_of(self, token_id: int) -> bytes | None:
        """Bytes of an ordinary token; None for every other id, end tokens and ids out of range included."""
        if not 0 <= token_id < len(self.token_bytes) or token_id in self.end_ids:
            return None
        return self.token_bytes[token_id] or None

    def child(self, node: int, byte: int) -> int:
        """The trie node under `node` (-1: the root) along `byte`, or -1 where no token goes on so."""
        key = (node + 1) << 8 | byte
        known = self._children.get(key)
        if known is None:
            known = self._children[key] = self._find_child(node, byte)
        return known

    def _find_child(self, node: int, byte: int) -> int:
        trie = self.trie
        here, end = node + 1, len(trie.byte) if node < 0 else int(trie.end[node])
        while here < end:
            if trie.byte[here] == byte:
                return here
            here = int(trie.end[here])
        return -1

    def fewest_tokens(self, text: bytes) -> tuple[int, ...] | None:
        """The fewest ordinary tokens that spell `text`, the longest first among equals; None where none do."""
        count = [0] * (len(text) + 1)
        first: list[tuple[int, int] | None] = [None] * len(text)  # by place: a token, and the place after it
        for begin in reversed(range(len(text))):
            count[begin] = len(text) + 1
            node = -1
            for end in range(begin + 1, len(text) + 1):
                node = self.child(node, text[end - 1])
                if node < 0:
                    break
                token_id = self.token_at(node)
                if token_id is not None and count[end] + 1 <= count[begin]:
                    count[begin], first[begin] = count[end] + 1, (token_id, end)
        tokens = []
        place = 0
        while place < len(text):
            step = first[place]
            if step is None:
                return None
            tokens.append(step[0])
            place = step[1]
        return tuple(tokens)

    def token_at(self, node: int) -> int | None:
        """The lowest token id that ends at trie `node`, if any does."""
        first, last = self.trie.first[node : node + 2]
        return int(self.trie.ids[first]) if first < last else None


class SortedTokens(NamedTuple):
    """Tokens in the order of their bytes, none empty.

    Attributes:
        spelled: [bytes] uint8, all tokens one after the other.
        lengths: [tokens] int64, bytes of each.
        ids: [tokens] int32.
    """

    spelled: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, tokens: Sequence[tuple[bytes, int]]) -> Self:
        """Of sorted (bytes, id) pairs."""
        lengths = np.array([len(token) for token, _ in tokens], np.int64)
        spelled = np.frombuffer(b"".join(token for token, _ in tokens), np.uint8).copy()  # writable, as `those` are
        return cls(spelled, lengths, np.array([token_id for _, token_id in tokens], np.int32))

    def those(self, wanted: NDArray[np.bool_]) -> Self:
        """The tokens that `wanted` ([tokens]) is true of."""
        spelled = self.spelled[np.repeat(wanted, self.lengths)]
        return type(self)(spelled, self.lengths[wanted], self.ids[wanted])


def build_trie(tokens: SortedTokens) -> TokenTrie:
    """Trie of `tokens`."""
    machine = load_machine(len(tokens.ids) <= _FEW_TOKENS)
    return TokenTrie(machine.trie_nodes(tokens.spelled, tokens.lengths), tokens.ids)


def _trie_of_others(tokens: SortedTokens, inside: NDArray[np.bool_]) -> TokenTrie:
    return build_trie(tokens.those(~inside))


def _preferred_bytes(single: set[int]) -> tuple[int, ...]:
    """Readable before unreadable, so that an ending that a budget forces is still pleasant: "aaa" rather than NULs."""

    def rank(byte: int) -> tuple[bool, int, int]:
        char = chr(byte)
        kind = 3 if byte >= 0x7F or byte < 0x20 else 0 if char.islower() else 1 if char.isalnum() else 2
        return byte not in single, kind, byte

    return tuple(sorted(range(256), key=rank))
