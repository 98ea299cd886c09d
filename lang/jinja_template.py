"""The text that opens and closes a message, found by rendering the model's own chat template.

A role's text is the difference between renderings with and without it. Sentinels stand in for the contents, so a
template is probed once for each (role, role before it), and never sees what a program says. It follows that contents
are not trimmed where a template would trim them.

Templates that write earlier messages in another way once others follow are not prefix-stable: `prefix_stable` says so,
and `render` gives the whole conversation anew for each turn.

The assistant's message opens with the template's generation prompt where it has one. A default system message that a
template puts in front of a conversation is part of the text that opens the first message, and so are tools.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from .chat_rendering import ChatRenderer, Disguise, Message, Role, TemplateSpan
from .errors import ChatTemplateError

_BEFORE: dict[Role | None, tuple[tuple[Role, ...], ...]] = {
    None: ((),),
    "system": (("system",),),
    "user": (("user",), ("system", "user")),
    "assistant": (("user", "assistant"), ("system", "user", "assistant"), ("assistant",)),
    "tool": (("user", "assistant", "tool"), ("system", "user", "assistant", "tool")),
}
"""Short conversations that end in a role; the first that the template accepts is the one to probe with."""

_CONVERSATIONS: tuple[tuple[Role, ...], ...] = (
    ("user", "assistant", "user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
)
_WITH_TOOLS: tuple[tuple[Role, ...], ...] = (
    ("user", "assistant", "tool", "assistant", "user"),
    ("user", "assistant", "tool", "tool", "assistant", "user"),
)
"""Conversations in which a prefix-stable template writes every message as it does when the message is the last."""

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "palmette_probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}


class JinjaTemplate:
    """A model's chat template in Jinja, run in a sandbox.

    Args:
        special_tokens: texts that must not become special tokens where contents spell them.
        tools: what the template is given as `tools`, each as the text of a JSON object.

    Raises:
        ChatTemplateError: `source` is not valid Jinja, or a tool spells a special token; later, where the template
            refuses a role or has no place for it.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "the model",
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: tuple[str, ...] = (),
        tools: tuple[str, ...] = (),
    ) -> None:
        self._name = name
        self._bos_token = bos_token
        self._special_tokens = special_tokens
        self._renderer = ChatRenderer(source, name=name, bos_token=bos_token, eos_token=eos_token)
        self._tools = _parsed_tools(tools, special_tokens)
        self._begins: dict[tuple[Role, Role | None], str] = {}
        self._ends: dict[tuple[Role, Role | None], str] = {}

    @functools.cached_property
    def sequence_start(self) -> str:
        """The BOS token, unless it also opens later messages, as SmolLM2's does, or is not written at all."""
        bos = self._bos_token
        starts = bos and self.begin("user", None).startswith(bos) and not self._opens_later_messages(bos)
        return bos if starts else ""

    @functools.cached_property
    def prefix_stable(self) -> bool:
        """Whether conversations are the sum of what `begin` and `end` give, reasoning in earlier answers included.

        Tool results matter only where there are tools. A template that trims contents still counts as stable.
        """
        conversations = _CONVERSATIONS + (_WITH_TOOLS if self._tools else ())
        return all(self._adds_up(roles, reasons=reasons) for roles in conversations for reasons in (False, True))

    @functools.cached_property
    def _writes_system(self) -> bool:
        """Whether a system message is written, before a user's; some templates drop it in silence."""
        return _sentinel(0) in self._rendering(_probes(("system", "user")), asks=True)

    @functools.cached_property
    def takes_tools(self) -> bool:
        """Whether the template writes the tools that it is given."""
        for messages in (_probes(("user",)), _probes(("system", "user"))):
            try:
                return self._renderer.render(messages, tools=[_PROBE_TOOL]) != self._renderer.render(messages)
            except ChatTemplateError:
                continue
        return False

    def begin(self, role: Role, previous: Role | None) -> str:
        """The text from the end of the message before (or the start of the conversation) to the content."""
        key = (role, previous)
        if key not in self._begins:
            self._begins[key] = self._probe_begin(role, previous)
        return self._begins[key]

    def end(self, role: Role, previous: Role | None) -> str:
        """The text from the content to the end of the message."""
        key = (role, previous)
        if key not in self._ends:
            self._ends[key] = self._around_last((*self._history(role, previous), role))[1]
        return self._ends[key]

    def render(self, messages: Sequence[Message], open_role: Role | None) -> tuple[TemplateSpan, ...]:
        """A conversation up to where the content of `open_role` begins; None: to the end of the last message.

        For a prefix-stable template this is the sum of `begin`, content and `end`, where it does not trim contents.

        Raises:
            ChatTemplateError: the template refuses the conversation, or writes a message nowhere.
        """
        disguise = Disguise(self._special_tokens, [content for _, content in messages])
        disguised: list[Message] = [(role, disguise.put_on(content)) for role, content in messages]
        rendered = self._up_to(disguised, open_role, disguise.sentinel)
        if any(role == "system" for role, _ in messages) and not self._writes_system:
            raise self._no_place("system", [role for role, _ in messages])
        return disguise.take_off(rendered)

    def _opens_later_messages(self, bos: str) -> bool:
        try:
            if self.prefix_stable:
                return self.begin("user", "assistant").startswith(bos)
            return bos in self._up_to(_probes(("user", "assistant")), "user", "palmette").removeprefix(bos)
        except ChatTemplateError:  # it knows conversations of one turn only
            return False

    def _up_to(self, messages: list[Message], open_role: Role | None, sentinel: str) -> str:
        """The rendering up to the content of the open role, in whose place the sentinel stands."""
        if open_role is None:
            return self._closed(messages, sentinel) if messages else ""
        if open_role == "assistant" and messages and (not self.prefix_stable or self._generation_prompt(messages)):
            return self._rendering(messages, asks=True)
        opened: list[Message] = [*messages, (open_role, sentinel)]
        rendered = self._rendering(opened)
        if open_role == "system" and sentinel not in rendered:
            rendered = self._rendering([*opened, ("user", "content")])
        if rendered.count(sentinel) != 1:
            raise self._no_place(open_role, [role for role, _ in opened])
        return rendered.partition(sentinel)[0]

    def _closed(self, messages: list[Message], sentinel: str) -> str:
        """The rendering of a conversation, up to the user's message where a last system message is part of that."""
        rendered = self._rendering(messages)
        role, content = messages[-1]
        if role != "system" or content.strip() in rendered:
            return rendered
        return self._rendering([*messages, ("user", sentinel)]).partition(sentinel)[0]

    def _adds_up(self, roles: tuple[Role, ...], *, reasons: bool) -> bool:
        """Whether a conversation is written as the sum of its messages; True where the template does not take it."""
        messages = [(role, _probe_content(role, place, reasons=reasons)) for place, role in enumerate(roles)]
        try:
            rendered = self._rendering(messages)
        except ChatTemplateError:
            return True
        if any(role == "system" and content not in rendered for role, content in messages):
            return True
        try:
            return rendered == self._sum(messages)
        except ChatTemplateError:
            return False

    def _sum(self, messages: Sequence[Message]) -> str:
        text = ""
        previous: Role | None = None
        for role, content in messages:
            text += self.begin(role, previous) + content + self.end(role, previous)
            previous = role
        return text

    def _probe_begin(self, role: Role, previous: Role | None) -> str:
        history = self._history(role, previous)
        roles = (*history, role)
        before = self._around_last(roles)[0]
        if not history:
            return before
        prompt = self._generation_prompt(_probes(history)) if role == "assistant" else ""
        if prompt:
            return prompt
        closing = self._around_last(history)[1]
        between = before.partition(_sentinel(len(history) - 1))[2]
        if not between.startswith(closing):
            raise ChatTemplateError(
                f"the chat template of {self._name} writes the end of {_a(previous)} message in another way once a "
                f"{role} message follows ({closing!r}, then {between!r}), so a program cannot add messages one by one; "
                "write the conversation as plain text instead of roles"
            )
        return between[len(closing) :]

    def _generation_prompt(self, messages: Sequence[Message]) -> str:
        """What the template adds to ask for an answer, "" where it adds nothing at the end."""
        plain = self._rendering(messages)
        asking = self._rendering(messages, asks=True)
        return asking[len(plain) :] if asking.startswith(plain) else ""

    def _history(self, role: Role, previous: Role | None) -> tuple[Role, ...]:
        """A conversation ending in `previous` after which the template accepts `role`."""
        refusal: BaseException | None = None
        for history in _BEFORE[previous]:
            try:
                self._rendering(_probes((*history, role)))
            except ChatTemplateError as error:
                refusal = error.__cause__
            else:
                return history
        place = "as the first message" if previous is None else f"after {_a(previous)} message"
        raise ChatTemplateError(
            f"the chat template of {self._name} refuses {_a(role)} message {place}: {refusal}; "
            "use the roles in the order that the model knows"
        ) from refusal

    def _around_last(self, roles: tuple[Role, ...]) -> tuple[str, str]:
        """The rendering before and after the last message's content."""
        rendered = self._rendering(_probes(roles))
        if roles[-1] == "system" and _sentinel(len(roles) - 1) not in rendered:
            rendered = self._before_user(roles)
        for place, role in enumerate(roles):
            if rendered.count(_sentinel(place)) != 1:
                raise self._no_place(role, roles)
        before, _, after = rendered.partition(_sentinel(len(roles) - 1))
        return before, after

    def _before_user(self, roles: tuple[Role, ...]) -> str:
        """The rendering up to the content of a user message that follows: some templates join it with the system's."""
        try:
            return self._rendering(_probes((*roles, "user"))).partition(_sentinel(len(roles)))[0]
        except ChatTemplateError:
            return ""

    def _rendering(self, messages: Sequence[Message], *, asks: bool = False) -> str:
        return self._renderer.render(messages, tools=self._tools, asks=asks)

    def _no_place(self, role: Role, roles: Sequence[Role]) -> ChatTemplateError:
        return ChatTemplateError(
            f"the chat template of {self._name} has no place of its own for {_a(role)} message "
            f"in the conversation {', '.join(roles)}; put its text into a message of another role"
        )


def _parsed_tools(tools: tuple[str, ...], special_tokens: tuple[str, ...]) -> list[Any]:
    parsed = [json.loads(tool) for tool in tools]
    for tool in parsed:
        text = json.dumps(tool, ensure_ascii=False)
        spelled = next((token for token in special_tokens if token and token in text), None)
        if spelled is not None:
            raise ChatTemplateError(
                f"a tool's description spells the special token {spelled!r}, which would become that token in the "
                f"prompt; write it in another way: {text}"
            )
    return parsed


def _a(role: Role | None) -> str:
    return f"an {role}" if role == "assistant" else f"a {role}"


def _sentinel(place: int) -> str:
    return f"palmette{place}content"


def _probes(roles: tuple[Role, ...]) -> list[Message]:
    return [(role, _sentinel(place)) for place, role in enumerate(roles)]


def _probe_content(role: Role, place: int, *, reasons: bool) -> str:
    """A content that templates may change: an answer with reasoning in it, and a tool result with quotes in it."""
    content = _sentinel(place)
    if role == "assistant" and reasons:
        return f"<think>\n{content}\n</think>\n\n{content}"
    return f'"{content}"\n{{}}' if role == "tool" else content
