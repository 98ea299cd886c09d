"""The text that opens and closes a message, found by rendering the model's own chat template.

A role's text is the difference between renderings with and without it. Sentinels stand in for the contents, so a
template is probed once for each (role, role before it), and never sees what a program says. Two things follow: contents
are not trimmed where a template would trim them, and a template that moves or repeats contents is refused.

The assistant's message opens with the template's generation prompt where it has one. A default system message that a
template puts in front of a conversation is part of the text that opens the first message.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from palmette.runtime.program import ModelInfo

from .errors import ChatTemplateError
from .expr import Role

if TYPE_CHECKING:
    from jinja2 import Template

_BEFORE: dict[Role | None, tuple[tuple[Role, ...], ...]] = {
    None: ((),),
    "system": (("system",),),
    "user": (("user",), ("system", "user")),
    "assistant": (("user", "assistant"), ("system", "user", "assistant"), ("assistant",)),
}
"""Short conversations that end in a role; the first that the template accepts is the one to probe with."""


class ChatTemplate(Protocol):
    """What stands around the content of a message. `previous` is the role of the message before, None at the start."""

    @property
    def sequence_start(self) -> str:
        """What the opening of a conversation's first message begins with only because a sequence begins there."""

    def begin(self, role: Role, previous: Role | None) -> str: ...

    def end(self, role: Role, previous: Role | None) -> str: ...


class PlainTemplate:
    """For models without a chat template: a message is ``ROLE: content`` and a line break, as in ``USER: Hello``."""

    sequence_start = ""

    def begin(self, role: Role, previous: Role | None) -> str:
        return f"{role.upper()}: "

    def end(self, role: Role, previous: Role | None) -> str:
        return "\n"


class JinjaTemplate:
    """A model's chat template in Jinja, run in a sandbox.

    Raises:
        ChatTemplateError: `source` is not valid Jinja; later, where the template refuses a role or has no place for it.
    """

    def __init__(self, source: str, *, name: str = "the model", bos_token: str = "", eos_token: str = "") -> None:
        self._name = name
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = _compiled(source, name)
        self._begins: dict[tuple[Role, Role | None], str] = {}
        self._ends: dict[tuple[Role, Role | None], str] = {}

    @functools.cached_property
    def sequence_start(self) -> str:
        """The BOS token, unless it also opens later messages, as SmolLM2's does, or is not written at all."""
        bos = self._tokens["bos_token"]
        first, later = self.begin("user", None), self.begin("user", "assistant")
        return bos if bos and first.startswith(bos) and not later.startswith(bos) else ""

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
            roles = (*self._history(role, previous), role)
            self._ends[key] = self._after_last(roles)
        return self._ends[key]

    def _probe_begin(self, role: Role, previous: Role | None) -> str:
        history = self._history(role, previous)
        roles = (*history, role)
        before = self._before_last(roles)
        if not history:
            return before
        prompt = self._generation_prompt(history) if role == "assistant" else ""
        if prompt:
            return prompt
        closing = self._after_last(history)
        between = before.partition(_sentinel(len(history) - 1))[2]
        if not between.startswith(closing):
            raise ChatTemplateError(
                f"the chat template of {self._name} writes the end of a {previous} message in another way once a "
                f"{role} message follows ({closing!r}, then {between!r}), so a program cannot add messages one by one; "
                "write the conversation as plain text instead of roles"
            )
        return between[len(closing) :]

    def _generation_prompt(self, history: tuple[Role, ...]) -> str:
        """What the template adds to ask for an answer, "" where it adds nothing at the end."""
        plain = self._render(history)
        asking = self._render(history, add_generation_prompt=True)
        return asking[len(plain) :] if asking.startswith(plain) else ""

    def _history(self, role: Role, previous: Role | None) -> tuple[Role, ...]:
        """A conversation ending in `previous` after which the template accepts `role`."""
        refusal: BaseException | None = None
        for history in _BEFORE[previous]:
            try:
                self._render((*history, role))
            except ChatTemplateError as error:
                refusal = error.__cause__
            else:
                return history
        place = "as the first message" if previous is None else f"after a {previous} message"
        raise ChatTemplateError(
            f"the chat template of {self._name} refuses a {role} message {place}: {refusal}; "
            "use the roles in the order that the model knows"
        ) from refusal

    def _render(self, roles: tuple[Role, ...], *, add_generation_prompt: bool = False) -> str:
        messages = [{"role": role, "content": _sentinel(place)} for place, role in enumerate(roles)]
        asked = {**self._tokens, "messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(asked)
        except Exception as error:  # what a template may raise is its author's choice
            raise ChatTemplateError(
                f"the chat template of {self._name} refuses the conversation {', '.join(roles)}: {error}"
            ) from error

    def _before_last(self, roles: tuple[Role, ...]) -> str:
        return self._around_last(roles)[0]

    def _after_last(self, roles: tuple[Role, ...]) -> str:
        return self._around_last(roles)[1]

    def _around_last(self, roles: tuple[Role, ...]) -> tuple[str, str]:
        """The rendering before and after the last message's content."""
        rendered = self._render(roles)
        for place in range(len(roles)):
            if rendered.count(_sentinel(place)) != 1:
                raise ChatTemplateError(
                    f"the chat template of {self._name} has no place of its own for a {roles[place]} message "
                    f"in the conversation {', '.join(roles)}; put its text into a message of another role"
                )
        before, _, after = rendered.partition(_sentinel(len(roles) - 1))
        return before, after


def chat_template(info: ModelInfo) -> ChatTemplate:
    """The template of a model. Probes are shared by all programs of a day, as templates may print the date.

    Raises:
        ChatTemplateError: the template is not valid Jinja.
    """
    if info.chat_template is None:
        return PlainTemplate()
    return _loaded(info.chat_template, info.name, info.bos_token, info.eos_token, dt.date.today())


@functools.lru_cache(maxsize=64)
def _loaded(source: str, name: str, bos_token: str, eos_token: str, day: dt.date) -> JinjaTemplate:
    return JinjaTemplate(source, name=name, bos_token=bos_token, eos_token=eos_token)


def _sentinel(place: int) -> str:
    return f"palmette{place}content"


def _compiled(source: str, name: str) -> Template:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """``{% generation %}`` marks the assistant's text for training; here its body stands for itself."""

        tags = {"generation"}  # noqa: RUF012  the base class declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ChatTemplateError(f"the chat template of {name} is not valid Jinja: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  templates may name the argument
    return dt.datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON as chat templates expect it: unlike Jinja's own filter, nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
