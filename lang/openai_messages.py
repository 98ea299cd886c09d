"""A branch's text as an OpenAI service takes it: plain text, or messages.

The backend tells programs that its model's chat template is `MARKS`. What a program's roles add is then template text
of known marks, and a branch is split into its messages exactly, whatever the messages themselves say: marks in text
that is not the template's are text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from palmette.runtime.errors import RequestError
from palmette.runtime.program import Text

from .chat_rendering import Role
from .tree_walk import Step

MARKS: Final = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ('system', 'user', 'assistant') -%}"
    "{{ raise_exception('a message is of system, user or assistant') }}"
    "{%- endif -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"
)
"""Results of tools are written as the user's: the protocol has them only as answers to calls made by the protocol."""

_MARK = re.compile(r"<\|(system|user|assistant)\|>\n|<\|end\|>\n")
_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What stands before an answer.

    Attributes:
        text: all of it where the program used no roles.
        messages: the closed messages where it used some.
        open_role: of the message that the answer is in; None: of none.
        prefix: what that message says already.
        expected: what the model is to begin that message with by itself, as the service cannot be given it.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    open_role: Role | None = None
    prefix: str = ""
    expected: str = ""

    @property
    def has_roles(self) -> bool:
        return bool(self.messages) or self.open_role is not None


def prompt_of(steps: Sequence[Step]) -> Prompt:
    """The prompt that these nodes make.

    Raises:
        RequestError: text stands outside of the messages, where a conversation has no place for it.
    """
    splitter = _Splitter()
    for step in steps:
        if isinstance(step.node, Text) and step.node.template:
            splitter.take_marks(step.text)
        else:
            splitter.content += step.text
    return splitter.prompt()


class _Splitter:
    """Takes the text of a branch piece by piece. `content` is that of the open message, or outside of any."""

    def __init__(self) -> None:
        self.content = ""
        self._role: Role | None = None
        self._messages: list[Message] = []

    def take_marks(self, text: str) -> None:
        end = 0
        for mark in _MARK.finditer(text):
            if mark.start() != end:
                break
            end = mark.end()
            self._take_mark(mark.group(1))
        if end != len(text):
            raise RequestError(f"{text!r} is template text of another model; this service takes messages")

    def prompt(self) -> Prompt:
        if not self._messages and self._role is None:
            return Prompt(text=self.content)
        if self._role is None:
            self._check_nothing_outside()
        return Prompt(messages=tuple(self._messages), open_role=self._role, prefix=self.content if self._role else "")

    def _take_mark(self, name: str | None) -> None:
        if name is not None:
            self._check_nothing_outside()
            self._role = _ROLES[name]
        elif self._role is not None:
            self._messages.append(Message(self._role, self.content))
            self._role = None
        self.content = ""

    def _check_nothing_outside(self) -> None:
        if self.content.strip():
            raise RequestError(
                f"the text {self.content[-80:]!r} stands outside of the messages, and a chat service takes messages "
                "only; put it into pt.system(...), pt.user(...) or pt.assistant(...)"
            )
