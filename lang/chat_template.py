"""The text around the messages of a conversation, by the model's own chat template or a plain form."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Protocol

from palmette.runtime.program import ModelInfo

from .chat_rendering import Message, Role, TemplateSpan
from .jinja_template import JinjaTemplate

__all__ = ["ChatTemplate", "JinjaTemplate", "Message", "PlainTemplate", "Role", "TemplateSpan", "chat_template"]


class ChatTemplate(Protocol):
    """What stands around the content of a message. `previous` is the role of the message before, None at the start."""

    @property
    def sequence_start(self) -> str:
        """What the opening of a conversation's first message begins with only because a sequence begins there."""

    @property
    def prefix_stable(self) -> bool:
        """Whether a message's text never changes with what follows: else conversations must be rendered anew."""

    @property
    def takes_tools(self) -> bool:
        """Whether the template writes the tools that it is given."""

    def begin(self, role: Role, previous: Role | None) -> str: ...

    def end(self, role: Role, previous: Role | None) -> str: ...

    def render(self, messages: Sequence[Message], open_role: Role | None) -> tuple[TemplateSpan, ...]:
        """A conversation up to where the content of the open role begins; None: to the end of the last message."""


class PlainTemplate:
    """For models without a chat template: a message is ``ROLE: content`` and a line break, as in ``USER: Hello``."""

    sequence_start = ""
    prefix_stable = True
    takes_tools = False

    def begin(self, role: Role, previous: Role | None) -> str:
        return f"{role.upper()}: "

    def end(self, role: Role, previous: Role | None) -> str:
        return "\n"

    def render(self, messages: Sequence[Message], open_role: Role | None) -> tuple[TemplateSpan, ...]:
        spans: list[TemplateSpan] = []
        for role, content in messages:
            spans += [
                TemplateSpan(self.begin(role, None), template=True),
                TemplateSpan(content, template=False),
                TemplateSpan(self.end(role, None), template=True),
            ]
        if open_role is not None:
            spans.append(TemplateSpan(self.begin(open_role, None), template=True))
        return tuple(span for span in spans if span.text)


def chat_template(info: ModelInfo, tools: tuple[str, ...] = ()) -> ChatTemplate:
    """The template of a model. Probes are shared by all programs of a day, as templates may print the date.

    Args:
        tools: the tools that the template is to write, each as the JSON text of
            ``{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}``.

    Raises:
        ChatTemplateError: the template is not valid Jinja, or a tool spells a special token.
    """
    if info.chat_template is None:
        return PlainTemplate()
    return _loaded(
        info.chat_template, info.name, info.bos_token, info.eos_token, info.special_tokens, tools, dt.date.today()
    )


@functools.lru_cache(maxsize=64)
def _loaded(
    source: str,
    name: str,
    bos_token: str,
    eos_token: str,
    special_tokens: tuple[str, ...],
    tools: tuple[str, ...],
    day: dt.date,
) -> JinjaTemplate:
    return JinjaTemplate(
        source, name=name, bos_token=bos_token, eos_token=eos_token, special_tokens=special_tokens, tools=tools
    )
