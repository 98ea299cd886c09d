"""What a `gen` is held to, from the arguments that say so, and how its text is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palmette.constrained.compiler import check_grammar
from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.runtime.errors import RequestError

from .expr import Reader
from .tool import Tool
from .tool_answers import ToolOffer, tool_answer
from .types import NAMED_TYPES, answer_type

Constraint = tuple[Grammar | None, Reader | None]
"""The grammar of an answer, and what makes a value of its text; None for any text, and for the text itself."""


def constraint(**given: Any) -> Constraint:
    """The one constraint among these arguments of `gen`, those that are None left out.

    Raises:
        RequestError: there are two.
        GrammarError: it is not one, or uses a feature that is refused by name.
        TypeError: a type cannot be written as JSON.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) > 1:
        raise RequestError(f"gen() takes one constraint, not {len(named)}: {', '.join(named)}")
    for name, value in named.items():
        grammar, reader = _READERS[name](value)
        return _legal(grammar), reader
    return None, None


def _of_schema(schema: Any) -> tuple[Grammar, Reader | None]:
    if isinstance(schema, bool | int | float | str | Mapping | Sequence):  # values: a schema, or refused as one
        return Grammar.json_schema(schema), None
    return _of_type(schema)


def _of_type(annotation: Any) -> tuple[Grammar, Reader | None]:
    answer = answer_type(annotation)
    return answer.grammar, answer


def _of_dtype(dtype: Any) -> tuple[Grammar, Reader | None]:
    annotation = NAMED_TYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if annotation not in NAMED_TYPES.values():
        raise RequestError(f"dtype must be int, float, bool or str, not {dtype!r}; type=... takes any other type")
    return _of_type(annotation)


def _of_structural_tag(spec: Any) -> tuple[Grammar, Reader | None]:
    return Grammar.structural_tag(spec), None


def _of_tools(offer: ToolOffer) -> tuple[Grammar, Reader | None]:
    given = (offer.tools,) if isinstance(offer.tools, Tool) else offer.tools
    if not isinstance(given, Sequence) or not given or not all(isinstance(tool, Tool) for tool in given):
        raise RequestError(f"tools must be a non-empty list of functions decorated with @pt.tool, not {offer.tools!r}")
    answer = tool_answer(given, offer.choice, parallel=offer.parallel)
    return answer.grammar, answer


def _of_grammar(grammar: Any) -> tuple[Grammar, Reader | None]:
    if not isinstance(grammar, Grammar):
        raise GrammarError(f"grammar must be a Grammar, such as Grammar.regex(...), not {grammar!r}")
    return grammar, None


_READERS: dict[str, Callable[[Any], tuple[Grammar, Reader | None]]] = {
    "regex": lambda pattern: (Grammar.regex(pattern), None),
    "json_schema": _of_schema,
    "ebnf": lambda source: (Grammar.ebnf(source), None),
    "lark": lambda source: (Grammar.lark(source), None),
    "structural_tag": _of_structural_tag,
    "type": _of_type,
    "dtype": _of_dtype,
    "tools": _of_tools,
    "grammar": _of_grammar,
}


@functools.lru_cache(maxsize=1024)
def _legal(grammar: Grammar) -> Grammar:
    """`grammar` itself, once its front end has read it; the engine compiles it for its vocabulary later."""
    check_grammar(grammar)
    return grammar
