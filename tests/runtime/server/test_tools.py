"""Tool calls: the formats of the families, grammars of calls, and the parser of answers that come in pieces."""

from __future__ import annotations

import itertools
import json
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palmette.constrained import matches
from palmette.runtime.engine import Engine
from palmette.runtime.program import Event, Failed, Generate, Generated, ModelInfo, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server.tool_choice import FunctionTool, ToolChoice, ToolError, function_tools, tool_choice
from palmette.runtime.server.tool_formats import Family, ToolFormat, tool_format_of
from palmette.runtime.server.tool_grammar import ToolPlan, tool_grammar, tool_plan
from palmette.runtime.server.tool_messages import system_text, tool_messages
from palmette.runtime.server.tool_parser import CallArguments, CallBegun, ContentText, ToolEvent, new_call_id

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
}
SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 3}},
    "required": ["of"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": -99, "maximum": 99}},
}
GIVEN = [
    {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "sum", "parameters": SUM}},
    {"type": "function", "function": {"name": "now"}},
]
TOOLS = function_tools(GIVEN)
SCHEMAS: dict[str, dict[str, Any]] = {"get_weather": WEATHER, "sum": SUM, "now": {"type": "object", "maxProperties": 0}}

FORMATS = [
    ToolFormat("hermes"),
    ToolFormat("hermes", frozenset({"<tool_call>", "</tool_call>"})),
    ToolFormat("llama3", frozenset({"<|python_tag|>"})),
    ToolFormat("mistral"),
    ToolFormat("mistral", frozenset({"[TOOL_CALLS]"})),
    ToolFormat("mistral_named"),
    ToolFormat("mistral_named", frozenset({"[TOOL_CALLS]", "[ARGS]"})),
]
format_names = [f"{each.family}{'-special' if each.is_hidden else ''}" for each in FORMATS]
each_format = pytest.mark.parametrize("format_", FORMATS, ids=format_names)


class Read:
    """What the joined events of one answer say."""

    def __init__(self, events: Iterable[ToolEvent]) -> None:
        self.content = ""
        self.calls: list[tuple[str, str]] = []
        self.ids: list[str] = []
        for event in events:
            if isinstance(event, ContentText):
                self.content += event.text
            elif isinstance(event, CallBegun):
                assert event.index == len(self.calls)
                self.calls.append((event.name, ""))
                self.ids.append(event.id)
            else:
                name, text = self.calls[event.index]
                assert event.index == len(self.calls) - 1
                self.calls[event.index] = (name, text + event.text)

    @property
    def joined(self) -> tuple[str, list[tuple[str, str]]]:
        return self.content, self.calls


def read(plan: ToolPlan, pieces: Iterable[str]) -> Read:
    parser = plan.parser()
    events = [event for piece in pieces for event in parser.push(piece)]
    return Read([*events, *parser.finish()])


def plan_of(format_: ToolFormat, choice: Any = "auto", *, parallel: bool = True) -> ToolPlan:
    return tool_plan(format_, tool_choice(choice, TOOLS, parallel=parallel))


def free_plan(format_: ToolFormat) -> ToolPlan:
    """A plan whose answer no grammar holds."""
    return ToolPlan(format_, tool_choice("auto", TOOLS))


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def generate(engine: Engine, plan: ToolPlan, *, seed: int, max_tokens: int = 110) -> str:
    """An answer of the tiny model at temperature 1, held to the plan's grammar."""
    event = event_of(engine, plan, seed=seed, max_tokens=max_tokens)
    assert isinstance(event, Generated), event
    return event.completions[0].text


def event_of(engine: Engine, plan: ToolPlan, *, seed: int = 0, max_tokens: int = 110) -> Event:
    import queue

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    session = engine.open(events.put)
    params = SamplingParams(temperature=1, seed=seed, max_tokens=max_tokens)
    session.extend([Text(0, None, "Call a tool." + plan.prompt_end), Generate(1, 0, params, plan.grammar)])
    event = events.get(timeout=120)
    session.close()
    return event


