"""What a `MockBackend` answers: the script, and the checks that a scripted answer keeps to its node's constraint."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.constrained import Grammar
from palmette.constrained.errors import PalmetteError
from palmette.constrained.whole_match import matches
from palmette.runtime.program import Completion, FinishReason, Generate, Select

from .mock_logprobs import mock_logprobs, mock_prompt_logprobs, mock_token_id
from .mock_stop import before_stop
from .mock_usage import tokens_of

AnswerFunction = Callable[[str, Generate | Select], str]
Answers = Sequence[str] | Mapping[str, str | Sequence[str] | AnswerFunction] | AnswerFunction


@dataclass(frozen=True, slots=True)
class MockCall:
    """One generation or select that a `MockBackend` was asked for: the text before it, its node, its answers."""

    prompt: str
    node: Generate | Select
    answers: tuple[str, ...]


class ScriptError(Exception):
    """The script has no answer for a node, or one that it may not give. `kind` is the error's class on the wire."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Script:
    """Answers by order, by pattern or by function; see `MockBackend`."""

    def __init__(self, answers: Answers) -> None:
        if isinstance(answers, str) or not (callable(answers) or isinstance(answers, Mapping | Sequence)):
            raise TypeError(f"answers must be a list, a mapping from patterns or a function, not {answers!r}")
        by_pattern = answers if isinstance(answers, Mapping) else {"": answers}
        self._is_mapping = isinstance(answers, Mapping)
        self._rules = [_Rule(pattern, source) for pattern, source in by_pattern.items()]
        self._lock = threading.Lock()

    def answer(self, node: Generate, prompt: str) -> str:
        """The next answer for a generation.

        Raises:
            ScriptError: there is none, or it breaks the node's grammar.
        """
        answer = self._find(node, prompt)
        if answer is None:
            raise ScriptError(
                "RequestError", f"MockBackend has no answer {self._missing(prompt)} for the prompt {prompt[-200:]!r}"
            )
        if node.grammar is not None:
            _check_grammar(answer, node.grammar)
        return answer

    def choose(self, node: Select, prompt: str) -> int:
        """The place of the choice for a select: the scripted one, else the first.

        Raises:
            ScriptError: the scripted answer is none of the choices.
        """
        answer = self._find(node, prompt)
        if answer is None:
            return 0
        if answer not in node.choices:
            raise ScriptError(
                "RequestError", f"MockBackend's answer {answer!r} is none of the choices {node.choices!r}"
            )
        return node.choices.index(answer)

    def _find(self, node: Generate | Select, prompt: str) -> str | None:
        rule = self._rule(prompt)
        if rule is None:
            return None
        if not callable(rule.source):
            with self._lock:
                return rule.next()
        try:
            answer: Any = rule.source(prompt, node)
            return None if answer is None else str(answer)
        except BaseException as error:  # the user's function may raise anything; it belongs to this node
            raise ScriptError(type(error).__name__, str(error)) from error

    def _rule(self, prompt: str) -> _Rule | None:
        return next((rule for rule in self._rules if rule.pattern is None or rule.pattern.search(prompt)), None)

    def _missing(self, prompt: str) -> str:
        rule = self._rule(prompt)
        if rule is None:
            return f"(none of its {len(self._rules)} patterns is found)"
        if callable(rule.source):
            return "(its function returned None)"
        whose = f" for the pattern {rule.pattern.pattern!r}" if self._is_mapping and rule.pattern else ""
        return f"left (it was given {len(rule.source)}{whose})"


class _Rule:
    """Answers for the prompts in which a pattern is found: the same text always, texts in turn, or a function's.

    Raises:
        TypeError, ValueError: of a pattern or answers that are none.
    """

    def __init__(self, pattern: object, source: object) -> None:
        self.pattern = _compiled(pattern)
        self.source = _checked_source(source)
        self._given = 0

    def next(self) -> str | None:
        """The answer that is next; None where there is none left."""
        if isinstance(self.source, str):
            return self.source
        place = self._given
        self._given += 1
        return self.source[place] if not callable(self.source) and place < len(self.source) else None


def _compiled(pattern: object) -> re.Pattern[str] | None:
    """What to search prompts for; None is found in all."""
    if not isinstance(pattern, str):
        raise TypeError(f"the answers and patterns of a MockBackend are strings, not {pattern!r}")
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern that MockBackend can look for: {error}") from error


def _checked_source(source: object) -> str | Sequence[str] | AnswerFunction:
    if isinstance(source, str):
        return source
    if isinstance(source, Sequence):
        for text in source:
            if not isinstance(text, str):
                raise TypeError(f"the answers and patterns of a MockBackend are strings, not {text!r}")
        return source
    if callable(source):
        return source
    raise TypeError(
        f"the answers and patterns of a MockBackend are strings, and an answer may be a list of strings or a function "
        f"too, not {source!r}"
    )


def completion(node: Generate, answer: str, prompt_tokens: int, prompt_words: Sequence[str]) -> Completion:
    """The answer up to its first stop, with words for tokens. `prompt_words` matter where `prompt_logprobs` are asked.

    Raises:
        ScriptError: `prompt_logprobs_from` is past the prompt, or a stop pattern cannot be used.
    """
    params = node.params
    if params.prompt_logprobs is not None and params.prompt_logprobs_from >= prompt_tokens:
        raise ScriptError(
            "RequestError",
            f"prompt_logprobs_from={params.prompt_logprobs_from} is past the prompt of {prompt_tokens} tokens",
        )
    grammar = node.grammar
    try:
        text, matched = before_stop(answer, params, lambda kept: grammar is None or matches(grammar, kept))
    except PalmetteError as error:
        raise ScriptError(type(error).__name__, str(error)) from error
    reason: FinishReason = "grammar" if grammar is not None and matched is None else "stop"
    tokens = tokens_of(text)
    return Completion(
        text=text,
        token_ids=tuple(map(mock_token_id, tokens)),
        finish_reason=reason,
        matched=matched,
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        completion_tokens=len(tokens),
        logprobs=mock_logprobs(text, params),
        prompt_logprobs=mock_prompt_logprobs(prompt_words, params),
    )


def _check_grammar(answer: str, grammar: Grammar) -> None:
    try:
        matched = matches(grammar, answer)
    except PalmetteError as error:
        raise ScriptError(type(error).__name__, str(error)) from error
    if not matched:
        raise ScriptError("GrammarError", f"MockBackend's answer {answer!r} breaks the {grammar.kind} {grammar.source}")
