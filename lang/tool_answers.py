"""Answers that call tools: what a model may write, and how it is read."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import msgspec

from palmette.constrained.grammar import Grammar

from .errors import ToolError
from .shapes import ConstantsShape, Definitions, ListShape, Member, RecordShape, Schema, Shape, document
from .tool import Tool, ToolCall
from .types import JsonAnswer

ToolChoice = Literal["required", "auto"]
CHOICES: tuple[ToolChoice, ...] = get_args(ToolChoice)
MOST_CALLS = 16
"""Calls that one answer may make, so that a list of them ends."""

_OPEN, _CLOSE = "<tool_call>\n", "\n</tool_call>"
_WORDS = rf"(?!\s*[\[{{])(?![\s\S]*{_OPEN.strip()})\s{{0,2}}\S[\s\S]*"
"""Text that is no call and does not begin as one."""

_Calls = Annotated[list[Any], msgspec.Meta(min_length=1, max_length=MOST_CALLS)]


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """What `gen` was told of tools: which, whether one must be called, and whether several may be."""

    tools: Any
    choice: ToolChoice
    parallel: bool


def tool_answer(
    tools: Iterable[Tool[..., Any]], choice: ToolChoice = "required", *, parallel: bool = False
) -> JsonAnswer | CallOrText:
    """Answers that call `tools`, each call as ``{"name": ..., "arguments": {...}}``.

    Args:
        choice: "required": the answer is a call, read as a `ToolCall`. "auto": a call, or any other text, read as str.
        parallel: several calls may stand in an answer, and calls are read as a list of them: ``[{...}, {...}]``.

    Raises:
        ToolError: `tools` is empty, holds something else, or two of one name.
    """
    return _tool_answer(checked_tools(tools), choice, parallel)


def tools_prompt(tools: Iterable[Tool[..., Any]]) -> str:
    """What a model must know to call `tools`, as plain text, for chat templates that take no tools.

    Raises:
        ToolError: as `tool_answer`.
    """
    described = "\n\n".join(map(_description, checked_tools(tools)))
    return (
        f"You can call these tools:\n\n{described}\n\n"
        "To call a tool, write one line of JSON and nothing else, its arguments by name:\n"
        '{"name": "the tool\'s name", "arguments": {...}}'
    )


def checked_tools(tools: Iterable[Tool[..., Any]]) -> tuple[Tool[..., Any], ...]:
    """The tools, of which there is at least one, and no two of one name.

    Raises:
        ToolError: it is not so.
    """
    offered = tuple(tools) if isinstance(tools, Iterable) else ()
    if not offered:
        raise ToolError(f"tools must be a non-empty list of functions made tools by @pt.tool, not {tools!r}")
    for item in offered:
        if not isinstance(item, Tool):
            raise ToolError(f"{item!r} is no tool: decorate the function with @pt.tool")
    names = [item.name for item in offered]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ToolError(
            f"tools must have distinct names, but these come twice: {', '.join(twice)}; use @pt.tool(name=...)"
        )
    return offered


@dataclass(frozen=True, slots=True)
class CallOrText:
    """Answers that call tools or are text.

    A call is JSON, alone or as models of the Hermes kind write it, ``<tool_call>\\n{...}\\n</tool_call>``.

    Attributes:
        name, grammar: as of `JsonAnswer`.
        calls: reads the JSON of an answer that calls.
        parallel: calls are read as a list.
    """

    calls: JsonAnswer
    parallel: bool
    name: str = "a tool call or text"
    grammar: Grammar = field(init=False)

    def __post_init__(self) -> None:
        schema = {"type": "json_schema", "json_schema": document(self.calls.shape)}
        one = document(self.calls.shape.call) if isinstance(self.calls.shape, _CallsShape) else schema["json_schema"]
        tag = {"type": "tag", "begin": _OPEN, "content": {"type": "json_schema", "json_schema": one}, "end": _CLOSE}
        tags = {"type": "tags_with_separator", "separator": "\n", "tags": [tag], "at_least_one": True}
        tags["stop_after_first"] = not self.parallel
        words = {"type": "regex", "pattern": _WORDS}
        spec = {"type": "structural_tag", "format": {"type": "or", "elements": [schema, tags, words]}}
        object.__setattr__(self, "grammar", Grammar.structural_tag(spec))

    def read(self, text: str) -> Any:
        """The call, or the list of calls, or the text itself.

        Raises:
            ValueError: as `JsonAnswer.read`, of an answer that begins as a call.
        """
        if text.startswith(_OPEN):
            calls = [call.strip().removeprefix(_OPEN) for call in text.split(_CLOSE)[:-1]]
            text = f"[{', '.join(calls)}]" if self.parallel else calls[0] if calls else text
        return self.calls.read(text) if text.startswith(("{", "[", _OPEN)) else text


@functools.lru_cache(maxsize=256)
def _tool_answer(tools: tuple[Tool[..., Any], ...], choice: ToolChoice, parallel: bool) -> JsonAnswer | CallOrText:
    call = _CallShape("a tool call", {offered.name: _call_record(offered) for offered in tools})
    shape = _CallsShape(call, alone=choice == "auto") if parallel else call
    answer = JsonAnswer.of(shape)
    return answer if choice == "required" else CallOrText(answer, parallel)


def _call_record(called: Tool[..., Any]) -> RecordShape:
    name = ConstantsShape("name", ((called.name, called.name),))
    members = (Member("name", None, name, True), Member("arguments", "arguments", called.arguments, True))
    return RecordShape(f"a call of {called.name}", members, functools.partial(ToolCall, called))


def _description(described: Tool[..., Any]) -> str:
    lines = [described.signature, described.description, f"Schema of the arguments: {json.dumps(described.parameters)}"]
    return "\n    ".join(line for line in lines if line)


@dataclass(frozen=True, slots=True)
class _CallShape(Shape):
    """A call of one of several tools. `calls` has the shape of each tool's calls by its name."""

    name: str
    calls: Mapping[str, RecordShape]

    def schema(self, definitions: Definitions) -> Schema:
        return {"anyOf": [call.schema(definitions) for call in self.calls.values()]}

    def read(self, value: Any, where: str) -> Any:
        name = value.get("name") if isinstance(value, dict) else None
        call = self.calls.get(name) if isinstance(name, str) else None
        if call is None:
            raise ValueError(f"{where}: expected a call of one of {', '.join(self.calls)}, not {value!r:.100}")
        return call.read(value, where)


@dataclass(frozen=True, slots=True)
class _CallsShape(Shape):
    """Some calls: a list of them, or where `alone` says so one without a list around it."""

    call: _CallShape
    alone: bool
    name: str = "tool calls"

    @property
    def _list(self) -> ListShape:
        return ListShape(self.name, self.call, _Calls, list)

    def schema(self, definitions: Definitions) -> Schema:
        several = self._list.schema(definitions)
        return {"anyOf": [several, self.call.schema(definitions)]} if self.alone else several

    def read(self, value: Any, where: str) -> Any:
        if self.alone and isinstance(value, dict):
            return [self.call.read(value, where)]
        return self._list.read(value, where)
