"""Engines for JSON Schema behind one small protocol, each called as its own documentation calls it.

Peers are imported where they are made, so a process that measures one engine loads no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from palmette.constrained import CompiledGrammar, Vocabulary

Options = Mapping[str, Any]
Encode = Callable[[str], list[int]]


class RefusedError(Exception):
    """The engine says that it does not compile a schema; `unsatisfiable`: because nothing matches it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.unsatisfiable = "unsatisfiable" in reason.lower()


class WalkError(Exception):
    """An engine gave up in the middle of a text."""


class Walker(Protocol):
    """One text being followed, token by token."""

    def state(self) -> int | None:
        """The engine's own name of where the text is, the same in every text; None where it has none."""

    def mask(self) -> None:
        """Find the tokens that may follow."""

    def advance(self, token_id: int) -> bool:
        """Go on by one token; False if it may not follow."""

    def may_end(self) -> bool:
        """Whether the text may end here."""


class Engine(Protocol):
    """What is measured. `compile` gives a function that begins a text."""

    def compile(self, schema: str, options: Options) -> Callable[[], Walker]:
        """Compile the JSON text of a schema.

        Args:
            options: of this engine's own JSON Schema front end; the peers have none here.

        Raises:
            RefusedError: the engine says no.
            TypeError: an option is not known.
        """


class _NativeWalker:
    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._state = compiled.start

    def state(self) -> int:
        return self._state

    def mask(self) -> None:
        self._compiled.mask(self._state)

    def advance(self, token_id: int) -> bool:
        following = self._compiled.advance(self._state, token_id)
        if following is None:
            return False
        self._state = following
        return True

    def may_end(self) -> bool:
        return self._compiled.is_accepting(self._state)


class NativeEngine:
    """Palmette's own. A limit that is met while a text is followed comes as GrammarLimitError."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        self._vocabulary = vocabulary

    def compile(self, schema: str, options: Options) -> Callable[[], Walker]:
        from palmette.constrained import Grammar, GrammarError, UnsatisfiableGrammarError, compile_grammar

        try:
            compiled = compile_grammar(Grammar.json_schema(schema, **options), self._vocabulary)
        except UnsatisfiableGrammarError as error:
            raise RefusedError(f"unsatisfiable: {error}") from error
        except GrammarError as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        return lambda: _NativeWalker(compiled)


class _LlguidanceWalker:
    def __init__(self, matcher: Any, mask: Any, fill: Any) -> None:
        self._matcher, self._mask, self._fill = matcher, mask, fill

    def state(self) -> None:
        return None

    def mask(self) -> None:
        if not self._matcher.is_stopped():
            self._fill(self._matcher, self._mask)

    def advance(self, token_id: int) -> bool:
        taken = bool(self._matcher.try_consume_tokens([token_id]) == 1)
        if not taken and self._matcher.is_error():
            raise WalkError(self._matcher.get_error())
        return taken

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class LlguidanceEngine:
    """guidance-ai/llguidance: `LLMatcher`, with the slices that it has for JSON."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        llguidance: Any = import_module("llguidance")
        arrays: Any = import_module("llguidance.numpy")
        self._lib = llguidance
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_TokensOf(vocabulary, encode)),
            n_vocab=vocabulary.size,
            eos_token=sorted(vocabulary.end_ids),
            slices=llguidance.LLTokenizer.json_slices(),
        )
        self._mask = arrays.allocate_token_bitmask(1, vocabulary.size)
        self._fill = arrays.fill_next_token_bitmask

    def compile(self, schema: str, options: Options) -> Callable[[], Walker]:
        _no(options)
        try:
            grammar = self._lib.LLMatcher.grammar_from_json_schema(schema)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        first = self._lib.LLMatcher(self._tokenizer, grammar, log_level=0)
        if first.is_error():
            raise RefusedError(first.get_error())

        def begin() -> _LlguidanceWalker:
            return _LlguidanceWalker(first.deep_copy(), self._mask, self._fill)

        return begin


