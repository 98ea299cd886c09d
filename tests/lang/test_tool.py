"""Typed functions as tools that a model calls."""

from __future__ import annotations

import asyncio
import enum
import functools
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from tests.constrained.reference import BYTES, accepts

import palmette as pt
from palmette.constrained import compile_grammar
from palmette.lang.errors import ToolError, UnsupportedTypeError
from palmette.lang.tool import Tool, ToolCall, tool
from palmette.lang.tool_answers import tool_answer, tools_prompt

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


class Shop:
    """A shop, some of whose methods are tools."""

    def __init__(self, shelf: dict[str, int]) -> None:
        self._shelf = shelf

    def find(self, item: str, most: int | None = None) -> int:
        """How many there are."""
        return min(self._shelf[item], most or 99)

    async def order(self, item: str) -> str:
        return f"{item} is ordered"


class Greeting:
    """An object that can be called."""

    async def __call__(self, name: str) -> str:
        return f"hello {name}"


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
    answer = tool_answer([weather, buy, now])
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
    answer = tool_answer([weather, buy, now])
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
        (Shop.find, ToolError, r"make the bound one a tool: pt.tool\(thing.method\)"),
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


def search(database: object, query: str, limit: int = 5) -> list[str]:
    """Search."""
    return [f"{database}: {query}"] * limit


def test_methods_partials_and_objects_are_tools() -> None:
    """A bound method has no `self`, a partial none of what it gives already, and a callable object its own call."""
    shop = Shop({"tea": 3})
    find, order = tool(shop.find), tool(shop.order)
    assert (find.signature, find.description) == ("find(item: str, most: int | None = None)", "How many there are.")
    assert (ToolCall(find, {"item": "tea", "most": 2}).run(), find("tea")) == (2, 3)
    assert ToolCall(order, {"item": "tea"}).run() == "tea is ordered"
    for given in (functools.partial(search, database="web"), functools.partial(search, "web")):
        found = untyped(given)
        assert (found.signature, found.description) == ("search(query: str, limit: int = 5)", "Search.")
        assert ToolCall(found, {"query": "x", "limit": 1}).run() == ["web: x"]
    greeting = tool(Greeting())
    assert (greeting.name, greeting.is_async) == ("Greeting", True)
    assert ToolCall(greeting, {"name": "Ada"}).run() == "hello Ada"


TEXTS = ["It is noon.", " At 12 {sharp}.", "<b>noon</b>", "\nnoon [1]"]
NOON = '{"name": "now", "arguments": {}}'
TAGGED = f"<tool_call>\n{NOON}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "one", "several"),
    [
        (NOON, ToolCall(now, {}), [ToolCall(now, {})]),
        (TAGGED, ToolCall(now, {}), [ToolCall(now, {})]),
        (f"[{NOON}, {NOON}]", None, [ToolCall(now, {})] * 2),
        (f"{TAGGED}\n{TAGGED}", None, [ToolCall(now, {})] * 2),
        *((text, text, text) for text in TEXTS),
        *(
            (text, None, None)
            for text in ("", '{"name": "later"}', "{", f" {NOON}", f"Yes. {TAGGED}", "[]", "<tool_call>")
        ),
    ],
)
def test_a_model_may_answer_in_words(text: str, one: Any, several: Any) -> None:
    """What begins as a call is a whole one; anything else is text. Lists are calls where several are allowed."""
    for parallel, expected in ((False, one), (True, several)):
        answer = tool_answer([now, weather], "auto", parallel=parallel)
        assert accepts(compile_grammar(answer.grammar, BYTES), text) == (expected is not None)
        if expected is not None:
            assert answer.read(text) == expected


def test_several_calls_in_one_answer() -> None:
    """Without a choice an answer is a list of at least one call, and of no more than end."""
    answer = tool_answer([now, buy], parallel=True)
    compiled = compile_grammar(answer.grammar, BYTES)
    order = '{"name": "buy-now", "arguments": {"order": {"item": "tea"}}}'
    assert accepts(compiled, f"[{NOON}, {order}]")
    assert answer.read(f"[{NOON}, {order}]") == [ToolCall(now, {}), ToolCall(buy, {"order": Order(item="tea")})]
    assert [accepts(compiled, text) for text in ("[]", NOON, f"[{', '.join([NOON] * 17)}]")] == [False] * 3


@pt.function
def agent(s: pt.ProgramState, choice: Literal["required", "auto"], parallel: bool = False) -> Any:
    s.use_tools(now, weather)
    step = pt.gen("step", tools=[now, weather], tool_choice=choice, parallel_tool_calls=parallel)
    s += pt.user("What time is it?") + pt.assistant(step)
    return s["step"]


def test_a_program_sees_which_it_was() -> None:
    """The value is a call, a list of calls or a str, also while it streams."""
    assert agent.run("auto", backend=pt.MockBackend([NOON])).ret_value == ToolCall(now, {})
    assert agent.run("auto", backend=pt.MockBackend(["Noon."])).ret_value == "Noon."
    assert agent.run("required", parallel=True, backend=pt.MockBackend([f"[{NOON}]"])).ret_value == [ToolCall(now, {})]
    state = agent.stream("auto", backend=pt.MockBackend(["Noon."], piece_length=2))
    assert list(state.value_iter("step")) == ["Noon."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "auto"}, "go with tools="),
        ({"parallel_tool_calls": True}, "go with tools="),
        ({"tools": [now], "tool_choice": "any"}, "tool_choice must be one of required, auto, not 'any'"),
        ({"tools": [now], "tool_choice": "none"}, "without tools=.* none is called"),
        ({"tools": len}, "functions decorated with @pt.tool, not <built-in function len>"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    """They are named where they are written."""
    with pytest.raises(pt.RequestError, match=message):
        pt.gen("x", **options)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1.5, Unit.CELSIUS]}, '{"a":[1.5,"c"]}'),
        ([Order(item="tea"), City("Rome")], '[{"item":"tea","count":1},{"name":"Rome","country":"France"}]'),
        (LookupError("no such city"), "Error: LookupError: no such city"),
        (TimeoutError(), "Error: TimeoutError"),
    ],
)
def test_results_of_any_kind(value: Any, text: str) -> None:
    """Text stays, values are JSON, Pydantic models inside too; an exception says what went wrong."""

    @pt.function
    def told(s: pt.ProgramState) -> None:
        s += pt.tool_result(value)

    assert told.run(backend=pt.MockBackend()).messages()[-1]["content"] == text


def test_results_that_cannot_be_written() -> None:
    """The error says what may be returned."""
    with pytest.raises(TypeError, match="return a str, dict, dataclass or Pydantic model"):
        pt.tool_result([object()])


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


@pt.tool
def halve(even: Even) -> int:
    return even.number // 2


def test_arguments_that_a_model_refuses_can_be_told() -> None:
    """A validator of the user's own fails at the read; the program may give the error to the model and go on."""

    @pt.function
    def program(s: pt.ProgramState) -> int:
        for _ in range(2):
            s += pt.user("Halve.") + pt.assistant(pt.gen("call", tools=halve))
            try:
                result = s["call"].run()
            except pt.ProgramError as error:
                s += pt.tool_result(error)
        return int(result)

    calls = [f'{{"name": "halve", "arguments": {{"even": {{"number": {number}}}}}}}' for number in (3, 8)]
    state = program.run(backend=pt.MockBackend(calls))
    assert state.ret_value == 4
    assert "must be even" in next(said["content"] for said in state.messages() if said["role"] == "tool")


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
        tool_answer(tools)
