"""Messages to the text of a prompt, by the model's own chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from palmette.runtime.program import ModelInfo

from .disguise import Disguise, SpecialTexts, TemplateSpan
from .errors import ApiError, bad_request, refused
from .openai_models import ChatMessage, ContentPart
from .tool_choice import FunctionTool, ToolError
from .tool_formats import tool_format_of
from .tool_messages import tool_messages

logger = logging.getLogger("palmette.server")

Render = Callable[..., tuple[list[str], list[Any]]]

_OURS = frozenset(
    (
        *("messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask", "bos_token", "eos_token"),
    )
)
"""What a template is given by the request's own fields, or by the model."""

_NOT_SHOWN = {"refusal", "annotations", "audio", "function_call", "reasoning"}


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A prompt as spans of a template's text and of text that must not spell special tokens."""

    spans: tuple[TemplateSpan, ...]

    @property
    def end(self) -> str:
        """The last of its text."""
        return "".join(span.text for span in self.spans[-4:])[-256:]


class ChatPrompts:
    """Renders conversations for one model.

    Special tokens come from the template alone: what the messages, tools and template values of a request spell is
    ordinary text. Without a template of its own, a model gets ``ROLE: content`` and a line break for each message, as
    in ``USER: Hello``.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._source = info.chat_template
        self._specials = SpecialTexts(info.special_tokens)
        self._format = tool_format_of(info)
        self._render: Render = _plain
        if self._source is not None:
            self._render = template_renderer()
            self._knows_developers = "developer" in self._source
            self._warm_up()
        else:
            self._knows_developers = False

    @classmethod
    def of(cls, info: ModelInfo) -> ChatPrompts:
        """The one for a model, shared by all endpoints."""
        return _shared(_Key(info))

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[FunctionTool] = (),
        asks: bool = True,
        continues: bool = False,
        values: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """The prompt of a conversation.

        Args:
            tools: that the model is told of.
            asks: whether it ends with the template's prompt for an answer.
            continues: whether it ends within the last message, to go on with.
            values: further values for the template.

        Raises:
            ApiError: a message cannot be used, or the template refuses the conversation.
        """
        self._check_values(values or {})
        given = {
            "messages": self._messages(messages, tools),
            "tools": [tool.template_value for tool in tools] if self._format.takes_tools and tools else None,
            "values": dict(values or {}),
        }
        disguise = Disguise(self._specials, given)
        worn = disguise.put_on(given)
        try:
            rendered, _ = self._render(
                [worn["messages"]],
                tools=worn["tools"],
                chat_template=self._source,
                add_generation_prompt=asks,
                continue_final_message=continues,
                **{"bos_token": self._info.bos_token, "eos_token": self._info.eos_token, **worn["values"]},
            )
        except Exception as error:  # what a template may raise is its author's choice
            raise self._refused(messages, error, continues=continues) from error
        return RenderedChat(disguise.take_off(rendered[0]))

    def _messages(self, messages: Sequence[ChatMessage], tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
        """The messages as templates take them."""
        dumped = [self._message(message, place) for place, message in enumerate(messages)]
        try:
            return tool_messages(dumped, self._format, tools)
        except ToolError as error:
            raise refused(error) from None

    def _message(self, message: ChatMessage, place: int) -> dict[str, Any]:
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise bad_request(f"messages[{place}].content is missing", param=f"messages[{place}].content")
        if isinstance(message.content, list):
            for index, part in enumerate(message.content):
                _check_part(part, f"messages[{place}].content[{index}]")
        value: dict[str, Any] = message.model_dump(exclude_none=True, exclude=_NOT_SHOWN)
        if isinstance(message.content, list):
            value["content"] = "".join(part.text or part.refusal or "" for part in message.content)
        if message.role == "developer" and not self._knows_developers:
            value["role"] = "system"
        reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
        if reasoning is not None:
            value["reasoning_content"] = reasoning
        return value

    def _check_values(self, values: Mapping[str, Any]) -> None:
        if taken := sorted(_OURS & values.keys()):
            message = f"chat_template_kwargs cannot set {taken[0]!r}, which comes from the request or the model itself"
            raise bad_request(message, param="chat_template_kwargs")

    def _refused(self, messages: Sequence[ChatMessage], error: Exception, *, continues: bool) -> ApiError:
        roles = ", ".join(message.role for message in messages[:20]) + (", ..." if len(messages) > 20 else "")
        reason = str(error)
        if continues and "continue_final_message" in reason:
            reason = "it does not show the last message as it is, so that nothing can go on from there"
        shown = reason if len(reason) <= 300 else f"{reason[:300]}..."
        message = f"the chat template of {self._info.name} refuses the conversation {roles}: {shown}"
        return bad_request(message, param="messages", code="chat_template_error")

    def _warm_up(self) -> None:
        """Have the template compiled before the first request. With a broken one chats fail, and all else works."""
        try:
            self.render([ChatMessage.model_validate({"role": "user", "content": "Hello"})])
        except ApiError as error:
            logger.warning("%s", error.message)


@dataclass(frozen=True)
class _Key:
    """A model by what its prompts depend on: `ModelInfo` itself cannot be a key."""

    info: ModelInfo

    def __hash__(self) -> int:
        return hash((self.info.name, self.info.chat_template))


@lru_cache(maxsize=8)
def _shared(key: _Key) -> ChatPrompts:
    return ChatPrompts(key.info)


def _check_part(part: ContentPart, at: str) -> None:
    if part.type not in ("text", "refusal"):
        message = f"{at}.type: this model reads text only, not {part.type!r}; send parts of type 'text'"
        raise bad_request(message, param=f"{at}.type")
    if part.type == "text" and part.text is None:
        raise bad_request(f"{at}.text is missing", param=f"{at}.text")


def _plain(
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    **_: Any,
) -> tuple[list[str], list[Any]]:
    """The form for models without a template, as a program's roles are written for them."""
    messages = conversations[0]
    text = "".join(f"{message['role'].upper()}: {message['content']}\n" for message in messages)
    if continue_final_message:
        text = text.removesuffix("\n")
    return [text + ("ASSISTANT: " if add_generation_prompt else "")], []


def template_renderer() -> Render:
    """transformers' own renderer of chat templates. The first call imports it, which takes a second or more."""
    from transformers.utils.chat_template_utils import render_jinja_template

    render: Render = render_jinja_template
    return render
