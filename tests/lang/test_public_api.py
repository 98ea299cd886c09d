"""The public surface: its list, and that a type checker reads it as users do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import palmette as pt
from palmette.lang.errors import error_named

REPOSITORY = Path(__file__).parents[2]

NAMES = [
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


def test_the_list_of_public_names() -> None:
    """`__all__` is this list, sorted, and every name of it can be had."""
    assert sorted(NAMES) == pt.__all__
    assert set(pt.__all__) <= set(dir(pt))
    for name in pt.__all__:
        assert getattr(pt, name) is not None


def test_unknown_names_are_attribute_errors() -> None:
    """A name that is not public is an ordinary AttributeError."""
    with pytest.raises(AttributeError, match="has no attribute 'gne'"):
        pt.gne  # noqa: B018


def test_packages_are_attributes() -> None:
    """`pt.runtime` is the package, without importing it first."""
    code = "import sys, palmette as pt; print(pt.runtime.__name__, pt.constrained.__name__, 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["palmette.runtime", "palmette.constrained", "False"]


@pytest.mark.parametrize("kind", ["RequestError", "GrammarError", "UnsupportedGrammarError", "RequestAbortedError"])
def test_errors_are_found_by_name(kind: str) -> None:
    """An error that crossed the wire comes back as its own class."""
    assert type(error_named(kind, "why")).__name__ == kind


def test_every_error_is_one_of_palmette_s() -> None:
    """All public errors share the root; mistakes are ValueErrors and unknown names KeyErrors as well."""
    errors = [getattr(pt, name) for name in NAMES if name.endswith("Error")]
    assert all(issubclass(error, pt.PalmetteError) for error in errors)
    assert issubclass(pt.UnknownVariableError, KeyError)
    assert issubclass(pt.RequestError, ValueError)


def test_the_surface_type_checks() -> None:
    """mypy --strict reads tests/typing/public_api.py as it says there, wrong uses included."""
    command = [sys.executable, "-m", "mypy", "--strict", "tests/typing/public_api.py"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