class _TokensOf:
    """A vocabulary as llguidance wants to see a tokenizer."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        self.tokens = token_bytes(vocabulary, lambda token_id: f"<|special {token_id}|>".encode())
        self.special_token_ids = [i for i, token in enumerate(vocabulary.token_bytes) if token is None]
        self.special_token_ids += range(len(vocabulary.token_bytes), vocabulary.size)
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


class _XGrammarWalker:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher, self._mask = matcher, mask

    def state(self) -> None:
        return None

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)

    def advance(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())


class XGrammarEngine:
    """mlc-ai/xgrammar with its defaults, but for `strict_mode`: the specification's default is an open object."""

    strict_mode = False

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        xgrammar: Any = import_module("xgrammar")
        self._lib = xgrammar
        info = xgrammar.TokenizerInfo(
            token_bytes(vocabulary, lambda token_id: b""),
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info)
        self._mask = xgrammar.allocate_token_bitmask(1, vocabulary.size)

    def compile(self, schema: str, options: Options) -> Callable[[], Walker]:
        _no(options)
        try:
            compiled = self._compiler.compile_json_schema(schema, strict_mode=self.strict_mode)
        except (RuntimeError, ValueError) as error:
            raise RefusedError(str(error)) from error
        return lambda: _XGrammarWalker(self._lib.GrammarMatcher(compiled), self._mask)


class StrictXGrammarEngine(XGrammarEngine):
    """XGrammar with all its defaults: objects without `additionalProperties` are closed."""

    strict_mode = True


class _OutlinesWalker:
    def __init__(self, guide: Any, index: Any, mask: Any) -> None:
        self._guide, self._index, self._mask = guide, index, mask

    def state(self) -> int:
        return int(self._guide.get_state())

    def mask(self) -> None:
        self._guide.write_mask_into(self._mask.ctypes.data, self._mask.size, self._mask.itemsize)

    def advance(self, token_id: int) -> bool:
        try:
            self._guide.advance(token_id, return_tokens=False)
        except ValueError:
            return False
        return True

    def may_end(self) -> bool:
        return bool(self._index.is_final_state(self._guide.get_state()))


class OutlinesEngine:
    """dottxt-ai/outlines-core: the schema as a regular expression, and its `Index` over all tokens."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        outlines_core: Any = import_module("outlines_core")
        self._lib = outlines_core
        self._regex_of = import_module("outlines_core.json_schema").build_regex_from_schema
        tokens: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(vocabulary.token_bytes):
            if token and token_id not in vocabulary.end_ids:
                tokens.setdefault(token, []).append(token_id)
        self._vocabulary = outlines_core.Vocabulary(min(vocabulary.end_ids), tokens)
        self._mask = np.zeros(vocabulary.words, np.int32)

    def compile(self, schema: str, options: Options) -> Callable[[], Walker]:
        _no(options)
        try:
            index = self._lib.Index(self._regex_of(schema), self._vocabulary)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise RefusedError(str(error)) from error
        return lambda: _OutlinesWalker(self._lib.Guide(index), index, self._mask)


ENGINES: Mapping[str, Callable[[Vocabulary, Encode], Engine]] = {
    "native": NativeEngine,
    "llguidance": LlguidanceEngine,
    "xgrammar": XGrammarEngine,
    "xgrammar-strict": StrictXGrammarEngine,
    "outlines": OutlinesEngine,
}
"""What `--engines` names."""


def token_bytes(vocabulary: Vocabulary, special: Callable[[int], bytes]) -> list[bytes]:
    """The bytes of all ids of the logits, by `special` where they are no ordinary token."""
    known: Sequence[bytes | None] = vocabulary.token_bytes
    written = [special(token_id) if token is None else token for token_id, token in enumerate(known)]
    return written + [special(token_id) for token_id in range(len(known), vocabulary.size)]


def warm_up(engine: Engine, encode: Encode) -> None:
    """What happens once a process or once a vocabulary: compiled loops, tables that all grammars share."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}, "required": ["a"]}
    walker = engine.compile(json.dumps(schema), {})()
    for token_id in encode('{"a":"some text","b":12}'):
        walker.mask()
        walker.advance(token_id)
    walker.mask()


def _no(options: Options) -> None:
    if options:
        raise TypeError(f"no options here: {dict(options)}")
