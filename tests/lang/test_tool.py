"""Typed functions as tools that a model calls."""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any

import jsonschema
import pydantic
import pytest
from tests.constrained.reference import BYTES, accepts

from palmette.constrained import compile_grammar
from palmette.lang.errors import ToolError, UnsupportedTypeError
from palmette.lang.tool import Tool, ToolCall, tool, tool_call_type, tools_prompt

untyped: Any = tool  # the mistakes under test are ones that a type checker finds, too


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class City:
    name: str
    country: str = "France"


class Order(pydantic.BaseModel):
    item: str
    count: int = 1


@tool
def weather(city: City | str, unit: Unit = Unit.CELSIUS, days: Annotated[int, "days ahead"] = 1) -> str:
    """The weather of a city,
    as it will be.

    It is always fine.

    Args:
        city: where, by name
            or in full.
        unit (Unit): of temperatures: c or f.

    Returns:
        One line.
    """
    return f"{city} {unit.name} {days}"


@tool(name="buy-now", description="Buys.")
async def buy(order: Order) -> int:
    await asyncio.sleep(0)
    return order.count


@tool
def now() -> str:
    return "noon"


def test_a_tool_is_still_the_function() -> None:
    """Calling it calls the function, async ones too."""
    assert weather("Paris", days=2) == "Paris CELSIUS 2"
    assert asyncio.run(buy(Order(item="x", count=3))) == 3
    assert isinstance(weather, Tool)


def test_the_specification_is_made_of_signature_and_docstring() -> None:
    """Name, first paragraph, parameters with their descriptions and defaults: as OpenAI's API takes them."""
    spec = weather.spec
    assert (spec["type"], spec["function"]["name"]) == ("function", "weather")
    assert spec["function"]["description"] == "The weather of a city, as it will be."
    parameters = spec["function"]["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"]["city"] == {
        "anyOf": [{"$ref": "#/$defs/City"}, {"type": "string"}],
        "description": "where, by name or in full.",
    }
    assert parameters["properties"]["unit"] == {
        "enum": ["c", "f"],
        "description": "of temperatures: c or f.",
        "default": "c",
    }
    assert parameters["properties"]["days"] == {"type": "integer", "description": "days ahead", "default": 1}
    jsonschema.Draft202012Validator.check_schema(parameters)
    assert json.loads(weather.spec_json) == spec
    assert (buy.name, buy.description) == ("buy-now", "Buys.")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "weather", "arguments": {"city": "Rome"}}', ToolCall(weather, {"city": "Rome"})),
        (
            '{"name":"weather","arguments":{"city":{"name":"Bonn"},"unit":"f","days":3}}',
            ToolCall(weather, {"city": City("Bonn"), "unit": Unit.FAHRENHEIT, "days": 3}),
        ),
        ('{"name":"buy-now","arguments":{"order":{"item":"tea"}}}', ToolCall(buy, {"order": Order(item="tea")})),
        ('{"name":"now","arguments":{}}', ToolCall(now, {})),
    ],
)
def test_a_call_is_allowed_and_read(text: str, call: ToolCall) -> None:
    """The grammar allows calls of every tool, and arguments become values of the parameters' types."""
    answer = tool_call_type([weather, buy, now])
    assert accepts(compile_grammar(answer.grammar, BYTES), text)
    assert answer.read(text) == call


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"other","arguments":{}}',
        '{"name":"now","arguments":{"x":1}}',
        '{"name":"weather","arguments":{}}',
        '{"name":"buy-now","arguments":{"city":"Rome"}}',
        '{"name":"now"}',
    ],
)
def test_other_calls_are_neither_allowed_nor_read(text: str) -> None:
    """Unknown tools, missing arguments and those of another tool."""
    answer = tool_call_type([weather, buy, now])
    assert not accepts(compile_grammar(answer.grammar, BYTES), text)
    with pytest.raises(ValueError, match=r"^\$"):
        answer.read(text)


def test_a_call_runs_its_tool() -> None:
    """`run` and `arun` both take tools of either kind; `run` of an async one inside an event loop is an error."""
    order, report = ToolCall(buy, {"order": Order(item="x", count=2)}), ToolCall(weather, {"city": "Rome"})
    assert (order.run(), report.run()) == (2, "Rome CELSIUS 1")
    assert str(report) == "weather(city='Rome')"

    async def inside() -> tuple[int, str]:
        with pytest.raises(ToolError, match=r"write `await call.arun\(\)`"):
            order.run()
        return await order.arun(), await report.arun()

    assert asyncio.run(inside()) == (2, "Rome CELSIUS 1")


def test_the_prompt_names_every_tool() -> None:
    """Signature, description, schema, and how a call is written."""
    text = tools_prompt([weather, now])
    assert "weather(city: City | str, unit: Unit = 'c', days: int = 1)\n    The weather of a city, as" in text
    assert "\n\nnow()\n    Schema of the arguments: {" in text
    assert text.endswith('"arguments": {...}}')


def bad_args(*args: int) -> None: ...
def bad_kwargs(**kwargs: int) -> None: ...
def bad_positional(a: int, /) -> None: ...
def bad_untyped(a) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 (the mistake under test)
def bad_type(a: list[complex]) -> None: ...
def bad_name(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 (the mistake under test)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (bad_args, ToolError, r"parameter 'args' of bad_args\(\) takes any number"),
        (bad_kwargs, ToolError, r"parameter 'kwargs' of bad_kwargs\(\) takes arguments of any name"),
        (bad_positional, ToolError, r"parameter 'a' of bad_positional\(\) is positional only"),
        (bad_untyped, ToolError, r"parameter 'a' of bad_untyped\(\) has no type; annotate it, such as a: str"),
        (bad_type, UnsupportedTypeError, r"^parameter 'a' of bad_type\(\): complex is no type"),
        (bad_name, ToolError, r"bad_name\(\) has annotations that cannot be evaluated \(name 'Nowhere'"),
        (lambda: None, ToolError, "letters, digits, '_' or '-', not '<lambda>'"),
        (3, ToolError, "a tool must be a function, not 3"),
    ],
)
def test_functions_that_cannot_be_tools(function: Any, error: type[Exception], message: str) -> None:
    """The mistake is named where the function is decorated, with the parameter."""
    with pytest.raises(error, match=message):
        untyped(function)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([], "a non-empty list"),
        (None, "a non-empty list"),
        ([len], "<built-in function len> is no tool: decorate"),
        ([now, tool(name="now")(lambda: None)], "these come twice: now"),
    ],
)
def test_tools_that_do_not_go_together(tools: Any, message: str) -> None:
    """An empty list, plain functions and two tools of one name are refused."""
    with pytest.raises(ToolError, match=message):
        tool_call_type(tools)
