"""A grammar as a logits processor for `generate` of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .backends import TokenGrammar
from .backends.text_states import end_tokens
from .compiler import compile_grammar
from .errors import GrammarError, UnsupportedGrammarError
from .grammar import Grammar
from .matcher import Matcher
from .vocabulary import Vocabulary


class TokenIds(Protocol):
    """[batch, length] token ids, such as a tensor of torch."""

    @property
    def shape(self) -> Sequence[int]: ...

    def tolist(self) -> list[list[int]]: ...


class Scores(Protocol):
    """[batch, width] logits: what this module uses of a tensor of torch, which it does not import."""

    @property
    def shape(self) -> Sequence[int]: ...

    def new_tensor(self, data: NDArray[np.bool_], /) -> Self: ...

    def bool(self) -> Self: ...

    def masked_fill(self, mask: Self, value: float, /) -> Self: ...


AnyScores = TypeVar("AnyScores", bound=Scores)


class LogitsProcessor:
    """Holds what transformers' `generate` writes to a grammar: each sequence of the batch to its own copy of it.

    Once a text is complete and nothing may follow, and after an end token, only end tokens are allowed. Logits of ids
    that the vocabulary does not have are masked. One processor serves one call of `generate`; `reset` readies it for
    the next. Beams, which `generate` swaps between rows, and drafts of assisted decoding are refused.
    """

    def __init__(
        self,
        grammar: Grammar | TokenGrammar,
        vocabulary: Vocabulary | None = None,
        *,
        prompt_length: int | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        """
        Args:
            grammar: compiled, or to be compiled for `vocabulary`.
            vocabulary: of the model (`Vocabulary.of(tokenizer)`); only for a grammar that is not compiled yet.
            prompt_length: tokens of the prompt, padding included; None takes what the first call brings.
            max_new_tokens: the same as is given to `generate`: the answer is then complete within that many tokens.
                None does not steer, and an answer may be cut off.

        Raises:
            GrammarError: see `compile_grammar`; or `max_new_tokens` is below what the shortest match takes.
            UnsupportedGrammarError: `max_new_tokens` with a grammar backend that knows no endings.
            ValueError: the vocabulary is missing or given twice, or names no end token.
        """
        self.grammar = _compiled(grammar, vocabulary)
        if not self.grammar.vocabulary.end_ids:
            raise ValueError("the vocabulary names no end token, so no answer could end; give it end_ids")
        self._ends = end_tokens(self.grammar.vocabulary)
        self._max_new_tokens = max_new_tokens
        self._given_length = prompt_length
        self._check_room()
        self.reset()

    def reset(self) -> None:
        """Forget the sequences: the next call begins new ones."""
        self._prompt_length = self._given_length
        self._matchers: list[Matcher] = []
        self._taken: list[list[int]] = []

    def __call__(self, input_ids: TokenIds, scores: AnyScores) -> AnyScores:
        """Mask the scores of tokens that may not come next.

        Args:
            input_ids: [batch, length] prompt and tokens so far; one more a call.
            scores: [batch, width] logits.

        Returns:
            new scores, minus infinity where a token is not allowed.

        Raises:
            TokenRejectedError: a token was chosen that the masks did not allow.
            ValueError: the rows are not those of the last call with one more token.
        """
        self._follow(input_ids)
        allowed = np.zeros(tuple(scores.shape), np.bool_)
        for row, matcher in enumerate(self._matchers):
            bits = np.unpackbits(self._mask(row, matcher).view(np.uint8), bitorder="little").astype(np.bool_)
            width = min(allowed.shape[1], self.grammar.vocabulary.size)
            allowed[row, :width] = bits[:width]
        return scores.masked_fill(scores.new_tensor(~allowed).bool(), float("-inf"))

    def _follow(self, input_ids: TokenIds) -> None:
        """Bring the matchers to the ends of the rows."""
        batch, length = input_ids.shape
        if not self._matchers:
            if self._prompt_length is None:
                self._prompt_length = length
            self._matchers = [self.grammar.matcher() for _ in range(batch)]
            self._taken = [[] for _ in range(batch)]
        assert self._prompt_length is not None
        if batch != len(self._matchers) or length < self._prompt_length:
            raise ValueError(f"input_ids are [{batch}, {length}], other sequences than before; call reset() in between")
        for row, token_ids in enumerate(input_ids.tolist()):
            self._take(row, token_ids[self._prompt_length :])

    def _take(self, row: int, token_ids: list[int]) -> None:
        taken, matcher = self._taken[row], self._matchers[row]
        if token_ids[: len(taken)] != taken:
            raise ValueError(
                f"the tokens of row {row} are not those of the call before and one more: beam search and assisted "
                "decoding are not supported, and a new generation needs reset()"
            )
        for token_id in token_ids[len(taken) :]:
            if not matcher.finished:  # what comes after the end is padding
                matcher.accept(token_id)
            taken.append(token_id)

    def _mask(self, row: int, matcher: Matcher) -> NDArray[np.uint32]:
        if matcher.finished:
            return self._ends
        if self._max_new_tokens is None:
            return matcher.mask()
        left = self._max_new_tokens - len(self._taken[row])
        within = matcher.mask_within(left)
        return within if within.any() else matcher.mask()  # generate goes on past max_new_tokens

    def _check_room(self) -> None:
        """Refuse a `max_new_tokens` that no match fits."""
        if self._max_new_tokens is None:
            return
        if not self.grammar.always_completes:
            raise UnsupportedGrammarError(
                f"{self.grammar!r} does not know how far the end of a text is, so it cannot keep to max_new_tokens"
            )
        matcher = self.grammar.matcher()
        least = -(-matcher.ending_bytes() // max(1, self.grammar.vocabulary.longest))
        least = least if least > self._max_new_tokens else len(matcher.shortest_ending())
        if least > self._max_new_tokens:
            raise GrammarError(
                f"the shortest text that matches takes at least {least} tokens, but max_new_tokens is "
                f"{self._max_new_tokens}"
            )


def _compiled(grammar: Grammar | TokenGrammar, vocabulary: Vocabulary | None) -> TokenGrammar:
    if not isinstance(grammar, Grammar):
        if vocabulary is not None and vocabulary is not grammar.vocabulary:
            raise ValueError("the grammar is compiled already, for another vocabulary; give one or the other")
        return grammar
    if vocabulary is None:
        raise ValueError("a grammar that is not compiled needs the vocabulary: Vocabulary.of(tokenizer)")
    return compile_grammar(grammar, vocabulary)
