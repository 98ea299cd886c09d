"""Runs chat templates: Jinja in a sandbox, with the functions that templates use."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from .errors import ChatTemplateError

if TYPE_CHECKING:
    from jinja2 import Template

Role = Literal["system", "user", "assistant", "tool"]
Message = tuple[Role, str]
"""A role and its content."""

_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class TemplateSpan:
    """Part of a rendered conversation. Only `template` text may spell special tokens."""

    text: str
    template: bool


class ChatRenderer:
    """Renders conversations by a model's chat template, without the EOS token that some close a conversation with.

    Raises:
        ChatTemplateError: `source` is not valid Jinja; from `render`, the template refuses the conversation.
    """

    def __init__(self, source: str, *, name: str, bos_token: str, eos_token: str) -> None:
        self._name = name
        self._eos_token = eos_token
        self._constants = {"bos_token": bos_token, "eos_token": eos_token, "documents": None}
        self._template = _compiled(source, name)
        self._closes: bool | None = None

    def render(self, messages: Sequence[Message], *, tools: Sequence[Any] = (), asks: bool = False) -> str:
        """The text of a conversation; `asks` adds the prompt for an answer where the template has one."""
        rendered = self._run(messages, tools, asks=asks)
        if asks or not self._eos_token or not rendered.endswith(self._eos_token):
            return rendered
        return rendered.removesuffix(self._eos_token) if self._closes_with_eos(messages, tools) else rendered

    def _closes_with_eos(self, messages: Sequence[Message], tools: Sequence[Any]) -> bool:
        """Whether the EOS token at the end closes the conversation and not its last message: asked on, it is gone."""
        if self._closes is None:
            plain, asking = (self._run(messages, tools, asks=asks) for asks in (False, True))
            kept = plain.removesuffix(self._eos_token)
            self._closes = asking.startswith(kept) and not asking.startswith(plain)
        return self._closes

    def _run(self, messages: Sequence[Message], tools: Sequence[Any], *, asks: bool) -> str:
        given = {
            **self._constants,
            "messages": [{"role": role, "content": content} for role, content in messages],
            "tools": list(tools) or None,
            "add_generation_prompt": asks,
        }
        try:
            return self._template.render(given)
        except Exception as error:  # what a template may raise is its author's choice
            roles = ", ".join(role for role, _ in messages)
            raise ChatTemplateError(
                f"the chat template of {self._name} refuses the conversation {roles}: {error}"
            ) from error


class Disguise:
    """Stands private-use characters for the special tokens in contents, so that a template does not make them its own.

    Attributes:
        sentinel: text that is in none of the contents, for finding a place in a rendering.
    """

    def __init__(self, special_tokens: Iterable[str], contents: Sequence[str]) -> None:
        joined = "\0".join(contents)
        unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in joined)
        self.sentinel = f"palmette{next(unused)}content"
        spelled = sorted((token for token in special_tokens if token and token in joined), key=len, reverse=True)
        self._markers = {token: next(unused) for token in spelled}
        self._tokens = {marker: token for token, marker in self._markers.items()}

    def put_on(self, content: str) -> str:
        """The content without special tokens."""
        for token, marker in self._markers.items():
            content = content.replace(token, marker)
        return content

    def take_off(self, rendered: str) -> tuple[TemplateSpan, ...]:
        """The text as it was meant, in spans."""
        if not self._markers:
            return (TemplateSpan(rendered, template=True),) if rendered else ()
        parts = re.split(f"([{''.join(self._tokens)}])", rendered)
        spans = (TemplateSpan(self._tokens.get(part, part), part not in self._tokens) for part in parts)
        return tuple(span for span in spans if span.text)


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


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: unlike Jinja's own filter, nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