def assert_valid(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "special_tokens", "family"),
    [
        (None, (), "hermes"),
        ("{{ messages }}", ("<|im_end|>",), "hermes"),
        ("{% if tools %}<tool_call>{% endif %}", ("<|im_end|>",), "hermes"),
        ('{% if tools %}{"name": , "parameters": }{% endif %}<|python_tag|>', ("<|python_tag|>",), "llama3"),
        ('{{ "[TOOL_CALLS][" + tools }}', ("[TOOL_CALLS]",), "mistral"),
        ('{{ "[TOOL_CALLS]" + call.function.name + "[ARGS]" }}', ("[TOOL_CALLS]", "[ARGS]"), "mistral_named"),
        ("{{ '[TOOL_CALLS] ' + tool.name }}", (), "mistral_named"),
    ],
)
def test_family(template: str | None, special_tokens: tuple[str, ...], family: Family) -> None:
    """The family is known by what the template writes and by the special tokens; Hermes where nothing tells."""
    info = ModelInfo(name="m", context_length=1, vocab_size=1, chat_template=template, special_tokens=special_tokens)
    assert tool_format_of(info).family == family


def test_special_markers_are_hidden() -> None:
    """A marker that is a special token goes into the prompt, or stops the generation; the grammar never spells it."""
    format_ = ToolFormat("mistral", frozenset({"[TOOL_CALLS]"}))
    required, auto = plan_of(format_, "required"), plan_of(format_)
    assert required.prompt_end == "[TOOL_CALLS]"
    assert required.grammar is not None
    assert "TOOL_CALLS" not in required.grammar.source
    assert (auto.grammar, auto.stop_token) == (None, "[TOOL_CALLS]")
    after = auto.after_stop()
    assert (after.prompt_end, after.grammar) == ("", required.grammar)


def test_named_call_begins_in_the_prompt() -> None:
    """Where neither marker can be spelled, a named call is begun by the prompt and the answer is its arguments."""
    format_ = ToolFormat("mistral_named", frozenset({"[TOOL_CALLS]", "[ARGS]"}))
    plan = plan_of(format_, {"type": "function", "function": {"name": "sum"}})
    assert plan.prompt_end == "[TOOL_CALLS]sum[ARGS]"
    assert read(plan, ['{"of": ', "[1]}"]).joined == ("", [("sum", '{"of": [1]}')])


# -- grammars ---------------------------------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}, "parallel"])
def test_required_calls_are_valid(tiny_engine: Engine, format_: ToolFormat, choice: Any) -> None:
    """Answers of a random model that must call are calls and nothing else, each valid by its tool's schema."""
    plan = plan_of(format_, "required" if choice == "parallel" else choice, parallel=choice == "parallel")
    for seed in range(2):
        text = generate(tiny_engine, plan, seed=seed)
        found = read(plan, [text])
        assert not found.content, text
        assert found.calls, text
        assert_valid(found.calls)
        assert choice == "parallel" or len(found.calls) == 1
        assert read(plan, text).joined == found.joined
        assert not isinstance(choice, dict) or found.calls[0][0] == "get_weather"


@each_format
def test_auto_calls_are_valid(format_: ToolFormat) -> None:
    """With auto any text is allowed, and a call that begins as the format writes it must become a valid one."""
    grammar = plan_of(format_).grammar
    if format_.is_hidden:
        assert grammar is None
        return
    assert grammar is not None
    call = format_.begin("sum") + '{"of": [1, 2]}' + format_.end
    bad = format_.begin("sum") + '{"of": ["x"]}' + format_.end
    whole, bad = (format_.first + each + format_.last for each in (call, bad))
    assert matches(grammar, "Just text, no call: {} [1] <tool>.")
    assert matches(grammar, whole)
    assert matches(grammar, "I look it up.\n" + whole)
    assert not matches(grammar, bad)
    assert not matches(grammar, format_.first + format_.begin("other").removesuffix(" ") if format_.marker else bad)
    assert read(plan_of(format_), ["I look it up.\n" + whole]).joined == ("I look it up.", [("sum", '{"of": [1, 2]}')])


@each_format
def test_one_call_at_most(format_: ToolFormat) -> None:
    """Without parallel calls nothing may follow the first."""
    call = format_.begin("now") + "{}" + format_.end
    two = format_.first + call + format_.separator + call + format_.last
    for parallel in (True, False):
        grammar = tool_grammar(format_, ToolChoice("required", TOOLS, parallel))
        assert grammar is not None
        assert matches(grammar, format_.first + call + format_.last)
        assert matches(grammar, two) == parallel


