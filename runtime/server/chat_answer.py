"""One choice of a chat completion: gathered, and told as a message or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palmette.runtime.program import Completion, TokenLogprob
from palmette.runtime.tokenizer import Tokenizer

from .answer_reader import AnswerNews, AnswerReader
from .logprob_shapes import chat_logprobs
from .tool_grammar import ToolPlan
from .tool_parser import CallBegun
from .usage import FINISH_REASONS


class ChatAnswer:
    """A choice from its first token to its last.

    Attributes:
        index: its place among the choices.
        output_tokens: generated in the parts of it that have ended.
        finish_reason: why it ended; None until then.

    Args:
        tokenizer: spells the tokens of log-probabilities; None where they are not wanted.
    """

    def __init__(self, index: int, reader: AnswerReader, tokenizer: Tokenizer | None) -> None:
        self.index = index
        self.output_tokens = 0
        self.finish_reason: str | None = None
        self._reader = reader
        self._tokenizer = tokenizer
        self._stop_reason: str | int | None = None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._entries: list[TokenLogprob] = []
        self._taken_text = 0  # characters and log-probabilities of the part that runs, which its end tells again
        self._taken_entries = 0
        self._begun = False

    @property
    def calls_begun(self) -> int:
        """How many tool calls have begun."""
        return self._reader.calls

    def push(self, text: str, entries: Sequence[TokenLogprob]) -> None:
        """Take more of the answer."""
        self._taken_text += len(text)
        self._taken_entries += len(entries)
        self._entries += entries
        if text:
            self._keep(self._reader.push(text))

    def end(self, completion: Completion) -> None:
        """The answer has ended."""
        self._end_part(completion)
        self._keep(self._reader.finish())
        reason = FINISH_REASONS[completion.finish_reason]
        calls_are_all = self._reader.calls and (reason == "stop" or self._reader.is_all_calls)
        self.finish_reason = "tool_calls" if calls_are_all else reason
        self._stop_reason = completion.matched

    def go_on(self, completion: Completion, plan: ToolPlan) -> None:
        """A part has ended behind which the answer goes on under another plan."""
        self._end_part(completion)
        self._keep(self._reader.go_on(plan))

    def message(self) -> dict[str, Any]:
        """The whole choice."""
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [_whole_call(call) for call in self._calls.values()]
        return {"index": self.index, "message": message, **self._ending()}

    def chunks(self) -> list[dict[str, Any]]:
        """What is new since the last call, as choices of chunks: one a kind of news, as clients expect."""
        deltas: list[dict[str, Any]] = []
        if self._reasoning:
            deltas.append({"reasoning_content": "".join(self._reasoning)})
        if self._content:
            deltas.append({"content": "".join(self._content)})
        deltas += [{"tool_calls": [call]} for call in self._calls.values()]
        if self._entries and not deltas:
            deltas.append({})
        if not self._begun and (deltas or self.finish_reason):
            deltas.insert(0, {"role": "assistant", "content": "", "refusal": None})
            self._begun = True
        chunks = [{"index": self.index, "delta": d, "logprobs": None, "finish_reason": None} for d in deltas]
        if self._entries:
            chunks[-1]["logprobs"] = self._logprobs()
        if self.finish_reason is not None:
            chunks.append({"index": self.index, "delta": {}, **self._ending(logprobs=False)})
        self._reasoning, self._content, self._calls, self._entries = [], [], {}, []
        return chunks

    def _end_part(self, completion: Completion) -> None:
        """Take what has not been streamed of a part."""
        self.push(completion.text[self._taken_text :], (completion.logprobs or ())[self._taken_entries :])
        self._taken_text = self._taken_entries = 0
        self.output_tokens += completion.completion_tokens

    def _keep(self, news: AnswerNews) -> None:
        if news.reasoning:
            self._reasoning.append(news.reasoning)
        if news.content:
            self._content.append(news.content)
        for event in news.calls:
            if isinstance(event, CallBegun):
                function = {"name": event.name, "arguments": ""}
                self._calls[event.index] = {
                    "index": event.index,
                    "id": event.id,
                    "type": "function",
                    "function": function,
                }
            else:
                call = self._calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
                call["function"]["arguments"] += event.text

    def _ending(self, *, logprobs: bool = True) -> dict[str, Any]:
        shown = self._logprobs() if logprobs else None
        return {"logprobs": shown, "finish_reason": self.finish_reason, "stop_reason": self._stop_reason}

    def _logprobs(self) -> dict[str, Any] | None:
        if self._tokenizer is None:
            return None
        return {"content": chat_logprobs(self._tokenizer, self._entries), "refusal": None}


def _whole_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a message, which unlike that of a chunk has no index."""
    return {name: value for name, value in call.items() if name != "index"}
