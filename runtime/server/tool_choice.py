"""Function tools as a request gives them, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palmette.runtime.errors import RequestError

ToolMode = Literal["none", "auto", "required"]

MAX_TOOLS = 128
"""Most tools of one request, as in OpenAI's API."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_COMPOSED = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties", "unevaluatedProperties")


class ToolError(RequestError):
    """Tools, or a choice among them, that cannot be used.

    Attributes:
        param: the part of the request that is wrong, such as ``tools[0].function.parameters``.
    """

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the model may call.

    Attributes:
        name: letters, digits, ``_`` and ``-``; at most 64.
        description: for the model.
        parameters: JSON Schema of the object of its arguments, as it was given; no arguments where it was not.
        param: where the request gives `parameters`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    param: str

    @property
    def schema(self) -> dict[str, Any]:
        """What calls are held to: always an object, and no arguments but the declared ones where they are listed.

        The specification leaves an object open that says nothing of other keys; a function that is called with an
        argument that it does not have fails, so none is ever made up.
        """
        schema = {"type": "object", **self.parameters}
        is_listed = "properties" in schema and not any(keyword in schema for keyword in _COMPOSED)
        return {"additionalProperties": False, **schema} if is_listed else schema

    @property
    def template_value(self) -> dict[str, Any]:
        """The tool in the form that chat templates take."""
        described = {"description": self.description} if self.description else {}
        function = {"name": self.name, **described, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What may be called.

    Attributes:
        mode: none; auto, text and calls; required, one call or more and nothing else.
        tools: those that may be called; empty with none.
        parallel: whether there may be more than one call.
    """

    mode: ToolMode
    tools: tuple[FunctionTool, ...] = ()
    parallel: bool = True


def function_tools(tools: Sequence[Any] | None) -> tuple[FunctionTool, ...]:
    """The `tools` of a request: ``{"type": "function", "function": {...}}``, or flat, with the function's fields in it.

    Raises:
        ToolError: a tool of another type, without a legal name, with a name that comes twice, or with parameters that
            are no schema of an object; or too many.
    """
    given = list(tools or ())
    if len(given) > MAX_TOOLS:
        raise ToolError(f"{len(given)} tools are too many; at most {MAX_TOOLS} are allowed", param="tools")
    found: dict[str, FunctionTool] = {}
    for index, tool in enumerate(given):
        read = _function_tool(tool, f"tools[{index}]")
        if read.name in found:
            raise ToolError(f"the name {read.name!r} comes twice; names must differ", param=f"tools[{index}]")
        found[read.name] = read
    return tuple(found.values())


def _function_tool(tool: Any, at: str) -> FunctionTool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise ToolError(f"only tools of type 'function' are supported, not {kind!r}", param=f"{at}.type")
    function = tool.get("function", tool)
    at = f"{at}.function" if function is not tool else at
    if not isinstance(function, Mapping):
        raise ToolError(f"must be an object with a name, not {function!r}", param=at)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolError(f"must be 1 to 64 letters, digits, '_' or '-', not {name!r}", param=f"{at}.name")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise ToolError(f"must be a string, not {description!r}", param=f"{at}.description")
    return FunctionTool(name, description, _parameters(function.get("parameters"), at), f"{at}.parameters")


def _parameters(parameters: Any, at: str) -> Mapping[str, Any]:
    at = f"{at}.parameters"
    if parameters is None:
        return {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ToolError(f"must be a JSON Schema of an object, not {parameters!r}", param=at)
    if parameters.get("type", "object") != "object":
        raise ToolError(f"arguments are an object, so 'type' must be 'object', not {parameters['type']!r}", param=at)
    return parameters


def tool_choice(choice: Any, tools: tuple[FunctionTool, ...], *, parallel: bool | None = None) -> ToolChoice:
    """The `tool_choice` of a request: "none", "auto", "required", a function by its name, or allowed tools.

    Objects may have the form of chat completions, ``{"type": "function", "function": {"name": ...}}``, or the flat one
    of responses. Without a choice it is auto where there are tools. A named function is called exactly once.

    Raises:
        ToolError: it is none of these, or names a function that is not among `tools`.
    """
    several = parallel is not False
    if choice is None:
        choice = "auto" if tools else "none"
    if isinstance(choice, Mapping):
        return _chosen(choice, tools, several)
    if choice not in ("none", "auto", "required"):
        raise ToolError(
            f"must be 'none', 'auto', 'required' or an object that names a function, not {choice!r}",
            param="tool_choice",
        )
    if choice == "required" and not tools:
        raise ToolError("'required' needs tools to choose from, but there are none", param="tool_choice")
    if choice == "none" or not tools:
        return ToolChoice("none")
    return ToolChoice(choice, tools, several)


def _chosen(choice: Mapping[str, Any], tools: tuple[FunctionTool, ...], several: bool) -> ToolChoice:
    kind = choice.get("type")
    if kind == "function":
        return ToolChoice("required", (_by_name(choice, tools, "tool_choice"),), parallel=False)
    if kind != "allowed_tools":
        raise ToolError(f"must be 'function' or 'allowed_tools', not {kind!r}", param="tool_choice.type")
    allowed = choice.get("allowed_tools", choice)
    if not isinstance(allowed, Mapping):
        raise ToolError(f"must be an object with mode and tools, not {allowed!r}", param="tool_choice.allowed_tools")
    mode, names = allowed.get("mode", "auto"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise ToolError(f"must be 'auto' or 'required', not {mode!r}", param="tool_choice.mode")
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise ToolError(f"must be a non-empty list of tools, not {names!r}", param="tool_choice.tools")
    chosen = {_by_name(each, tools, f"tool_choice.tools[{index}]").name for index, each in enumerate(names)}
    return ToolChoice(mode, tuple(tool for tool in tools if tool.name in chosen), several)


def _by_name(choice: Any, tools: tuple[FunctionTool, ...], at: str) -> FunctionTool:
    if not isinstance(choice, Mapping):
        raise ToolError(f"must be an object that names a function, not {choice!r}", param=at)
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        known = ", ".join(repr(tool.name) for tool in tools) or "none"
        raise ToolError(f"there is no tool {name!r}; the request's tools are: {known}", param=at)
    return found
