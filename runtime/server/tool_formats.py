"""How models of each family write calls of tools.

    hermes          <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>      one block a call
    llama3          {"name": "f", "parameters": {...}}                                several: separated by "; "
    mistral         [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]              one list
    mistral_named   [TOOL_CALLS]f[ARGS]{...}                                          one after the other

Where a family's marker (``<tool_call>``, ``[TOOL_CALLS]``) is a special token, text never shows it and a grammar cannot
spell it: what it spells are ordinary characters. So it depends on the tokenizer how a call begins:

- An ordinary added token (Qwen's ``<tool_call>``) or none at all: the marker is part of the text and of the grammar.
- A special token (Mistral's ``[TOOL_CALLS]``): calls that must come have the marker at the end of the prompt, and the
  grammar holds what follows it. Where the model may choose, the generation stops at the marker's token; the answer then
  goes on after it under the grammar (`ToolPlan.stop_token`). Further markers between calls are not written.

Llama's ``<|python_tag|>`` is special and comes before calls of built-in tools only; functions are plain JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from palmette.runtime.program import ModelInfo

from .tool_choice import FunctionTool

Family = Literal["hermes", "llama3", "mistral", "mistral_named"]

_ARGS = "[ARGS]"
_MARKERS: dict[Family, str] = {
    "hermes": "<tool_call>",
    "llama3": "",
    "mistral": "[TOOL_CALLS]",
    "mistral_named": "[TOOL_CALLS]",
}


@dataclass(frozen=True)
class ToolFormat:
    """How one model writes calls: a list of calls is `first`, calls with `separator` between them, and `last`.

    A call is `begin`, its arguments as JSON, and `end`.

    Attributes:
        family: see the module.
        special_tokens: of the tokenizer.
        takes_tools: whether the chat template writes tools that it is given; else they go into a system message.
    """

    family: Family
    special_tokens: frozenset[str] = frozenset()
    takes_tools: bool = True

    @property
    def marker(self) -> str:
        """What calls begin with; "" where there is no such thing."""
        return _MARKERS[self.family]

    @property
    def is_hidden(self) -> bool:
        """Whether the marker is a special token, which has no text."""
        return self.marker in self.special_tokens

    @property
    def first(self) -> str:
        if self.family == "mistral":
            return "[" if self.is_hidden else self.marker + "["
        return ""

    @property
    def last(self) -> str:
        return "]" if self.family == "mistral" else ""

    @property
    def separator(self) -> str:
        return {"hermes": "\n", "llama3": "; ", "mistral": ", ", "mistral_named": ""}[self.family]

    @property
    def end(self) -> str:
        if self.family == "mistral_named":
            return ""
        return "}\n</tool_call>" if self.family == "hermes" and not self.is_hidden else "}"

    @property
    def opening(self) -> str:
        """What of `begin` is not the call itself."""
        if self.is_hidden or self.family in ("llama3", "mistral"):
            return ""
        return self.marker + "\n" if self.family == "hermes" else self.marker

    @cached_property
    def arguments_marker(self) -> str:
        """What stands between a name and its arguments, where text shows it; of Mistral's newer form only."""
        return "" if _ARGS in self.special_tokens else _ARGS

    @property
    def prompt_end(self) -> str:
        """What the prompt of an answer that must be calls ends with: the marker, where it is a special token."""
        if not self.is_hidden:
            return ""
        return self.marker + "\n" if self.family == "hermes" else self.marker

    def prompt_end_named(self, name: str) -> str:
        """The same where the function is known: all that the grammar could not spell."""
        if self.family == "mistral_named" and self.is_hidden:
            return self.marker + name + _ARGS
        return self.prompt_end

    def head(self, name: str) -> str:
        """A call of `name` from where it begins to its arguments."""
        if self.family == "mistral_named":
            return name + self.arguments_marker
        key = "parameters" if self.family == "llama3" else "arguments"
        return f'{{"name": "{name}", "{key}": '

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call of `name`."""
        return self.opening + self.head(name)

    def triggers(self, tools: Iterable[FunctionTool]) -> list[str]:
        """Strings that begin a call wherever they stand in text."""
        if self.family == "llama3":
            return [f'{{"name": "{tool.name}"' for tool in tools]
        return [self.first or self.marker]

    def template_id(self, call_id: str) -> str:
        """The id of a call as chat templates take it: Mistral's refuse any but nine letters and digits."""
        if self.family not in ("mistral", "mistral_named") or re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def tool_format_of(model_info: ModelInfo) -> ToolFormat:
    """The format of a model, by the text of its chat template and its special tokens; Hermes where nothing tells."""
    return _tool_format(model_info.chat_template or "", model_info.special_tokens)


@lru_cache(maxsize=64)
def _tool_format(template: str, special_tokens: tuple[str, ...]) -> ToolFormat:
    specials = frozenset(special_tokens)
    takes_tools = re.search(r"\btools\b", template) is not None
    return ToolFormat(_family(template, specials), specials, takes_tools)


def _family(template: str, specials: frozenset[str]) -> Family:
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template or (not template and "[TOOL_CALLS]" in specials):
        return "mistral_named" if _writes_names(template) or _ARGS in specials else "mistral"
    is_llama = "<|python_tag|>" in specials or "<|python_tag|>" in template
    if is_llama and (not template or '"parameters"' in template or "python_tag" in template):
        return "llama3"
    return "hermes"


def _writes_names(template: str) -> bool:
    """Whether a template of Mistral's writes a name, and not a list, behind the marker."""
    return _ARGS in template or re.search(r"\[TOOL_CALLS\]\s*['\"]?\s*[+~]\s*\w+(\.\w+)*\.name", template) is not None