def test_choices_of_grammar() -> None:
    """No grammar without tools or with none; only allowed tools are in the grammar of the others."""
    format_ = ToolFormat("hermes")
    assert tool_grammar(format_, tool_choice("none", TOOLS)) is None
    assert tool_grammar(format_, tool_choice(None, ())) is None
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    grammar = tool_grammar(format_, tool_choice(allowed, TOOLS))
    assert grammar is not None
    assert "sum" not in grammar.source


def test_undeclared_arguments_are_not_made_up() -> None:
    """A schema that lists its properties and says nothing of others allows no others; one that does keeps its word."""
    tool = FunctionTool("f", "", {"properties": {"a": {}}}, "")
    assert tool.schema == {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    open_tool = FunctionTool("f", "", {"properties": {"a": {}}, "additionalProperties": True}, "")
    assert open_tool.schema["additionalProperties"] is True
    assert "additionalProperties" not in FunctionTool("f", "", {"allOf": [], "properties": {}}, "").schema


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "bad"}])
@each_format
def test_bad_schemas_name_the_tool(tiny_engine: Engine, format_: ToolFormat, choice: Any) -> None:
    """A schema that cannot be compiled is the caller's mistake, told with the tool, its place and the pointer."""
    schema = {"type": "object", "properties": {"x": {"type": "strin"}}}
    bad = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    tools = function_tools([GIVEN[0], bad])
    plan = tool_plan(format_, tool_choice(choice, tools))
    if plan.grammar is None:
        return
    event = event_of(tiny_engine, plan)
    assert isinstance(event, Failed)
    error = plan.error_of(event.message)
    assert error is not None
    assert error.param == "tools[1].function.parameters"
    assert "'bad'" in str(error)
    assert "(at /properties/x/type)" in str(error)
    assert "/format" not in str(error)
    assert plan.error_of("something else") is None or plan.begun is not None


# -- the parser -------------------------------------------------------------------------------------------------------

ARGUMENTS = '{"city": "a \\"}</tool_call>{[\\\\", "unit": "celsius", "n": [{"a": {}}]}'
ANSWERS = [
    (FORMATS[0], f'Hm.\n<tool_call>\n{{"name": "sum", "arguments": {ARGUMENTS}}}\n</tool_call>'),
    (FORMATS[0], '<tool_call>{"arguments": {"of":[1]}, "name": "sum"}</tool_call>\n<tool_call>\n{"name":"now"}\n'),
    (FORMATS[0], "a < b <tool_call> no JSON </tool_call> c"),
    (FORMATS[0], '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call> text'),
    (FORMATS[0], '<tool_call>{"name": "su <tool_call>\n{"name": "now", "arguments": {}}\n</tool_call> ok <tool'),
    (FORMATS[2], '{"name": "sum", "parameters": {"of": [1]}}; {"name": "now", "parameters": {}}'),
    (
        FORMATS[2],
        '  {"type":"function","name":"sum","parameters":"{\\"of\\": [1]}"}\n{"name": "now", "parameters": {}}',
    ),
    (FORMATS[2], '{"answer": {"name": "now"}} and {"name": "no'),
    (FORMATS[2], 'See {"name": "now", "parameters": {}}'),
    (FORMATS[3], '[TOOL_CALLS] [{"name": "sum", "arguments": {"of": [1]}}, {"name": "now", "arguments": {}}] x'),
    (FORMATS[3], "[TOOL_CALLS] [1, 2] [TOOL_CAL"),
    (FORMATS[4], '[{"name": "sum", "arguments": {"of": [1]}},{"name": "now", "arguments": {}}]'),
    (FORMATS[4], '[1, 2] [{"name": "now", "arguments": {}}]'),
    (FORMATS[5], 'Hm. [TOOL_CALLS]sum[ARGS]{"of": [1]}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}'),
    (FORMATS[5], "[TOOL_CALLS]summ{}"),
    (FORMATS[6], 'sum{"of": [1]}now{}'),
    (FORMATS[6], 'summary {"of": [1]}'),
]
EXPECTED: list[tuple[str, list[tuple[str, str]]]] = [
    ("Hm.", [("sum", ARGUMENTS)]),
    ("", [("sum", '{"of":[1]}'), ("now", "{}")]),
    ("a < b <tool_call> no JSON </tool_call> c", []),
    ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call> text', []),
    ('<tool_call>{"name": "su', [("now", "{}")]),
    ("", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ("", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ('{"answer": {"name": "now"}} and {"name": "no', []),
    ("See", [("now", "{}")]),
    ("x", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ("[TOOL_CALLS] [1, 2] [TOOL_CAL", []),
    ("", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ("[1, 2]", [("now", "{}")]),
    ("Hm.", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ("[TOOL_CALLS]summ{}", []),
    ("", [("sum", '{"of": [1]}'), ("now", "{}")]),
    ('summary {"of": [1]}', []),
]


@pytest.mark.parametrize(("answer", "expected"), list(zip(ANSWERS, EXPECTED, strict=True)))
def test_free_answers(answer: tuple[ToolFormat, str], expected: tuple[str, list[tuple[str, str]]]) -> None:
    """Without a grammar whole calls of known functions are found, and everything else is text as it stood."""
    content, calls = read(free_plan(answer[0]), [answer[1]]).joined
    assert calls == expected[1]
    assert content.startswith(expected[0])
    assert calls or content == expected[0]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 200), max_size=12), st.booleans())
@settings(max_examples=400)
def test_any_pieces_give_the_same(answer: tuple[ToolFormat, str], cuts: list[int], is_exact: bool) -> None:
    """However an answer is cut into pieces, the joined events are the same."""
    format_, text = answer
    plan = plan_of(format_) if is_exact else free_plan(format_)
    assert read(plan, pieces_of(text, cuts)).joined == read(plan, [text]).joined
    assert read(plan, text).joined == read(plan, [text]).joined


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", ";", ",", "\n", " ", '"', "\\"),
    *('{"name": "sum", "arguments": ', '{"name": "now", "parameters": {}}', '{"of": [1]}', "sum", "now", "text", "{}"),
]


@given(
    st.sampled_from(FORMATS),
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.lists(st.integers(0, 300), max_size=8),
    st.sampled_from(["free", "auto", "required"]),
)
@example(FORMATS[2], '{"name": "now", "parameters": {}}{"name": "now"', [3], "auto")
@settings(max_examples=1500)
def test_any_text_is_read(format_: ToolFormat, text: str, cuts: list[int], mode: str) -> None:
    """No text at all breaks the parser; pieces do not matter, and whatever is called can be read as JSON."""
    plan = free_plan(format_) if mode == "free" else plan_of(format_, mode)
    whole = read(plan, [text])
    assert read(plan, pieces_of(text, cuts)).joined == whole.joined
    if mode == "free":
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole.calls)
    if not whole.calls:
        assert whole.content == text


