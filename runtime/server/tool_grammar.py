"""Grammars of answers that call tools, and what else a generation needs so that every call is valid."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from palmette.constrained.grammar import Grammar

from .tool_choice import FunctionTool, ToolChoice, ToolError
from .tool_formats import ToolFormat
from .tool_parser import ToolParser
from .tool_syntax import syntax_of

_SCHEMA_POINTER = re.compile(r".*/tags/(\d+)/content/json_schema")
_POINTER = re.compile(r" \(at (/format[^)]*)\)")


@dataclass(frozen=True)
class ToolPlan:
    """How an answer is generated and read.

    Attributes:
        format, choice: what it is for.
        grammar: what the answer is held to; None for any text.
        prompt_end: template text that the prompt ends with, behind the generation prompt.
        stop_token: special token at which the generation is to stop; where it did, prompt, answer and this token are to
            be continued by `after_stop`. "" for none.
        begun: the function whose arguments the answer is, where the prompt has begun its call already.
    """

    format: ToolFormat
    choice: ToolChoice
    grammar: Grammar | None = None
    prompt_end: str = ""
    stop_token: str = ""
    begun: str | None = None

    @property
    def must_call(self) -> bool:
        return self.choice.mode == "required"

    def after_stop(self) -> ToolPlan:
        """The plan of what follows the stop token: calls and nothing else."""
        plan = tool_plan(self.format, replace(self.choice, mode="required"))
        return replace(plan, prompt_end=plan.prompt_end.removeprefix(self.stop_token))

    def parser(self) -> ToolParser:
        """A reader of one answer."""
        names = tuple(tool.name for tool in self.choice.tools)
        return ToolParser(
            syntax_of(self.format, names, after_marker=self.must_call),
            is_exact=self.grammar is not None,
            begun=self.begun,
        )

    def error_of(self, message: str) -> ToolError | None:
        """The caller's mistake behind the message of a `GrammarError`; None where it is not about a tool's schema."""
        if self.begun is not None:
            return _schema_error(self.choice.tools[0], message)
        pointer = _POINTER.search(message)
        found = _SCHEMA_POINTER.match(pointer[1]) if pointer is not None else None
        if pointer is None or found is None:
            return None
        return _schema_error(self.choice.tools[int(found[1])], message[: pointer.start()] + message[pointer.end() :])


def _schema_error(tool: FunctionTool, message: str) -> ToolError:
    return ToolError(f"the schema of the tool {tool.name!r} cannot be used: {message}", param=tool.param)


def tool_plan(format_: ToolFormat, choice: ToolChoice) -> ToolPlan:
    """The plan of an answer of a model with `format_` under `choice`."""
    if choice.mode == "none":
        return ToolPlan(format_, choice)
    if choice.mode == "auto" and format_.is_hidden:
        return ToolPlan(format_, choice, stop_token=format_.marker)
    only = choice.tools[0].name if len(choice.tools) == 1 and not choice.parallel else None
    if only is not None and choice.mode == "required" and format_.family == "mistral_named" and format_.is_hidden:
        grammar = Grammar.json_schema(choice.tools[0].schema)
        return ToolPlan(format_, choice, grammar, prompt_end=format_.prompt_end_named(only), begun=only)
    prompt_end = format_.prompt_end if choice.mode == "required" else ""
    return ToolPlan(format_, choice, tool_grammar(format_, choice), prompt_end=prompt_end)


def tool_grammar(format_: ToolFormat, choice: ToolChoice) -> Grammar | None:
    """What an answer must match: calls alone where they are required, else text in which a call that begins is valid.

    Calls are held to the schemas of their tools, `strict` or not. None where no tool may be called, and where calls may
    come but begin with a special token, which a grammar cannot spell.
    """
    if choice.mode == "none" or (choice.mode == "auto" and format_.is_hidden):
        return None
    inner = _calls(format_, choice) if choice.mode == "required" else _free_text(format_, choice)
    return Grammar.structural_tag({"type": "structural_tag", "format": inner})


def no_calls(format_: ToolFormat, tools: tuple[FunctionTool, ...]) -> Grammar | None:
    """Text without the beginning of a call; None where that is a special token, which a grammar cannot spell."""
    if format_.is_hidden:
        return None
    text = {"type": "any_text", "excludes": format_.triggers(tools)}
    return Grammar.structural_tag({"type": "structural_tag", "format": text})


def _tags(format_: ToolFormat, tools: tuple[FunctionTool, ...], *, opened: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "type": "tag",
            "begin": format_.begin(tool.name) if opened else format_.head(tool.name),
            "content": {"type": "json_schema", "json_schema": tool.schema},
            "end": format_.end,
        }
        for tool in tools
    ]


def _list(format_: ToolFormat, choice: ToolChoice) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "separator": format_.separator,
        "tags": _tags(format_, choice.tools),
        "at_least_one": True,
        "stop_after_first": not choice.parallel,
    }


def _calls(format_: ToolFormat, choice: ToolChoice) -> dict[str, Any]:
    """One call or more and nothing else."""
    calls = _list(format_, choice)
    if not format_.first:
        return calls
    return {"type": "tag", "begin": format_.first, "content": calls, "end": format_.last}


def _free_text(format_: ToolFormat, choice: ToolChoice) -> dict[str, Any]:
    """Text in which the beginning of a call leads into a whole and valid one."""
    whole_list = format_.first and {
        "type": "tag",
        "begin": format_.first,
        "content": _list(format_, choice),
        "end": format_.last,
    }
    return {
        "type": "triggered_tags",
        "triggers": format_.triggers(choice.tools),
        "tags": [whole_list] if whole_list else _tags(format_, choice.tools),
        "stop_after_first": not choice.parallel,
    }
