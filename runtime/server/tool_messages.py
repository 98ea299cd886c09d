"""Tool calls and results among the messages of a conversation, in the forms that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .tool_choice import FunctionTool, ToolError
from .tool_formats import ToolFormat

TemplateMessage = dict[str, Any]


def tool_messages(
    messages: Sequence[Mapping[str, Any]], format_: ToolFormat, tools: Sequence[FunctionTool] = ()
) -> list[TemplateMessage]:
    """The messages of a chat completion as the model's template takes them.

    Arguments, JSON text in the API, become objects; results get the name of the function that gave them; contents that
    are lists of text parts become one text. For a template that knows no tools, `tools` go into the system message,
    calls into the text of their messages, and results into messages of the user.

    Raises:
        ToolError: a result answers no call before it, or a call has no name.
    """
    names: dict[str, str] = {}
    read = [_message(message, f"messages[{index}]", names, format_) for index, message in enumerate(messages)]
    if not format_.takes_tools:
        return (
            _with_system(_without_roles(read, format_), system_text(tools)) if tools else _without_roles(read, format_)
        )
    return _one_call_each(read) if format_.family == "llama3" else read


def system_text(tools: Sequence[FunctionTool]) -> str:
    """What a model is told of its tools where its chat template has no place for them."""
    listed = "\n".join(json.dumps(tool.template_value, ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. Here they are, one JSON object a line:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call a function, answer with its name and arguments as JSON between two tags, one block for each call:\n"
        '<tool_call>\n{"name": "<function>", "arguments": {<arguments>}}\n</tool_call>'
    )


def content_text(content: Any) -> str:
    """The text of a message's content: a string, a list of text parts, or None."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def _message(message: Mapping[str, Any], at: str, names: dict[str, str], format_: ToolFormat) -> TemplateMessage:
    read: TemplateMessage = {**message, "content": content_text(message.get("content"))}
    calls = read.pop("tool_calls", None)
    if message["role"] == "assistant" and calls:
        read["tool_calls"] = [
            _call(call, f"{at}.tool_calls[{index}]", names, format_) for index, call in enumerate(calls)
        ]
    if message["role"] == "tool":
        call_id = message.get("tool_call_id")
        if call_id not in names:
            raise ToolError(f"{call_id!r} is the id of no tool call before this message", param=f"{at}.tool_call_id")
        read |= {"tool_call_id": format_.template_id(call_id), "name": names[call_id]}
    return read


def _call(call: Mapping[str, Any], at: str, names: dict[str, str], format_: ToolFormat) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ToolError(f"must have a function with a name, not {function!r}", param=f"{at}.function")
    call_id = str(call.get("id") or "")
    names[call_id] = function["name"]
    arguments = _arguments(function.get("arguments"))
    return {
        "id": format_.template_id(call_id),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(arguments: Any) -> Any:
    """Arguments as an object; text that is none stays as it is, for templates that print it."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _one_call_each(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Messages with one call each, its result behind it: Llama 3's template takes no others."""
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    moved: set[str] = set()
    found: list[TemplateMessage] = []
    for message in messages:
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            if message.get("tool_call_id") not in moved:
                found.append(message)
            continue
        for place, call in enumerate(calls):
            found.append({**message, "tool_calls": [call]} | ({"content": ""} if place else {}))
            if call["id"] in results:
                found.append(results[call["id"]])
                moved.add(call["id"])
    return found


def _without_roles(messages: list[TemplateMessage], format_: ToolFormat) -> list[TemplateMessage]:
    """Messages of the system, the user and the assistant alone; results in a row are one message of the user."""
    found: list[TemplateMessage] = []
    after_result = False
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            result = f"<tool_response>\n{content}\n</tool_response>"
            if after_result:
                found[-1]["content"] += f"\n{result}"
            else:
                found.append({"role": "user", "content": result})
        elif calls := message.get("tool_calls"):
            written = format_.separator.join(_written(call["function"], format_) for call in calls)
            text = format_.first + written + format_.last
            found.append({"role": "assistant", "content": f"{content}\n{text}" if content else text})
        else:
            found.append(message)
        after_result = message["role"] == "tool"
    return found


def _written(function: Mapping[str, Any], format_: ToolFormat) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return format_.begin(function["name"]) + text + format_.end


def _with_system(messages: list[TemplateMessage], text: str) -> list[TemplateMessage]:
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
