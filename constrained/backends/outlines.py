"""outlines-core as a backend: an index of all states and tokens of a regular expression, made ahead, in Rust.

An oracle and a choice, not what to choose. Its `Index` has no way from an accepting state to one that is not:
``[0-9]+(\\.[0-9]+)?`` cannot write 12.5 with it.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from weakref import WeakKeyDictionary

import numpy as np
import outlines_core
from numpy.typing import NDArray
from outlines_core.json_schema import build_regex_from_schema

from palmette.constrained.errors import GrammarError, UnsupportedGrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits
from palmette.constrained.matcher import Matcher
from palmette.constrained.vocabulary import Vocabulary

from .sources import choices_of, refuse_kind, schema_text
from .text_states import MASKS_KEPT, end_tokens, keep, packed, recall


class OutlinesBackend:
    """Regular expressions (Rust's syntax), choices, and JSON schemas that it writes as one. Endings are not known."""

    name = "outlines"

    def __init__(self) -> None:
        self._vocabularies: WeakKeyDictionary[Vocabulary, outlines_core.Vocabulary] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits) -> IndexGrammar:
        """See `GrammarBackend`. The engine has no limits of time or states."""
        limits.check("source_chars", len(grammar.source), "characters of the grammar")
        pattern = _pattern(grammar)
        try:
            index = outlines_core.Index(pattern, self._vocabulary(vocabulary))
        except ValueError as error:
            raise GrammarError(f"outlines: {error}") from error
        return IndexGrammar(grammar, vocabulary, index)

    def _vocabulary(self, vocabulary: Vocabulary) -> outlines_core.Vocabulary:
        with self._lock:
            known = self._vocabularies.get(vocabulary)
            if known is None:
                ids: dict[bytes, list[int]] = {}
                for i in range(len(vocabulary.token_bytes)):
                    if token := vocabulary.bytes_of(i):
                        ids.setdefault(token, []).append(i)
                end_id = vocabulary.size  # an end token of its own, past all others
                known = self._vocabularies[vocabulary] = outlines_core.Vocabulary(end_id, ids)
            return known


class IndexGrammar:
    """An index of outlines-core with the methods of `TokenGrammar`. Endings and forced text are not known."""

    always_completes = False
    shares_states = True

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, index: outlines_core.Index) -> None:
        """For `OutlinesBackend`, which is how to make one."""
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.start = int(index.get_initial_state())
        self._index = index
        self._end_id = vocabulary.size
        self._ends = end_tokens(vocabulary)
        self._masks: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()

    def __repr__(self) -> str:
        return f"IndexGrammar({self.grammar!r})"

    def matcher(self) -> Matcher:
        """A new matcher at the start."""
        return Matcher(self)

    def advance(self, state: int, token_id: int) -> int | None:
        """See `TokenGrammar`."""
        if self.vocabulary.bytes_of(token_id) is None:
            return None
        following: int | None = self._index.get_next_state(state, token_id)
        return following

    def is_accepting(self, state: int) -> bool:
        """See `TokenGrammar`."""
        return bool(self._index.is_final_state(state))

    def is_final(self, state: int) -> bool:
        """See `TokenGrammar`."""
        return self.is_accepting(state) and not len(self._allowed(state))

    def mask(self, state: int) -> NDArray[np.uint32]:
        """See `TokenGrammar`."""
        known = recall(self._masks, state)
        if known is None:
            known = packed(self.vocabulary, self._allowed(state))
            if self.is_accepting(state):
                known |= self._ends
            known.setflags(write=False)
            keep(self._masks, state, known, MASKS_KEPT)
        return known

    def mask_within(self, state: int, tokens_left: int) -> NDArray[np.uint32]:
        """Not known. Raises `UnsupportedGrammarError`."""
        raise self._no_endings()

    def forced_bytes(self, state: int) -> bytes:
        """None: an index knows tokens, not bytes."""
        return b""

    def ending_bytes(self, state: int) -> int:
        """Not known. Raises `UnsupportedGrammarError`."""
        raise self._no_endings()

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        """Not known. Raises `UnsupportedGrammarError`."""
        raise self._no_endings()

    def _allowed(self, state: int) -> NDArray[np.int64]:
        ids: NDArray[np.int64] = np.array(self._index.get_allowed_tokens(state) or (), np.int64)
        ordinary: NDArray[np.int64] = ids[ids != self._end_id]
        return ordinary

    def _no_endings(self) -> UnsupportedGrammarError:
        return UnsupportedGrammarError("outlines does not know how far the end of a text is; native does")


def _pattern(grammar: Grammar) -> str:
    match grammar.kind:
        case "regex":
            return grammar.source
        case "choices":
            return "|".join(re.escape(choice) for choice in choices_of(grammar))
        case "json_schema":
            try:
                return str(build_regex_from_schema(schema_text(OutlinesBackend.name, grammar)))
            except ValueError as error:
                raise UnsupportedGrammarError(f"outlines: {error}") from error
    raise refuse_kind(OutlinesBackend.name, grammar)
