"""Items of /v1/responses as the request of a chat completion, which is what is carried out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError, bad_request
from .openai_models import ChatMessage, ChatRequest
from .responses_models import InputItem, InputPart, ResponsesRequest
from .sampling_fields import SamplingFields

_KINDS = ("message", "function_call", "function_call_output", "reasoning")
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "reasoning_text": "text", "summary_text": "text"}
_NOT_SHARED = frozenset(("n", "store", "metadata", "stream_options"))
_FIELDS = {
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
}
_MESSAGE = re.compile(r"messages\[(\d+)\]")


@dataclass(slots=True)
class Conversation:
    """Items read as messages.

    Attributes:
        messages: in the form of chat completions.
        places: of each message, the path in the request of the item that it came from.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    _reasoning: str = ""

    def add(self, item: InputItem, at: str) -> None:
        """Read one more item, which stands at `at`.

        Raises:
            ApiError: it is of no known type, or lacks what its type needs.
        """
        kind = item.type or "message"
        if kind not in _KINDS:
            message = f"{at}.type must be one of {', '.join(_KINDS)}, not {kind!r}"
            raise bad_request(message, param=f"{at}.type")
        if kind == "message":
            self._add_message(item, at)
        elif kind == "function_call":
            self._add_call(item, at)
        elif kind == "function_call_output":
            call_id = _needed(item.call_id, f"{at}.call_id")
            output = _parts(item.output, f"{at}.output")
            self._append({"role": "tool", "tool_call_id": call_id, "content": output}, at)
        else:
            parts = [*(item.content if isinstance(item.content, list) else ()), *(item.summary or ())]
            self._reasoning = "".join(part.text or "" for part in parts)

    def say(self, role: str, text: str, at: str) -> None:
        """Add a message; a second one of the system at the start is a part of the first."""
        self._append({"role": role, "content": text}, at)

    def _add_message(self, item: InputItem, at: str) -> None:
        role = _needed(item.role, f"{at}.role")
        if role not in _ROLES:
            raise bad_request(f"{at}.role must be one of {', '.join(_ROLES)}, not {role!r}", param=f"{at}.role")
        content = _parts(item.content, f"{at}.content")
        is_first_system = role in ("system", "developer") and len(self.messages) == 1
        if is_first_system and isinstance(content, str) and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{content}"  # templates know one system message
            return
        self._append({"role": role, "content": content}, at)

    def _add_call(self, item: InputItem, at: str) -> None:
        """A call belongs to the assistant's message before it."""
        function = {"name": _needed(item.name, f"{at}.name"), "arguments": item.arguments or "{}"}
        call = {"id": _needed(item.call_id, f"{at}.call_id"), "type": "function", "function": function}
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._reasoning:
            self._append({"role": "assistant", "content": None}, at)
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _append(self, message: dict[str, Any], at: str) -> None:
        if message["role"] == "assistant" and self._reasoning:
            message["reasoning_content"] = self._reasoning
        self._reasoning = ""
        self.messages.append(message)
        self.places.append(at)


def chat_request(body: ResponsesRequest, earlier: Sequence[InputItem]) -> tuple[ChatRequest, Conversation]:
    """The chat completion that answers a request; `earlier` are the items that it goes on from.

    Raises:
        ApiError: an item or a field cannot be used.
    """
    conversation = Conversation()
    if body.instructions:
        conversation.say("system", body.instructions, "instructions")
    for item in earlier:
        conversation.add(item, "previous_response_id")
    if isinstance(body.input, str):
        conversation.say("user", body.input, "input")
    else:
        for place, item in enumerate(body.input):
            conversation.add(item, f"input[{place}]")
    if not conversation.messages:
        raise bad_request("input must hold at least one message, not nothing", param="input")
    shared = (SamplingFields.model_fields.keys() & body.model_fields_set) - _NOT_SHARED
    known = SamplingFields.model_fields
    given: dict[str, Any] = {known[name].alias or name: getattr(body, name) for name in shared}
    for name in ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"):
        given[name] = getattr(body, name)
    if body.text is not None and body.text.format is not None:
        given["response_format"] = body.text.format.response_format()
    if body.wants_logprobs:
        given |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    request = ChatRequest(
        messages=[ChatMessage.model_validate(message) for message in conversation.messages],
        max_completion_tokens=body.max_output_tokens,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        **given,
    )
    return request, conversation


def renamed(error: ApiError, conversation: Conversation) -> ApiError:
    """An error about the chat completion as one about the request that it was made of."""

    def place(found: re.Match[str]) -> str:
        index = int(found[1])
        return conversation.places[index] if index < len(conversation.places) else "input"

    def words(text: str) -> str:
        text = _MESSAGE.sub(place, text)
        for name, own in _FIELDS.items():
            text = re.sub(rf"\b{name}\b", own, text)
        return text

    if error.param is None:
        return error
    param = "input" if error.param == "messages" else words(error.param)
    message = words(error.message) if param != error.param else error.message
    return ApiError(error.status_code, message, param=param, code=error.code, headers=error.headers)


def _parts(parts: str | list[InputPart] | None, at: str) -> str | list[dict[str, Any]]:
    """A content: one text, unless parts of it are to be refused with their places."""
    if parts is None:
        raise bad_request(f"{at} is missing", param=at)
    if isinstance(parts, str):
        return parts
    kinds = [_TEXT_PARTS.get(part.type, part.type) for part in parts]
    if all(kind == "text" and part.text is not None for kind, part in zip(kinds, parts, strict=True)):
        return "".join(part.text or "" for part in parts)
    return [{"type": kind, "text": part.text, "refusal": part.refusal} for kind, part in zip(kinds, parts, strict=True)]


def _needed(value: str | None, at: str) -> str:
    if not value:
        raise bad_request(f"{at} is missing", param=at)
    return value
