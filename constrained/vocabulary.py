"""The tokens of a model as bytes, and the trie that masks walk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenTrie:
    """All ordinary tokens as a trie without its root, flat in pre-order.

    A node is an index; its children follow it, and its subtree is ``range(node, end[node])``.

    Attributes:
        byte: [nodes] uint8, the byte that leads to the node.
        end: [nodes] int32, one past the last node of its subtree.
        depth: [nodes] int32, bytes from the root, so at least 1.
        first: [nodes + 1] int32, the node's tokens are ``ids[first[node]:first[node + 1]]``.
        ids: [tokens] int32, token ids; tokens with equal bytes share a node.
    """

    byte: NDArray[np.uint8]
    end: NDArray[np.int32]
    depth: NDArray[np.int32]
    first: NDArray[np.int32]
    ids: NDArray[np.int32]


class Vocabulary:
    """What every token of a model writes. Built once a model and shared by its grammars; never changes.

    Attributes:
        token_bytes: exact bytes of ordinary token i; None for special and unused ids, which no mask ever allows.
        end_ids: tokens that end a text; masks allow them exactly in accepting states, whatever their bytes are.
        size: number of logits. Ids past `token_bytes` are never allowed.
        words: uint32 words of a mask, ``ceil(size / 32)``.
        trie: the ordinary, non-empty tokens.
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
        self.trie = build_trie(ordinary)
        self.alphabet = _alphabet(self.trie)
        self.preferred_bytes = _preferred_bytes({token[0] for token, _ in ordinary if len(token) == 1})
        self.longest = max((len(token) for token, _ in ordinary), default=0)
        self._children: dict[int, int] = {}

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

    def token_at(self, node: int) -> int | None:
        """The lowest token id that ends at trie `node`, if any does."""
        first, last = self.trie.first[node : node + 2]
        return int(self.trie.ids[first]) if first < last else None


def build_trie(tokens: Sequence[tuple[bytes, int]]) -> TokenTrie:
    """Trie of (bytes, id) pairs, which must not be empty bytes."""
    bytes_: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    first: list[int] = [0]
    ids: list[int] = []
    path: list[int] = []  # nodes from the root to the last token
    previous = b""
    for token, token_id in sorted(tokens):
        shared = _common_prefix(previous, token)
        for node in path[shared:]:
            ends[node] = len(bytes_)
        del path[shared:]
        for depth in range(shared, len(token)):
            if bytes_:
                first.append(len(ids))
            path.append(len(bytes_))
            bytes_.append(token[depth])
            depths.append(depth + 1)
            ends.append(0)
        ids.append(token_id)
        previous = token
    for node in path:
        ends[node] = len(bytes_)
    if bytes_:
        first.append(len(ids))
    return TokenTrie(
        np.array(bytes_, np.uint8),
        np.array(ends, np.int32),
        np.array(depths, np.int32),
        np.array(first, np.int32),
        np.array(ids, np.int32),
    )


def _common_prefix(a: bytes, b: bytes) -> int:
    if b.startswith(a):
        return len(a)
    shared = 0
    while a[shared] == b[shared]:  # neither is a prefix of the other: b sorts after a
        shared += 1
    return shared


def _alphabet(trie: TokenTrie) -> int:
    mask = 0
    for byte in np.unique(trie.byte).tolist():
        mask |= 1 << byte
    return mask


def _preferred_bytes(single: set[int]) -> tuple[int, ...]:
    """Readable before unreadable, so that an ending that a budget forces is still pleasant: "aaa" rather than NULs."""

    def rank(byte: int) -> tuple[bool, int, int]:
        char = chr(byte)
        kind = 3 if byte >= 0x7F or byte < 0x20 else 0 if char.islower() else 1 if char.isalnum() else 2
        return byte not in single, kind, byte

    return tuple(sorted(range(256), key=rank))
