"""XGrammar as a backend: a pushdown automaton with token masks made ahead, in C++."""

from __future__ import annotations

import re
import threading
from weakref import WeakKeyDictionary

import numpy as np
import xgrammar as xg
from numpy.typing import NDArray

from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits
from palmette.constrained.vocabulary import Vocabulary

from .sources import choices_of, ebnf_of, refuse_kind, schema_text
from .text_states import TextStateGrammar, plain_tokens


class XGrammarBackend:
    """Regular expressions, JSON Schema, choices, EBNF and structural tags. Endings are not known."""

    name = "xgrammar"

    def __init__(self) -> None:
        self._compilers: WeakKeyDictionary[Vocabulary, xg.GrammarCompiler] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits) -> TextStateGrammar:
        """See `GrammarBackend`. The engine has no limits of time; one grammar is compiled at a time."""
        limits.check("source_chars", len(grammar.source), "characters of the grammar")
        with self._lock:
            try:
                compiled = _compiled(self._compiler(vocabulary), grammar)
            except (RuntimeError, ValueError) as error:
                if isinstance(error, GrammarError):
                    raise
                raise GrammarError(f"xgrammar: {_reason(error)}") from error
        return TextStateGrammar(self.name, grammar, vocabulary, _Matcher(xg.GrammarMatcher(compiled), vocabulary))

    def _compiler(self, vocabulary: Vocabulary) -> xg.GrammarCompiler:
        known = self._compilers.get(vocabulary)
        if known is None:
            end_id = vocabulary.size  # an end token of its own, past all others
            tokens = xg.TokenizerInfo(
                [*plain_tokens(vocabulary), b"<end>"], xg.VocabType.RAW, vocab_size=end_id + 1, stop_token_ids=[end_id]
            )
            known = xg.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
            self._compilers[vocabulary] = known
        return known


class _Matcher:
    def __init__(self, matcher: xg.GrammarMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def fork(self) -> _Matcher:
        return _Matcher(self._matcher.fork(), self._vocabulary)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def is_accepting(self) -> bool:
        return bool(self._matcher.is_completed())

    def allowed(self) -> NDArray[np.uint32]:
        bits = np.full((1, -(-(self._vocabulary.size + 1) // 32)), -1, np.int32)
        self._matcher.fill_next_token_bitmask(bits)
        words: NDArray[np.uint32] = bits[0].view(np.uint32)
        return words

    def forced_bytes(self) -> bytes:
        return str(self._matcher.find_jump_forward_string()).encode()


def _compiled(compiler: xg.GrammarCompiler, grammar: Grammar) -> xg.CompiledGrammar:
    match grammar.kind:
        case "regex":
            return compiler.compile_regex(grammar.source)
        case "json_schema":
            return compiler.compile_json_schema(
                schema_text(XGrammarBackend.name, grammar), strict_mode=False, max_whitespace_cnt=40
            )
        case "choices":
            alternatives = " | ".join(_literal(choice) for choice in choices_of(grammar))
            return compiler.compile_grammar(f"root ::= {alternatives}")
        case "ebnf":
            text, root = ebnf_of(grammar)
            return compiler.compile_grammar(text, root_rule_name=root)
        case "structural_tag":
            return compiler.compile_structural_tag(grammar.source)
    raise refuse_kind(XGrammarBackend.name, grammar)


def _literal(text: str) -> str:
    """A string literal of XGrammar's EBNF."""
    return '"' + "".join(char if char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


def _reason(error: Exception) -> str:
    """The engine's error without its time and place in C++."""
    return re.sub(r"^\[[\d:]+\] \S+?:\d+: ", "", str(error)).strip()
