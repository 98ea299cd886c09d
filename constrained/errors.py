"""The root of every error that Palmette raises, and the errors of grammars.

The lowest layer holds the root so that every folder can derive from it::

    PalmetteError
    ├── GrammarError (ValueError)           a grammar that cannot be used; .pointer says where
    │   ├── UnsupportedGrammarError         legal, but a feature this engine refuses by name
    │   ├── UnsatisfiableGrammarError       nothing at all matches it
    │   └── GrammarLimitError               larger than the stated limits of time, states or memory
    ├── GrammarBackendError (ValueError)    no grammar backend of that name, or its package is missing
    ├── VocabularyError (ValueError)        a tokenizer whose tokens have no exact bytes
    ├── TokenRejectedError (ValueError)     a matcher was given a token that its grammar does not allow
    ├── runtime: RequestError, ModelLoadError, EngineError ...  (palmette.runtime.errors)
    └── lang: ProgramError ...                                  (palmette.lang.errors)
"""

from __future__ import annotations


class PalmetteError(Exception):
    """Root of all errors raised by Palmette."""


class GrammarError(PalmetteError, ValueError):
    """A grammar that cannot be compiled.

    Attributes:
        pointer: where in the grammar: a JSON pointer (``/properties/age``) for a schema, a character
            offset such as ``@12`` for a pattern, or ``""`` for the whole.
    """

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(f"{message} (at {pointer})" if pointer else message)
        self.pointer = pointer


class UnsupportedGrammarError(GrammarError):
    """A legal grammar that uses a feature this engine refuses by name."""


class UnsatisfiableGrammarError(GrammarError):
    """A grammar that no text at all matches."""


class GrammarLimitError(GrammarError):
    """A grammar larger than the limits of time, states or memory."""


class TokenRejectedError(PalmetteError, ValueError):
    """A matcher was asked to accept a token that its grammar does not allow in this state."""


class GrammarBackendError(PalmetteError, ValueError):
    """There is no grammar backend of that name, or the package that it needs is not installed."""


class VocabularyError(PalmetteError, ValueError):
    """A tokenizer whose tokens cannot be had as bytes."""
