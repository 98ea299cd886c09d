"""Reasoning of models that think before they answer: found in the answer, and kept apart from its grammar."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import ModelInfo

_TAGS = (
    ("<think>", "</think>"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
)
"""What models of the known families write around their reasoning."""

_SPACE = " \t\r\n"

PromptState = Literal["open", "begun", "over"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags of one model. They are part of the text: special tokens have none."""

    begin: str
    end: str

    def state_after(self, prompt: str) -> PromptState:
        """How an answer begins after a prompt, which may be its last part only.

        Returns:
            begun, inside the reasoning; over, behind it (thinking is switched off); open, where the model may begin it.
        """
        text = prompt.rstrip(_SPACE)
        if text.endswith(self.begin):
            return "begun"
        return "over" if text.endswith(self.end) else "open"

    def grammar(self, answer: Grammar | None, state: PromptState) -> Grammar | None:
        """What a whole answer must match whose part after the reasoning must match `answer`."""
        if answer is None or state == "over" or answer.kind == "reasoning":
            return answer
        return Grammar.reasoning(answer, begin=self.begin, end=self.end, begun=state == "begun")

    def splitter(self, state: PromptState) -> ReasoningSplitter:
        return ReasoningSplitter(self, state)


@dataclass(frozen=True, slots=True)
class SplitText:
    """More of the reasoning, and more of what follows it."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Splits an answer that comes in pieces. However it is cut, the joined parts are the same.

    Reasoning stands between the tags at the beginning of the answer. White space around it belongs to neither part.
    Without an end tag all is reasoning if it has begun, else all is content.
    """

    def __init__(self, format_: ReasoningFormat, state: PromptState) -> None:
        self._format = format_
        self._begun = state == "begun"
        self._state: Literal["start", "reasoning", "space", "content"] = "content" if state == "over" else "start"
        self._text = ""
        self._given = False  # some reasoning was given out

    @property
    def in_content(self) -> bool:
        """Whether what comes is content."""
        return self._state in ("space", "content")

    def push(self, text: str) -> SplitText:
        """Take more of the answer; characters that may belong to a tag, and space at an end, are held back."""
        self._text += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "reasoning":
            reasoning = self._take_reasoning()
        if self._state == "space":
            self._text = self._text.lstrip(_SPACE)
            if self._text:
                self._state = "content"
        content = ""
        if self._state == "content":
            content, self._text = self._text, ""
        return SplitText(reasoning, content)

    def finish(self) -> SplitText:
        """The answer has ended: what was held back."""
        text, self._text = self._text, ""
        if self._state == "reasoning" or (self._state == "start" and self._begun):
            return SplitText(reasoning=self._stripped(text.rstrip(_SPACE)))
        return SplitText(content=text) if self._state == "start" else SplitText()

    def _start(self) -> None:
        """Find out whether the answer begins with reasoning, which it may, not knowing, begin a second time."""
        text = self._text.lstrip(_SPACE)
        if text.startswith(self._format.begin):
            self._text = text[len(self._format.begin) :]
            self._state = "reasoning"
        elif not self._format.begin.startswith(text):
            self._state = "reasoning" if self._begun else "content"

    def _take_reasoning(self) -> str:
        end = self._format.end
        reasoning, found, rest = self._text.partition(end)
        if found:
            self._state, self._text = "space", rest
            return self._stripped(reasoning.rstrip(_SPACE))
        held = next((size for size in range(len(end) - 1, 0, -1) if self._text.endswith(end[:size])), 0)
        safe = self._text[: len(self._text) - held].rstrip(_SPACE)
        self._text = self._text[len(safe) :]
        return self._stripped(safe)

    def _stripped(self, text: str) -> str:
        if not self._given:
            text = text.lstrip(_SPACE)
            self._given = bool(text)
        return text


def reasoning_format_of(model_info: ModelInfo) -> ReasoningFormat | None:
    """The tags of a model whose chat template writes or reads them, or that has tokens for them; None for others.

    None too where the tags are special tokens: the text of an answer does not show them.
    """
    return _reasoning_format(model_info.chat_template or "", model_info.special_tokens)


@lru_cache(maxsize=64)
def _reasoning_format(template: str, special_tokens: tuple[str, ...]) -> ReasoningFormat | None:
    for begin, end in _TAGS:
        if end in template or begin in template:
            return None if end in special_tokens or begin in special_tokens else ReasoningFormat(begin, end)
    return None
