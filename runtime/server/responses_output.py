"""The items of a response, from the chunks of a chat completion, and the events that tell of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal

Emit = Callable[[str, dict[str, Any]], None]
Item = dict[str, Any]


def new_item_id(prefix: str) -> str:
    """An id that cannot be guessed, such as ``msg_8c1f...``."""
    return f"{prefix}_{secrets.token_hex(24)}"


class ResponseOutput:
    """Items in the order in which they begin; one at a time is open.

    Args:
        emit: takes the type and the fields of each event, in order.
        with_logprobs: whether messages tell log-probabilities.
    """

    def __init__(self, emit: Emit, *, with_logprobs: bool) -> None:
        self.items: list[Item] = []
        self._emit = emit
        self._with_logprobs = with_logprobs
        self._open: Literal["reasoning", "message", "function_call"] | None = None
        self._text: list[str] = []  # of the open item: reasoning, text or arguments
        self._logprobs: list[Any] = []
        self._call_index = -1

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return "".join(part["text"] for item in self.items if item["type"] == "reasoning" for part in item["content"])

    @property
    def text(self) -> str:
        """The text of all messages that have ended."""
        return "".join(part["text"] for item in self.items if item["type"] == "message" for part in item["content"])

    def take(self, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None) -> None:
        """Take the news of one chunk: `delta` is that of its choice."""
        if text := delta.get("reasoning_content"):
            self._say("reasoning", text, [])
        entries = list(logprobs["content"]) if logprobs is not None and self._with_logprobs else []
        if text := delta.get("content"):
            self._say("message", text, entries)
        elif entries and self._open == "message":
            self._say("message", "", entries)
        for call in delta.get("tool_calls", ()):
            self._call(call)

    def finish(self, *, is_complete: bool) -> None:
        """The answer has ended. One without anything is an empty message."""
        if not self.items:
            self._begin_text("message")
        self._close("completed" if is_complete else "incomplete")

    def _say(self, kind: Literal["reasoning", "message"], text: str, entries: list[Any]) -> None:
        if self._open != kind:
            self._close("completed")
            self._begin_text(kind)
        self._text.append(text)
        self._logprobs += entries
        if kind == "reasoning":
            self._tell("response.reasoning_text.delta", content_index=0, delta=text)
        else:
            self._tell("response.output_text.delta", content_index=0, delta=text, logprobs=entries)

    def _call(self, call: Mapping[str, Any]) -> None:
        if self._open != "function_call" or call["index"] != self._call_index:
            self._close("completed")
            self._call_index = call["index"]
            item = {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
            self._begin("function_call", {"id": new_item_id("fc"), "type": "function_call", **item})
        if text := call["function"]["arguments"]:
            self._text.append(text)
            self._tell("response.function_call_arguments.delta", delta=text)

    def _begin(self, kind: Literal["reasoning", "message", "function_call"], item: Item) -> None:
        self._open, self._text, self._logprobs = kind, [], []
        self.items.append({**item, "status": "in_progress"})
        self._emit("response.output_item.added", {"output_index": len(self.items) - 1, "item": self.items[-1]})

    def _begin_text(self, kind: Literal["reasoning", "message"]) -> None:
        if kind == "reasoning":
            self._begin(kind, {"id": new_item_id("rs"), "type": kind, "summary": [], "content": []})
        else:
            self._begin(kind, {"id": new_item_id("msg"), "type": kind, "role": "assistant", "content": []})
        self._tell("response.content_part.added", content_index=0, part=self._part())

    def _close(self, status: str) -> None:
        """End the open item, if there is one."""
        kind, text = self._open, "".join(self._text)
        if kind is None:
            return
        item = self.items[-1] = {**self.items[-1], "status": status}
        if kind == "function_call":
            item["arguments"] = text
            self._tell("response.function_call_arguments.done", name=item["name"], arguments=text)
        else:
            item["content"] = [self._part()]
            if kind == "reasoning":
                self._tell("response.reasoning_text.done", content_index=0, text=text)
            else:
                self._tell("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            self._tell("response.content_part.done", content_index=0, part=item["content"][0])
        self._emit("response.output_item.done", {"output_index": len(self.items) - 1, "item": item})
        self._open = None

    def _part(self) -> dict[str, Any]:
        text = "".join(self._text)
        if self._open == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    def _tell(self, kind: str, **fields: Any) -> None:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        self._emit(kind, {**place, **fields})
