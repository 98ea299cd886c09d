"""One answer of the model, read as it comes: its reasoning, its text, and the tools it calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .reasoning import ReasoningSplitter
from .tool_grammar import ToolPlan
from .tool_parser import CallArguments, CallBegun, ContentText, ToolEvent, ToolParser


@dataclass(slots=True)
class AnswerNews:
    """What is new of an answer.

    Attributes:
        calls: beginnings of calls and more of their arguments, in order.
    """

    reasoning: str = ""
    content: str = ""
    calls: list[CallBegun | CallArguments] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class AnswerReader:
    """Reads one answer that comes in pieces.

    Args:
        splitter: takes the reasoning apart; None where the model does not reason.
        plan: how calls are found; None where no tool may be called.
    """

    def __init__(self, splitter: ReasoningSplitter | None, plan: ToolPlan | None) -> None:
        self._splitter = splitter
        self._plan = plan
        self._parser: ToolParser | None = plan.parser() if plan is not None else None
        self._earlier_calls = 0

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._earlier_calls + (self._parser.calls if self._parser is not None else 0)

    @property
    def is_all_calls(self) -> bool:
        """Whether the answer is to be calls alone, and those that have begun are whole."""
        must_call = self._plan is not None and self._plan.must_call
        return must_call and self.calls > 0 and self._parser is not None and not self._parser.is_within_call

    def push(self, text: str) -> AnswerNews:
        """Take more of the answer."""
        news = AnswerNews()
        if self._splitter is not None:
            split = self._splitter.push(text)
            news.reasoning, text = split.reasoning, split.content
        self._read(text, news)
        return news

    def finish(self) -> AnswerNews:
        """The answer has ended: what was held back."""
        news = AnswerNews()
        if self._splitter is not None:
            split = self._splitter.finish()
            news.reasoning = split.reasoning
            self._read(split.content, news)
            self._splitter = None
        if self._parser is not None:
            events = self._parser.finish()
            if self.is_all_calls:  # the beginning of a further call, which was cut off, is no text
                events = [event for event in events if not isinstance(event, ContentText)]
            self._sort(events, news)
        return news

    def go_on(self, plan: ToolPlan) -> AnswerNews:
        """The answer has come to a token behind which it goes on under another plan; what was held back till there."""
        news = self.finish()
        self._earlier_calls = self.calls
        self._plan = plan
        self._parser = plan.parser()
        return news

    def _read(self, text: str, news: AnswerNews) -> None:
        if self._parser is None:
            news.content += text
        elif text:
            self._sort(self._parser.push(text), news)

    def _sort(self, events: list[ToolEvent], news: AnswerNews) -> None:
        for event in events:
            if isinstance(event, ContentText):
                news.content += event.text
            else:
                news.calls.append(replace(event, index=event.index + self._earlier_calls))
