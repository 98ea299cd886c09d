"""Answers of models that reason first: the text between think tags, and the answer after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReasoningPart = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What a model writes around its reasoning."""

    begin: str = "<think>"
    end: str = "</think>"


KIMI = ThinkTags("◁think▷", "◁/think▷")
TAGS_OF_MODEL_TYPE = {
    "deepseek-r1": ThinkTags(),
    "deepseek-v3": ThinkTags(),
    "glm45": ThinkTags(),
    "kimi": KIMI,
    "qwen3": ThinkTags(),
    "qwen3-thinking": ThinkTags(),
}
"""Think tags by the names that SGLang's ``--reasoning-parser`` has for models."""


@dataclass(frozen=True, slots=True)
class ReasoningSplit:
    """Takes one part out of an answer.

    Reasoning stands between the tags at the beginning of the text, white space around it apart; the answer is what
    follows, without the white space before it. Without an end tag all is reasoning if it has begun, else all is answer.

    Attributes:
        part: which part is wanted.
        begun: the text before the answer ends in the begin tag.
    """

    tags: ThinkTags
    part: ReasoningPart
    begun: bool = False

    def of(self, text: str) -> str:
        """The part of a whole answer."""
        stream = self.stream()
        return stream.push(text) + stream.finish()

    def stream(self) -> ReasoningStream:
        return ReasoningStream(self)


class ReasoningStream:
    """One part of an answer that comes in pieces; what `push` returns joins to the part."""

    def __init__(self, split: ReasoningSplit) -> None:
        self._split = split
        self._text = ""  # not given out yet, and what decides where it belongs
        self._state: Literal["start", "reasoning", "answer"] = "start"
        self._given = False

    def push(self, text: str) -> str:
        """The part's new text; white space at the end of reasoning is held back, as are characters of an end tag."""
        self._text += text
        given = ""
        if self._state == "start" and not self._begin():
            return given
        if self._state == "reasoning":
            given += self._give_reasoning()
        if self._state == "answer":
            given += self._give("answer", self._text)
            self._text = ""
        return given

    def finish(self) -> str:
        """What was held back: the text has ended."""
        text, self._text = self._text, ""
        if self._state == "start":
            self._state = "reasoning" if self._split.begun else "answer"
        return self._give(self._state, text.rstrip() if self._state == "reasoning" else text)

    def _begin(self) -> bool:
        """Decide between reasoning and answer; False while the text may yet become a begin tag."""
        begin = self._split.tags.begin
        text = self._text.lstrip()
        if text.startswith(begin):
            self._text = text[len(begin) :]
            self._state = "reasoning"
        elif begin.startswith(text):
            return False
        else:
            self._state = "reasoning" if self._split.begun else "answer"
        return True

    def _give_reasoning(self) -> str:
        end = self._split.tags.end
        reasoning, found, answer = self._text.partition(end)
        if found:
            self._state = "answer"
            self._text = answer
            return self._give("reasoning", reasoning.rstrip())
        held = max((size for size in range(1, len(end)) if self._text.endswith(end[:size])), default=0)
        safe = self._text[: len(self._text) - held].rstrip()
        self._text = self._text[len(safe) :]
        return self._give("reasoning", safe)

    def _give(self, part: ReasoningPart, text: str) -> str:
        if part != self._split.part:
            return ""
        if not self._given:
            text = text.lstrip()
            self._given = bool(text)
        return text
