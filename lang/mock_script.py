"""What a `MockBackend` answers: the script, and the checks that a scripted answer keeps to its node's constraint."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import Completion, FinishReason, Generate, Node, Select, Text

Answers = Sequence[str] | Mapping[str, str] | Callable[[str, Generate | Select], str]

_WORD = re.compile(r"\s*\S+|\s+")


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
        self._answers = answers
        self._given = 0
        self._lock = threading.Lock()

    def answer(self, node: Generate, prompt: str) -> str:
        """The next answer for a generation.

        Raises:
            ScriptError: there is none, or it breaks the node's grammar.
        """
        answer = self._find(node, prompt)
        if answer is None:
            raise ScriptError(
                "RequestError", f"MockBackend has no answer {self._missing()} for the prompt {prompt[-200:]!r}"
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

    def completion(self, node: Generate, answer: str, path: Sequence[Node]) -> Completion:
        """The answer up to its first stop string, with counts of words for tokens."""
        text, matched = _before_stop(answer, node.params.stop)
        reason: FinishReason = "grammar" if node.grammar is not None and matched is None else "stop"
        return Completion(
            text=text,
            token_ids=tuple(range(count_tokens(text))),
            finish_reason=reason,
            matched=matched,
            prompt_tokens=sum(count_tokens(above.text) for above in path if isinstance(above, Text)),
            cached_tokens=0,
            completion_tokens=count_tokens(text),
        )

    def _find(self, node: Generate | Select, prompt: str) -> str | None:
        if isinstance(self._answers, Mapping):
            found = (answer for pattern, answer in self._answers.items() if re.search(pattern, prompt))
            return next(found, None)
        if isinstance(self._answers, Sequence):
            return self._next()
        try:
            return str(self._answers(prompt, node))
        except Exception as error:  # the user's function may raise anything; it belongs to this node
            raise ScriptError(type(error).__name__, str(error)) from error

    def _next(self) -> str | None:
        with self._lock:
            place = self._given
            self._given += 1
        return self._answers[place] if isinstance(self._answers, Sequence) and place < len(self._answers) else None

    def _missing(self) -> str:
        if isinstance(self._answers, Mapping):
            return f"(none of its {len(self._answers)} patterns is found)"
        return f"left (it was given {len(self._answers) if isinstance(self._answers, Sequence) else 0})"


def count_tokens(text: str) -> int:
    """Words with the space before them, as a mock's tokens."""
    return len(_WORD.findall(text))


def _before_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the stop string that begins first, and that string."""
    found = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return text, None
    place, stop = min(found)
    return text[:place], stop


def _check_grammar(answer: str, grammar: Grammar) -> None:
    if not _matches(answer, grammar):
        raise ScriptError("GrammarError", f"MockBackend's answer {answer!r} breaks the {grammar.kind} {grammar.source}")


def _matches(answer: str, grammar: Grammar) -> bool:
    if grammar.kind == "regex":
        return re.fullmatch(grammar.source, answer) is not None
    if grammar.kind == "choices":
        return answer in json.loads(grammar.source)
    try:
        value = json.loads(answer)
    except json.JSONDecodeError:
        return False
    return _valid(value, json.loads(grammar.source))


def _valid(value: Any, schema: Any) -> bool:
    """Whether the value validates, by the jsonschema package where it is installed; else it is JSON, which must do."""
    try:
        import jsonschema
    except ImportError:
        return True
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
