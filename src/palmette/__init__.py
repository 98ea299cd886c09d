"""Palmette: programs of language-model calls, and the runtime that executes them.

Public names are loaded when they are first used, so that ``import palmette`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palmette import constrained, runtime
    from palmette.constrained.errors import GrammarError, PalmetteError
    from palmette.constrained.grammar import Grammar
    from palmette.lang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from palmette.lang.backend import Backend, default_backend, set_default_backend
    from palmette.lang.choices import (
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from palmette.lang.compiled_program import CompiledProgram
    from palmette.lang.errors import (
        ChatTemplateError,
        DeadlineExceededError,
        NoBackendError,
        NodeFailedError,
        ProgramError,
        ResultsFileError,
        ToolError,
        UnknownVariableError,
        UnsupportedTypeError,
    )
    from palmette.lang.expr import Expr
    from palmette.lang.function import Function, function
    from palmette.lang.http_backend import HttpBackend
    from palmette.lang.mock_backend import MockBackend
    from palmette.lang.mock_script import MockCall
    from palmette.lang.openai_backend import OpenAIBackend
    from palmette.lang.openai_usage import OpenAIUsage
    from palmette.lang.reference import template
    from palmette.lang.server_info import flush_cache, get_server_info
    from palmette.lang.state import ProgramState
    from palmette.lang.state_group import ProgramStateGroup
    from palmette.lang.tool import Tool, ToolCall, tool
    from palmette.lang.tool_answers import tools_prompt
    from palmette.lang.tool_result import tool_result
    from palmette.lang.trace import RunTrace, TracedNode
    from palmette.lang.tree_view import TreeNode, TreeView
    from palmette.runtime.errors import EngineError, ModelLoadError, RequestAbortedError, RequestError
    from palmette.runtime.sampling_params import SamplingParams

    __version__: str

_HOMES = {
    "palmette.constrained.errors": ("GrammarError", "PalmetteError"),
    "palmette.constrained.grammar": ("Grammar",),
    "palmette.lang.api": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "gen_int",
        "gen_string",
        "select",
        "separate_reasoning",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "palmette.lang.backend": ("Backend", "default_backend", "set_default_backend"),
    "palmette.lang.choices": (
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ),
    "palmette.lang.compiled_program": ("CompiledProgram",),
    "palmette.lang.errors": (
        "ChatTemplateError",
        "DeadlineExceededError",
        "NoBackendError",
        "NodeFailedError",
        "ProgramError",
        "ResultsFileError",
        "ToolError",
        "UnknownVariableError",
        "UnsupportedTypeError",
    ),
    "palmette.lang.expr": ("Expr",),
    "palmette.lang.function": ("Function", "function"),
    "palmette.lang.http_backend": ("HttpBackend",),
    "palmette.lang.mock_backend": ("MockBackend",),
    "palmette.lang.mock_script": ("MockCall",),
    "palmette.lang.openai_backend": ("OpenAIBackend",),
    "palmette.lang.openai_usage": ("OpenAIUsage",),
    "palmette.lang.reference": ("template",),
    "palmette.lang.server_info": ("flush_cache", "get_server_info"),
    "palmette.lang.state": ("ProgramState",),
    "palmette.lang.state_group": ("ProgramStateGroup",),
    "palmette.lang.tool": ("Tool", "ToolCall", "tool"),
    "palmette.lang.tool_answers": ("tools_prompt",),
    "palmette.lang.tool_result": ("tool_result",),
    "palmette.lang.trace": ("RunTrace", "TracedNode"),
    "palmette.lang.tree_view": ("TreeNode", "TreeView"),
    "palmette.runtime.errors": ("EngineError", "ModelLoadError", "RequestAbortedError", "RequestError"),
    "palmette.runtime.sampling_params": ("SamplingParams",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("constrained", "runtime")

__all__ = [
    "Backend",
    "ChatTemplateError",
    "CompiledProgram",
    "DeadlineExceededError",
    "EngineError",
    "Expr",
    "Function",
    "Grammar",
    "GrammarError",
    "HttpBackend",
    "MockBackend",
    "MockCall",
    "ModelLoadError",
    "NoBackendError",
    "NodeFailedError",
    "OpenAIBackend",
    "OpenAIUsage",
    "PalmetteError",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "RequestAbortedError",
    "RequestError",
    "ResultsFileError",
    "RunTrace",
    "SamplingParams",
    "Tool",
    "ToolCall",
    "ToolError",
    "TracedNode",
    "TreeNode",
    "TreeView",
    "UnknownVariableError",
    "UnsupportedTypeError",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "constrained",
    "default_backend",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "runtime",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "template",
    "token_length_normalized",
    "tool",
    "tool_result",
    "tools_prompt",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _PACKAGES:
        value = importlib.import_module(f"palmette.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("palmette")
    else:
        raise AttributeError(f"module 'palmette' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
