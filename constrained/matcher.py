"""Where one text stands in its grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import TokenRejectedError

if TYPE_CHECKING:
    from .backends.backend import TokenGrammar


class Matcher:
    """A state of a compiled grammar that moves with a text, and can be copied and rolled back.

    Attributes:
        grammar: the compiled grammar, shared with other matchers.
        state: the grammar's state after the accepted tokens.
    """

    def __init__(self, grammar: TokenGrammar) -> None:
        """A matcher at the start of `grammar`; `CompiledGrammar.matcher` makes one."""
        self.grammar = grammar
        self.state = grammar.start
        self._ended = False
        self._finished: bool | None = None  # None: not asked for here yet; it is, several times a token
        self._before: list[int] = []  # the state before each accepted token

    def __repr__(self) -> str:
        return f"Matcher({self.grammar.grammar!r}, state={self.state}, tokens={len(self._before)})"

    @property
    def finished(self) -> bool:
        """Whether an end token was accepted, or the text is complete and nothing may follow."""
        if self._finished is None:
            self._finished = self._ended or self.grammar.is_final(self.state)
        return self._finished

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.grammar.is_accepting(self.state)

    def accept(self, token_id: int) -> None:
        """Move on by one token; an end token only where the text may end.

        Raises:
            TokenRejectedError: the token is not allowed here, or an end token was accepted before. Nothing changes.
        """
        is_end = token_id in self.grammar.vocabulary.end_ids
        following = self._after(token_id, is_end=is_end)
        if following is None:
            raise TokenRejectedError(self._complaint(token_id))
        self._before.append(self.state)
        self.state = following
        self._ended = is_end
        self._finished = None

    def _after(self, token_id: int, *, is_end: bool) -> int | None:
        if self._ended:
            return None
        if is_end:
            return self.state if self.is_accepting else None
        return self.grammar.advance(self.state, token_id)

    def _complaint(self, token_id: int) -> str:
        vocabulary = self.grammar.vocabulary
        known = 0 <= token_id < len(vocabulary.token_bytes)
        spelling = repr(vocabulary.token_bytes[token_id]) if known else f"not in range({len(vocabulary.token_bytes)})"
        if self._ended:
            return f"token {token_id} ({spelling}) comes after an end token was accepted; roll back first"
        if token_id in vocabulary.end_ids:
            return f"end token {token_id} comes before the text is complete; see is_accepting and shortest_ending()"
        return f"token {token_id} ({spelling}) is not allowed after {len(self._before)} tokens; see mask()"

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens, end tokens included.

        Raises:
            ValueError: `count` is negative or more than were accepted.
        """
        if not 0 <= count <= len(self._before):
            raise ValueError(f"count must be from 0 to the {len(self._before)} accepted tokens, not {count}")
        if count:
            self.state = self._before[-count]
            del self._before[-count:]
            self._ended = False
            self._finished = None

    def copy(self) -> Matcher:
        """An independent matcher at the same place."""
        other = Matcher(self.grammar)
        other.state = self.state
        other._ended = self._ended
        other._before = self._before.copy()
        return other

    def mask(self) -> NDArray[np.uint32]:
        """`CompiledGrammar.mask` here."""
        return self.grammar.mask(self.state)

    def mask_within(self, tokens_left: int) -> NDArray[np.uint32]:
        """`CompiledGrammar.mask_within` here."""
        return self.grammar.mask_within(self.state, tokens_left)

    def forced_bytes(self) -> bytes:
        """`CompiledGrammar.forced_bytes` here."""
        return self.grammar.forced_bytes(self.state)

    def ending_bytes(self) -> int:
        """`CompiledGrammar.ending_bytes` here."""
        return self.grammar.ending_bytes(self.state)

    def shortest_ending(self) -> tuple[int, ...]:
        """`CompiledGrammar.shortest_ending` here."""
        return self.grammar.shortest_ending(self.state)
