"""llguidance as a backend: an Earley parser over derivatives of regular expressions, in Rust."""

from __future__ import annotations

import json
import threading
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, gbnf_to_lark, regex_to_lark
from numpy.typing import NDArray

from palmette.constrained.errors import GrammarError, GrammarLimitError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits
from palmette.constrained.vocabulary import Vocabulary

from .sources import choices_of, ebnf_of, lark_of, refuse_kind, schema_text
from .text_states import TextStateGrammar, plain_tokens

_HEADER = '%llguidance {"no_forcing": true}\n'
"""Allow every token that fits. By default the engine allows one spelling alone where text is forced, which needs a
model's tokenizer and not just its vocabulary."""


class LLGuidanceBackend:
    """Regular expressions (Rust's syntax), JSON Schema, choices, EBNF and Lark. Endings are not known."""

    name = "llguidance"

    def __init__(self) -> None:
        self._tokenizers: WeakKeyDictionary[Vocabulary, LLTokenizer] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits) -> TextStateGrammar:
        """See `GrammarBackend`. The engine keeps to limits of its own."""
        limits.check("source_chars", len(grammar.source), "characters of the grammar")
        source = _HEADER + _lark(grammar)
        matcher = LLMatcher(self._tokenizer(vocabulary), source, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"llguidance: {_reason(matcher)}")
        return TextStateGrammar(self.name, grammar, vocabulary, _Matcher(matcher))

    def _tokenizer(self, vocabulary: Vocabulary) -> LLTokenizer:
        with self._lock:
            known = self._tokenizers.get(vocabulary)
            if known is None:
                known = self._tokenizers[vocabulary] = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
            return known


class _Tokens:
    """A vocabulary as llguidance reads one, with an end token of its own past all others."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.size
        self.tokens = [*plain_tokens(vocabulary), b"<end>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: Any) -> list[int]:
        """No tokenizer: text is never forced as tokens."""
        return []


class _Matcher:
    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fork(self) -> _Matcher:
        return _Matcher(self._matcher.deep_copy())

    def accept(self, token_id: int) -> bool:
        if self._matcher.is_stopped():
            return False
        return bool(self._matcher.validate_tokens([token_id]) and self._matcher.consume_token(token_id))

    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    def allowed(self) -> NDArray[np.uint32]:
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarLimitError(f"llguidance: {_reason(self._matcher)}")
        return np.frombuffer(bits, "<u4")

    def forced_bytes(self) -> bytes:
        return self._matcher.compute_ff_bytes()


def _lark(grammar: Grammar) -> str:
    match grammar.kind:
        case "regex":
            return f"start: /{regex_to_lark(grammar.source, '')}/"
        case "json_schema":
            return f"start: %json {schema_text(LLGuidanceBackend.name, grammar)}"
        case "choices":
            return "start: " + " | ".join(json.dumps(choice) for choice in choices_of(grammar))
        case "ebnf":
            text, root = ebnf_of(grammar)
            if root == "root":
                return str(gbnf_to_lark.gbnf_to_lark(text))
        case "lark":
            text, start = lark_of(grammar)
            if start == "start":
                return text
    raise refuse_kind(LLGuidanceBackend.name, grammar)


def _reason(matcher: LLMatcher) -> str:
    """The engine's error without the dump of its state."""
    return matcher.get_error().partition("\n<state>")[0].strip()