def test_no_half_marker_is_shown() -> None:
    """What may become a call is held back until it is known, and nothing else is."""
    parser = plan_of(FORMATS[0]).parser()
    assert parser.push("Look: <tool") == [ContentText("Look:")]
    assert parser.push("box> \n") == [ContentText(" <toolbox>")]
    assert parser.push('<tool_call>\n{"name": "su') == []
    begun = parser.push('m", "arguments": {"of"')
    assert isinstance(begun[0], CallBegun)
    assert begun[1:] == [CallArguments(0, '{"of"')]
    assert parser.push(": [1") == [CallArguments(0, ": [1")]
    assert parser.push("]}}\n</tool") == [CallArguments(0, "]}")]
    assert parser.finish() == []


def test_arguments_come_as_they_are_written() -> None:
    """A call that a grammar holds is streamed: its arguments do not wait for their end."""
    plan = plan_of(FORMATS[2])
    parser = plan.parser()
    events = [event for char in '{"name": "sum", "parameters": {"of": [1' for event in parser.push(char)]
    assert Read(events).calls == [("sum", '{"of": [1')]


@pytest.mark.parametrize("place", range(1, 60, 7))
def test_cut_answers(place: int) -> None:
    """An answer that was cut off before its arguments is text; later, a call with the arguments so far."""
    text = '<tool_call>\n{"name": "sum", "arguments": {"of": [1, 2]}}\n</tool_call>'[:place]
    found = read(plan_of(FORMATS[0]), [text])
    _, arguments, rest = text.partition('"arguments": {')
    if not arguments:
        assert found.content.strip() == text.strip()
    else:
        assert found.calls == [("sum", ("{" + rest)[: len('{"of": [1, 2]}')])]


def test_call_ids() -> None:
    """Ids are call_ and 24 letters or digits, another for each call."""
    ids = {new_call_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(f"call_[{string.ascii_letters}{string.digits}]{{24}}", each) for each in ids)


