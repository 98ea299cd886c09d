"""What the runtime asks of a compiled grammar, and of the engine that compiles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from palmette.constrained.grammar import Grammar
    from palmette.constrained.limits import CompileLimits
    from palmette.constrained.matcher import Matcher
    from palmette.constrained.vocabulary import Vocabulary


class TokenGrammar(Protocol):
    """A grammar over one vocabulary, whichever backend compiled it. `CompiledGrammar` is the native one.

    States are ints; `start` is the first. One thread at a time may use it. Any method may raise a `GrammarError`.
    """

    @property
    def grammar(self) -> Grammar:
        """What was compiled."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was compiled for, the very object."""

    @property
    def start(self) -> int:
        """The state of an empty text."""

    @property
    def always_completes(self) -> bool:
        """Whether endings are known: where not, `mask_within`, `ending_bytes` and `shortest_ending` raise
        `UnsupportedGrammarError`, and an answer may run out of tokens before it is complete."""

    @property
    def shares_states(self) -> bool:
        """Whether different texts come to the same states, so that a mask is worth keeping by its state."""

    def matcher(self) -> Matcher:
        """A new matcher at the start."""

    def advance(self, state: int, token_id: int) -> int | None:
        """The state after an ordinary token, or None if it is not allowed. End tokens are not advanced here."""

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end in `state`."""

    def is_final(self, state: int) -> bool:
        """Whether the text may end in `state` and nothing may follow."""

    def mask(self, state: int) -> NDArray[np.uint32]:
        """[words] uint32, read-only: bit ``i % 32`` of word ``i // 32`` says whether token i is allowed in `state`.

        End tokens are allowed exactly where the state is accepting; special tokens and ids past the vocabulary never.
        """

    def mask_within(self, state: int, tokens_left: int) -> NDArray[np.uint32]:
        """The tokens of `mask(state)` after which a known ending fits in `tokens_left` tokens, the token included."""

    def forced_bytes(self, state: int) -> bytes:
        """Bytes that every continuation of `state` begins with, as far as known; empty if the text may end here."""

    def ending_bytes(self, state: int) -> int:
        """Bytes of the text that `shortest_ending` spells."""

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        """Token ids of a shortest text that ends in an accepting state; empty if `state` is accepting."""


class GrammarBackend(Protocol):
    """An engine that compiles grammars. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """As `grammar_backend=` names it."""

    def compile(self, grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits) -> TokenGrammar:
        """Compile `grammar` for the tokens of `vocabulary`.

        Raises:
            UnsupportedGrammarError: the backend does not know the kind of grammar, or a feature of it.
            GrammarError: see `palmette.constrained.compile_grammar`. Engines other than the native one do not keep to
                `limits`, but to their own.
        """
