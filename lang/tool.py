"""`pt.tool`: typed Python functions that a model can call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from .annotations import shape_of
from .docstring import docstring_of
from .errors import ToolError
from .shapes import DescribedShape, Member, RecordShape, Schema, document
from .type_hints import hints_of

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of positional arguments",
    inspect.Parameter.VAR_KEYWORD: "takes arguments of any name",
    inspect.Parameter.POSITIONAL_ONLY: "is positional only",
}


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model can call by name, with arguments as JSON. `tool` makes it.

    Calling it calls the function.

    Attributes:
        function: the function itself.
        name: what the model calls it.
        description: what it does, for the model.
        arguments: the shape of its arguments, by name.
        defaults: those arguments that have a default which is JSON.
    """

    function: Callable[P, R]
    name: str
    description: str
    arguments: RecordShape = field(repr=False)
    defaults: Mapping[str, Any] = field(repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)

    @property
    def parameters(self) -> Schema:
        """The JSON Schema of its arguments, descriptions and defaults included."""
        schema = document(self.arguments, bounds_integers=False)
        for name, default in self.defaults.items():
            schema["properties"][name]["default"] = default
        return schema

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as OpenAI's API and chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def spec_json(self) -> str:
        """`spec` as JSON text, always the same for the same tool."""
        return json.dumps(self.spec, ensure_ascii=False)

    @property
    def signature(self) -> str:
        """Its call as one would write it in Python, such as ``search(query: str, limit: int = 5)``."""
        return f"{self.name}({', '.join(map(self._parameter, self.arguments.members))})"

    def _parameter(self, member: Member) -> str:
        typed = f"{member.key}: {member.shape.name}"
        if member.required:
            return typed
        default = self.defaults.get(member.key, ...)
        return f"{typed} = {'...' if default is ... else repr(default)}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote. Nothing runs until `run` or `arun`.

    Attributes:
        tool: the tool to call.
        arguments: Python values of its parameters' types; those that the model left to their defaults are not there.
    """

    tool: Tool[..., Any]
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    def run(self) -> Any:
        """Call the tool, an async one in an event loop of its own, and give its result.

        Raises:
            ToolError: the tool is async and an event loop runs in this thread.
        """
        if not self.tool.is_async:
            return self.tool.function(**self.arguments)
        if _in_event_loop():
            raise ToolError(f"the tool {self.name!r} is async and an event loop is running: write `await call.arun()`")
        return asyncio.run(self.tool.function(**self.arguments))

    async def arun(self) -> Any:
        """Call the tool, one that is not async in a thread of its own, and give its result."""
        if self.tool.is_async:
            return await self.tool.function(**self.arguments)
        return await asyncio.to_thread(self.tool.function, **self.arguments)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Any = None, /, *, name: str | None = None, description: str | None = None) -> Any:
    """Make a typed function, async or not, callable by a model. Use it as ``@tool`` or ``@tool(name=...)``.

    The parameters' types are those of `answer_type`; parameters without a default are required. What a parameter is for
    may be said in the docstring, in the style of Google, NumPy or reST, or as ``Annotated[str, "..."]``.

    Bound methods are tools as well: ``tool(shop.find)``. What a model shall not see is given by `functools.partial`:
    ``tool(partial(find, database=database))``.

    Args:
        name: what the model calls it; the function's name by default. 1 to 64 letters, digits, ``_`` and ``-``.
        description: for the model; by default the first paragraph of the docstring.

    Raises:
        ToolError: a parameter has no type or is no named one, or the name is not allowed.
        UnsupportedTypeError: a parameter's type cannot be written as JSON; the message names it and its place.
    """
    if function is None:
        return functools.partial(tool, name=name, description=description)
    if not callable(function):
        raise ToolError(f"a tool must be a function, not {function!r}")
    source = _source_of(function)
    named = name if name is not None else getattr(source, "__name__", type(source).__name__)
    if not _NAME.fullmatch(named):
        raise ToolError(f"the name of a tool must be 1 to 64 ASCII letters, digits, '_' or '-', not {named!r}")
    doc = docstring_of(source)
    parameters = _parameters_of(function)
    hints = _hints(source, named)
    members = tuple(_member(parameter, hints, doc.parameters, named) for parameter in parameters)
    given = {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
    return Tool(
        function=function,
        name=named,
        description=doc.summary if description is None else description,
        arguments=RecordShape(f"the arguments of {named}", members, dict),
        defaults={
            key: value for key, value in ((key, _as_json(value)) for key, value in given.items()) if value is not ...
        },
    )


def _source_of(function: Any) -> Any:
    """What has the name, the docstring and the annotations of a function, method, partial or callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _parameters_of(function: Any) -> list[inspect.Parameter]:
    """The parameters that the model may give: not those that a partial has given already."""
    given = function.keywords if isinstance(function, functools.partial) else {}
    return [each for each in inspect.signature(function).parameters.values() if each.name not in given]


def _member(
    parameter: inspect.Parameter, hints: Mapping[str, Any], descriptions: Mapping[str, str], tool_name: str
) -> Member:
    place = f"parameter {parameter.name!r} of {tool_name}()"
    if parameter.kind in _REFUSED_KINDS:
        raise ToolError(f"{place} {_REFUSED_KINDS[parameter.kind]}; a tool needs parameters with names and types")
    if parameter.name not in hints:
        method = "; of a method, make the bound one a tool: pt.tool(thing.method)" if parameter.name == "self" else ""
        raise ToolError(f"{place} has no type; annotate it, such as {parameter.name}: str{method}")
    shape = shape_of(hints[parameter.name], place)
    description = descriptions.get(parameter.name)
    if description and not isinstance(shape, DescribedShape):
        shape = DescribedShape(shape.name, shape, description)
    return Member(parameter.name, parameter.name, shape, parameter.default is parameter.empty)


def _hints(function: Any, tool_name: str) -> dict[str, Any]:
    annotated = inspect.unwrap(function)
    if not isinstance(annotated, type) and not hasattr(annotated, "__annotations__"):
        annotated = type(annotated).__call__  # an object that can be called
    try:
        return hints_of(annotated, function)
    except TypeError as error:
        raise ToolError(f"{tool_name}() {error}") from error


def _as_json(default: Any) -> Any:
    """A default as JSON has it; ``...`` where JSON has none."""
    try:
        return json.loads(json.dumps(msgspec.to_builtins(default), allow_nan=False))
    except (TypeError, ValueError):
        return ...


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