# -- what callers may get wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "retrieval"}], "tools[0].type"),
        (["f"], "tools[0].type"),
        ([{"type": "function", "function": "f"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "name": "a b"}], "tools[0].name"),
        ([{"type": "function", "name": "a" * 65}], "tools[0].name"),
        ([{"type": "function", "name": "a", "description": 3}], "tools[0].description"),
        ([{"type": "function", "name": "a", "parameters": []}], "tools[0].parameters"),
        ([{"type": "function", "name": "a", "parameters": {"type": "array"}}], "tools[0].parameters"),
        ([{"type": "function", "name": "a"}] * 2, "tools[1]"),
        ([{"type": "function", "name": f"a{index}"} for index in range(129)], "tools"),
    ],
)
def test_bad_tools(tools: list[Any], param: str) -> None:
    """Tools that cannot be used are refused with the part of the request that is wrong."""
    with pytest.raises(ToolError) as caught:
        function_tools(tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("any", "tool_choice"),
        (3, "tool_choice"),
        ({"type": "function", "function": {"name": "nope"}}, "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "allowed_tools", "tools": [], "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": ["now"], "mode": "auto"}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "tools": [{"name": "now"}], "mode": "all"}, "tool_choice.mode"),
        ({"type": "allowed_tools", "allowed_tools": 1}, "tool_choice.allowed_tools"),
    ],
)
def test_bad_choices(choice: Any, param: str) -> None:
    """Choices that cannot be made are refused with the part of the request that is wrong."""
    with pytest.raises(ToolError) as caught:
        tool_choice(choice, TOOLS)
    assert caught.value.param == param


def test_required_needs_tools() -> None:
    """A call cannot be required where there is nothing to call."""
    with pytest.raises(ToolError, match="there are none"):
        tool_choice("required", ())


# -- the prompt's side ------------------------------------------------------------------------------------------------

CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Sum "}, {"type": "text", "text": "1."}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "sum", "arguments": '{"of": [1]}'}},
            {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    {"role": "user", "content": "Thanks."},
]


def test_messages_for_templates() -> None:
    """Arguments become objects, contents text, and results know the function they came from."""
    messages = tool_messages(CONVERSATION, FORMATS[0], TOOLS)
    assert messages[0]["content"] == "Sum 1."
    assert [call["function"]["arguments"] for call in messages[1]["tool_calls"]] == [{"of": [1]}, {}]
    assert [message["name"] for message in messages[2:4]] == ["sum", "now"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert CONVERSATION[1]["content"] is None


def test_messages_for_mistral() -> None:
    """Ids are nine letters or digits, the same for a call and its result."""
    messages = tool_messages(CONVERSATION, FORMATS[4], TOOLS)
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
    assert ids == [message["tool_call_id"] for message in messages[2:4]]


def test_messages_for_llama() -> None:
    """Each message holds one call and is followed by its result."""
    messages = tool_messages(CONVERSATION, FORMATS[2], TOOLS)
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 2, "user"]
    assert [message["name"] for message in messages if message["role"] == "tool"] == ["sum", "now"]


def test_messages_for_templates_without_tools() -> None:
    """Tools go into the system message, calls into the assistant's text, results into one message of the user."""
    messages = tool_messages(CONVERSATION, ToolFormat("hermes", takes_tools=False), TOOLS)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "user"]
    assert messages[0]["content"] == system_text(TOOLS)
    found = read(free_plan(FORMATS[0]), [messages[2]["content"]])
    assert found.joined == ("", [("sum", '{"of": [1]}'), ("now", "{}")])
    assert messages[3]["content"].count("<tool_response>") == 2


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "tool_call_id": "x", "content": ""}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_bad_messages(message: dict[str, Any], param: str) -> None:
    """A result without its call and a call without a name are refused."""
    with pytest.raises(ToolError) as caught:
        tool_messages([message], FORMATS[0])
    assert caught.value.param == param


def test_auto_with_the_engine(tiny_engine: Engine) -> None:
    """Whatever a random model answers under auto, its calls are valid: also when the answer is begun as a call."""
    plan = plan_of(FORMATS[0])
    for seed in range(2):
        assert_valid(read(plan, [generate(tiny_engine, plan, seed=seed, max_tokens=40)]).calls)
