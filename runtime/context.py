"""What stands before a node: token ids that are settled, and text that is not encoded yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch import Int32Array
from .errors import RequestError
from .tokenizer import Piece, Tokenizer

NO_OWNER = -1
"""Owner of a token that belongs to no node: the start token of an empty context."""

_EMPTY = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids [N] of a context, and for each the id of the node whose text it begins in."""

    ids: Int32Array
    owners: Int32Array

    def before(self, place: int) -> Prompt:
        """The first `place` tokens."""
        return Prompt(self.ids[:place], self.owners[:place])

    def after(self, place: int) -> Prompt:
        """The tokens from `place` on."""
        return Prompt(self.ids[place:], self.owners[place:])

    def then(self, other: Prompt) -> Prompt:
        """These tokens, and behind them those of another."""
        return Prompt(np.concatenate([self.ids, other.ids]), np.concatenate([self.owners, other.owners]))

    def after_start(self, start_id: int) -> Prompt:
        """The same tokens behind a start token that belongs to no node."""
        start = np.array([[start_id], [NO_OWNER]], dtype=np.int32)
        return Prompt(np.concatenate([start[0], self.ids]), np.concatenate([start[1], self.owners]))


@dataclass(frozen=True, slots=True)
class Context:
    """The text of a path of the tree, as tokens up to the last generation and as pieces of constant text after it.

    Constant text between two generations is encoded as one string, so the same text gives the same ids in however many
    nodes it came. Generated ids are settled and never encoded again.
    """

    settled: Prompt = Prompt(_EMPTY, _EMPTY)
    piece: Piece | None = None  # the last piece of constant text
    before: Context | None = None  # what stands before it

    @property
    def text_length(self) -> int:
        """Characters of the constant text since the last generation."""
        return sum(len(piece.text) for piece in self.pieces)

    @property
    def pieces(self) -> list[Piece]:
        """The constant text since the last generation. Contexts share it: a chain of nodes holds each piece once."""
        pieces = []
        context: Context | None = self
        while context is not None and context.piece is not None:
            pieces.append(context.piece)
            context = context.before
        return pieces[::-1]

    def with_text(self, text: str, *, owner: int, template: bool = False) -> Context:
        """The context with constant text behind it.

        Raises:
            RequestError: the text holds half of a surrogate pair, which no tokenizer can encode.
        """
        if not text:
            return self
        _check_characters(text)
        return Context(self.settled, Piece(text, template, owner), self)

    def with_tokens(self, token_ids: Sequence[int], tokenizer: Tokenizer, *, owner: int) -> Context:
        """The context with constant token ids behind it. The text before them is encoded by itself.

        Raises:
            RequestError: a token id that the tokenizer does not have.
        """
        known = len(tokenizer.token_bytes)
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < known:
            unknown = next(token_id for token_id in token_ids if not 0 <= token_id < known)
            raise RequestError(f"token id {unknown} is not one of the tokenizer's, which are 0 to {known - 1}")
        before = self.encode(tokenizer) if self.piece is not None else self.settled
        return self.with_output(before, token_ids, "", owner=owner)

    def with_output(self, prompt: Prompt, token_ids: Sequence[int], tail: str, *, owner: int) -> Context:
        """The context after a generation: `prompt`, its `token_ids`, and the `tail` of a token that a stop cut."""
        owners = np.array([owner] * len(token_ids), dtype=np.int32)
        output = Prompt(np.array(token_ids, dtype=np.int32), owners)
        return Context(prompt.then(output)).with_text(tail, owner=owner)

    def encode(self, tokenizer: Tokenizer) -> Prompt:
        """All of the context as tokens. An empty context is the tokenizer's start token."""
        encoded = tokenizer.encode(self.pieces, start=not len(self.settled.ids))
        prompt = Prompt(np.array(encoded.ids, dtype=np.int32), np.array(encoded.owners, dtype=np.int32))
        if len(self.settled.ids):
            return self.settled.then(prompt)
        return prompt if len(prompt.ids) else prompt.after_start(tokenizer.start_id)


def _check_characters(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds {text[error.start]!r} at place {error.start}: half of a surrogate pair, which is not a"
                " character; decode the text with errors='replace', or leave it out"
            ) from None


def shared_length(left: Int32Array, right: Int32Array) -> int:
    """Number of tokens that two sequences have in common at their beginning."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
