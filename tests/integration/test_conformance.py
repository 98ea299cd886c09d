"""The language means the same on every backend: each test runs on an Engine, and on the other backends there are.

Answers differ, as the engine's come from a random model, so tests compare what was read with what was written: texts,
messages, values and events of one run must agree with each other, and with what a constraint forces.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import re
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel
from tests.five_backends import COUNTING, UNICODE, takes_plain_text, writes_in_any_role

import palmette as pt


@pt.function(max_tokens=12)
def qa(s: pt.ProgramState, questions: list[str]) -> int:
    s += pt.system("Be brief.")
    for place, question in enumerate(questions):
        s += pt.user(question) + pt.assistant(pt.gen(f"answer_{place}"))
    return len(questions)


# -- text, messages, variables -----------------------------------------------------------------------------------------


def test_text_is_what_was_appended(backend: pt.Backend) -> None:
    """The text is constants, template and answers in order; messages are its contents."""
    state = qa.run(["A?", "B?"], backend=backend)
    answers = [state["answer_0"], state["answer_1"]]
    assert [message["content"] for message in state.messages()] == ["Be brief.", "A?", answers[0], "B?", answers[1]]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert state.text().index("A?") < state.text().index("B?")
    assert state.ret_value == 2
    assert state.error() is None


def test_reading_decides_what_comes_next(backend: pt.Backend) -> None:
    """Programs that branch in Python on what they read run as they are written."""

    @pt.function
    def program(s: pt.ProgramState) -> list[str]:
        seen = []
        for _ in range(3):
            s += "Pick: " + pt.gen("pick", regex="[ab]{4}", max_tokens=8) + "\n"
            seen.append(s["pick"])
            if s["pick"].startswith("b"):
                s += "again"
        return seen

    state = program.run(backend=backend)
    assert all(re.fullmatch("[ab]{4}", pick) for pick in state.ret_value)
    assert state.text().count("again") == sum(pick.startswith("b") for pick in state.ret_value)


def test_defaults_and_options(backend: pt.Backend) -> None:
    """Options of function, run and gen are taken in that order, and SGLang's names for them."""

    @pt.function(max_tokens=2, ignore_eos=True)
    def program(s: pt.ProgramState) -> None:
        s += "Once" + pt.gen("function") + pt.gen("gen", 3)

    state = program.run(backend=backend, temperature=0)
    longer = program.run(backend=backend, max_new_tokens=5)
    if isinstance(backend, COUNTING):  # a mock gives whole answers
        counts = [state.get_meta_info(name)["completion_tokens"] for name in ("function", "gen")]
        assert counts == [2, 3]
        assert longer.get_meta_info("function")["completion_tokens"] == 5
    assert set(state.get_meta_info("gen")) >= {"text", "finish_reason", "prompt_tokens", "completion_tokens"}


def test_select_sets_its_variable_and_its_meta_info(backend: pt.Backend) -> None:
    """Both ways to write it give one of the choices, the scores of all, and the text of the choice."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "The sky is " + pt.select("a", ["blue", "green"])
        s += " or " + pt.gen("b", choices=["red", "reddish"], choices_method=pt.greedy_token_selection)

    state = program.run(backend=backend)
    assert state.text() == f"The sky is {state['a']} or {state['b']}"
    assert (state["a"] in ("blue", "green"), state["b"] in ("red", "reddish")) == (True, True)
    assert ["blue", "green"][state.get_meta_info("a")["choice"]] == state["a"]


def test_reading_what_was_never_set(backend: pt.Backend) -> None:
    """A KeyError names what was set, in the program and after it."""
    state = qa.run(["A?"], backend=backend)
    with pytest.raises(KeyError, match='did you mean "answer_0"'):
        state["answer_O"]


# -- values ------------------------------------------------------------------------------------------------------------


class Pet(BaseModel):
    name: Annotated[str, msgspec.Meta(max_length=6)]
    age: Literal[1, 2, 3]


@dataclasses.dataclass
class Point:
    name: Literal["Rex"]
    age: Literal[3]
    tags: list[Literal["a"]] = dataclasses.field(default_factory=list)


class Cat(TypedDict):
    kind: Literal["cat"]
    lives: Literal[9]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("annotation", "allowed"),
    [
        (Point, lambda v: isinstance(v, Point)),
        (Cat, lambda v: v == {"kind": "cat", "lives": 9}),
        (Colour, lambda v: isinstance(v, Colour)),
        (Literal["yes", "no"], lambda v: v in ("yes", "no")),
        (bool, lambda v: isinstance(v, bool)),
        (int, lambda v: type(v) is int),
        (list[Literal[1, 2]], lambda v: isinstance(v, list) and set(v) <= {1, 2}),
        (Cat | None, lambda v: v is None or v["lives"] == 9),
        (Point | Cat, lambda v: isinstance(v, Point | dict)),
    ],
)
def test_types_are_read_as_python_values(backend: pt.Backend, annotation: Any, allowed: Any) -> None:
    """Whatever the model, a typed answer is a value of its type, and its partial values lead to it."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Value: " + pt.gen("x", type=annotation, max_tokens=200, temperature=0.7, seed=3)

    state = program.run(backend=backend)
    assert allowed(state["x"])
    assert list(program.stream(backend=backend).value_iter("x"))[-1] == state["x"]


def test_pydantic_models_and_schemas(backend: pt.Backend) -> None:
    """A model class gives an instance, a schema the JSON text, and either name of the argument takes a class."""
    schema: dict[str, Any] = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"const": 9}}}
    schema |= {"required": ["kind", "lives"], "additionalProperties": False}

    class Small(BaseModel):
        name: Literal["Rex"]
        age: Literal[3]

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("model", type=Small, max_tokens=60) + pt.gen("same", json_schema=Small, max_tokens=60)
        s += pt.gen("text", json_schema=schema, max_tokens=60) + pt.gen(
            "again", json_schema=json.dumps(schema), max_tokens=60
        )

    state = program.run(backend=backend)
    assert state["model"] == state["same"] == Small(name="Rex", age=3)
    assert json.loads(state["text"]) == json.loads(state["again"]) == {"kind": "cat", "lives": 9}


def test_partial_values_grow(backend: pt.Backend) -> None:
    """Objects are seen while they are written: members come one after the other and stay."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("cat", type=Cat, max_tokens=60)

    values = list(program.stream(backend=backend).value_iter("cat"))
    assert values[-1] == {"kind": "cat", "lives": 9}
    assert all(set(value) <= {"kind", "lives"} for value in values)
    assert [len(value) for value in values] == sorted(len(value) for value in values)

    async def collected() -> list[Any]:
        return [value async for value in program.stream(backend=backend).value_async_iter("cat")]

    assert asyncio.run(collected())[-1] == values[-1]


@pt.tool
def add(a: Literal[1], b: Literal[2]) -> int:
    """The sum."""
    return a + b


def test_tools_are_called_with_checked_arguments(backend: pt.Backend) -> None:
    """A call is read as a ToolCall, runs, and its result goes on in the conversation."""

    @pt.function
    def program(s: pt.ProgramState) -> int:
        s.use_tools(add)
        s += pt.user("1 + 2?") + pt.assistant(pt.gen("call", tools=[add], max_tokens=80))
        s += pt.tool_result(s["call"].run()) + pt.assistant(pt.gen("end", max_tokens=4))
        return int(s["call"].run())

    state = program.run(backend=backend)
    assert state.ret_value == 3
    assert [message["role"] for message in state.messages()][-2:] == ["tool", "assistant"]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_model_may_call_tools_or_answer(backend: pt.Backend, parallel: bool) -> None:
    """With a choice the answer is read as what it is: whole calls, or its text."""

    @pt.function
    def program(s: pt.ProgramState) -> Any:
        s.use_tools(add)
        step = pt.gen("step", tools=[add], tool_choice="auto", parallel_tool_calls=parallel, max_tokens=80)
        s += pt.user("1 + 2?") + pt.assistant(step)
        return s["step"]

    state = program.run(backend=backend)
    step, said = state.ret_value, state.messages()[-1]["content"]
    if isinstance(step, str):
        assert step == said
        assert not step.lstrip().startswith("{")
    else:
        calls = step if parallel else [step]
        assert [call.run() for call in calls] == [3] * said.count('"add"')


def test_grammars_of_every_kind(backend: pt.Backend) -> None:
    """A regex, an EBNF grammar, structural tags and dtypes hold the answer."""
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "re", "content": {"type": "regex", "pattern": "d"}, "end": ""},
    }

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("regex", regex="[0-9]{3}", max_tokens=8) + pt.gen("ebnf", ebnf='root ::= "re" "d"?', max_tokens=8)
        s += pt.gen("tag", structural_tag=tag, max_tokens=20) + pt.gen("dtype", dtype="bool", max_tokens=8)

    state = program.run(backend=backend)
    assert re.fullmatch("[0-9]{3}", state["regex"])
    assert state["ebnf"] in ("re", "red")
    assert state["tag"] == "red"
    assert isinstance(state["dtype"], bool)


def test_logprobs_of_answer_and_prompt(backend: pt.Backend) -> None:
    """One entry a token, with texts and the likeliest tokens where they were asked for."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "The tree is" + pt.gen(
            "x", 4, return_logprob=True, top_logprobs_num=2, logprob_start_len=0, return_text_in_logprobs=True
        )

    state = program.run(backend=backend)
    if not takes_plain_text(backend):
        assert "prompt_logprobs: chat completions tell the log-probabilities of their answers only" in str(
            state.error()
        )
        return
    info = state.get_meta_info("x")
    assert len(info["logprobs"]) == info["completion_tokens"]
    assert len(info["prompt_logprobs"]) == info["prompt_tokens"]
    assert info["prompt_logprobs"][0] is None
    for entry in [*info["logprobs"], *info["prompt_logprobs"][1:]]:
        assert entry.logprob <= 0
        assert entry.text is not None
        assert len(entry.top) == 2


# -- streaming ---------------------------------------------------------------------------------------------------------


def test_streams_are_byte_exact(backend: pt.Backend) -> None:
    """CJK, emoji of several code points and accents come whole, piece by piece, to the same bytes."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += f"Say {UNICODE}: " + pt.gen("x", regex=re.escape(UNICODE), max_tokens=200) + " 終"

    state = program.stream(backend=backend)
    pieces = list(state.text_iter("x"))
    assert "".join(pieces).encode() == UNICODE.encode() == state["x"].encode()
    assert "".join(program.stream(backend=backend).text_iter()).encode() == state.text().encode()
    assert not any("�" in piece for piece in pieces)


def test_streams_of_several_answers(backend: pt.Backend) -> None:
    """With n > 1 every answer streams to its own text, and the branch goes on with the first."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Once " + pt.gen("x", n=3, max_tokens=6, temperature=1, seed=1, stop="zz") + "."

    state = program.stream(backend=backend)
    answers = ["".join(state.text_iter("x", answer=place)) for place in range(3)]
    assert answers == state["x"]
    assert "".join(state.text_iter()) == state.text() == f"Once {answers[0]}."
    with pytest.raises(pt.ProgramError, match="3 answer"):
        list(state.text_iter("x", answer=3))


def test_stops_are_never_shown(backend: pt.Backend) -> None:
    """Stop strings and patterns end the text before they begin, in the stream as in the value."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x", regex="aXbXc", stop_regex="X[bc]", max_tokens=20)
        s += pt.gen("y", max_tokens=30, stop_regex=["[a-e]"], ignore_eos=True)

    state = program.stream(backend=backend)
    assert "".join(state.text_iter("y")) == state["y"]
    assert not re.search("[a-e]", state["y"])
    assert state["x"] == "aXbXc"  # the grammar does not accept "a"


def test_reasoning_and_answer_come_apart(backend: pt.Backend) -> None:
    """With a constraint the answer after the tags is of its type, whether the model reasons or not."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("1+2?") + pt.assistant(pt.gen("x", type=Literal[3], separate_reasoning=True, max_tokens=60))

    state = program.stream(backend=backend)
    answer = "".join(state.text_iter("x"))
    assert state["x"] == 3
    assert (answer, "".join(state.text_iter("x_reasoning_content"))) == ("3", state["x_reasoning_content"])


# -- forks -------------------------------------------------------------------------------------------------------------


def test_forks_in_a_role_and_on_no_text(backend: pt.Backend) -> None:
    """Branches inherit the open message; a fork before any text works; nested forks join to nested lists."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        first = s.fork(2)
        first += pt.gen("early", regex="[ab]{4}", max_tokens=8)
        first.join()
        with s.user():
            s += "Shared. "
            inner = s.fork(2)
            for branch in inner:
                branch += "Part: " + pt.gen("part")
                leaves = branch.fork(2)
                leaves += pt.gen("leaf")
                leaves.join()
            inner.join()
            s += "End."

    state = program.run(backend=backend)
    assert len(state["early"]) == 2
    if not writes_in_any_role(backend):
        assert "a chat service writes assistant messages only; put gen() into pt.assistant" in str(state.error())
        return
    assert len(state["part"]) == 2
    assert [len(leaves) for leaves in state["leaf"]] == [2, 2]
    assert state.messages() == [{"role": "user", "content": "Shared. End."}]


def test_concat_and_copies(backend: pt.Backend) -> None:
    """Texts of branches are appended in order; a copy leaves the state as it was."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        s += "List:"
        forks = s.fork(3)
        forks += lambda place: f"\n{place}. " + pt.gen("item")
        forks.join("concate_and_append")
        with s.copy() as attempt:
            attempt += pt.gen("tried")

    state = program.run(backend=backend)
    lines = state.text().split("\n0. ")[1]
    assert lines.index("\n1. ") < lines.index("\n2. ")
    assert state.text().startswith("List:\n0. ")
    assert isinstance(state["tried"], list)


def test_references_and_templates(backend: pt.Backend) -> None:
    """What refers to an answer holds its text, on its own branch and on another one."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Draft: " + pt.gen("draft", regex="[ab]{4}", max_tokens=8)
        one, two = s.fork(2)
        one += " A:" + pt.gen("one", type=str, max_tokens=30, temperature=0)
        two += pt.template(" [{draft}|{other}] ", draft=s.ref("draft"), other=one.ref("one")) + pt.gen("two", 4)
        assert two.text().startswith(f"Draft: {s['draft']} [{s['draft']}|{one['one']}] ")

    program.run(backend=backend)


def test_map_and_async_programs(backend: pt.Backend) -> None:
    """Branches run user code side by side; async programs do the same without threads."""

    def work(branch: pt.ProgramState, aspect: str) -> bool:
        branch += aspect + pt.gen("mark", regex="[0-9]{3}", max_tokens=8)
        return str(branch["mark"]).isdigit()

    @pt.function
    def program(s: pt.ProgramState) -> list[bool]:
        return s.fork(3).map(work, ["a", "b", "c"])

    @pt.function
    async def awaited(s: pt.ProgramState, aspect: str) -> bool:
        s += aspect + pt.gen("mark", regex="[0-9]{3}", max_tokens=8)
        return str(await s.get("mark")).isdigit()

    async def main() -> list[Any]:
        states = await asyncio.gather(*(awaited.run_async(aspect, backend=backend) for aspect in "abcd"))
        return [state.ret_value for state in states]

    assert program.run(backend=backend).ret_value == [True] * 3
    assert asyncio.run(main()) == [True] * 4


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_exceptions_of_user_code(backend: pt.Backend) -> None:
    """What a program raises reaches the caller, its generations end, and the next program runs."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x", 200, ignore_eos=True)
        raise LookupError("my own")

    with pytest.raises(LookupError, match="my own"):
        program.run(backend=backend)
    states = program.run_batch([()] * 3, backend=backend)
    assert [type(state.error()) for state in states] == [LookupError] * 3
    assert qa.run(["A?"], backend=backend).error() is None


def test_a_failed_generation_is_raised_where_it_is_read(backend: pt.Backend) -> None:
    """The read names line and node, with the original as its cause; siblings and later programs go on."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        good, bad = s.fork(2)
        good += pt.gen("x", regex="[ab]{4}", max_tokens=8)
        bad += pt.gen("x", regex="c{40}", max_tokens=3)
        bad += pt.gen("after")
        assert len(good["x"]) == 4
        with pytest.raises(pt.NodeFailedError, match=r'gen\("x"\) at .*test_conformance') as failure:
            bad["after"]
        assert isinstance(failure.value.__cause__, pt.PalmetteError | LookupError)  # a mock's script raises its own

    assert isinstance(program.run(backend=backend).error(), pt.NodeFailedError)


def test_batches_keep_order_and_errors(backend: pt.Backend) -> None:
    """States come in the items' order, from a list and from a generator."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState, place: int) -> int:
        s += f"{place}" + pt.gen("x")
        if place == 2:
            raise ValueError("two")
        return place

    items = [{"place": place} for place in range(5)]
    states = program.run_batch(items, backend=backend, num_threads=2)
    assert [state.ret_value if state.error() is None else "failed" for state in states] == [0, 1, "failed", 3, 4]
    lazily = program.run_batch(iter(items), backend=backend, num_threads=2, generator_style=True)
    assert [state.error() is None for state in lazily] == [True, True, False, True, True]


def test_deadlines_and_cancelling(backend: pt.Backend) -> None:
    """A run that takes too long ends with a TimeoutError; one that is cancelled fails at its next step."""

    @pt.function
    def endless(s: pt.ProgramState) -> None:
        while True:
            s += pt.gen("x", 64, ignore_eos=True)
            s["x"]

    with pytest.raises(TimeoutError, match="timeout_s"):
        endless.run(backend=backend, timeout_s=0.3)
    state = endless.stream(backend=backend)
    next(state.text_iter())
    state.cancel()
    assert isinstance(state.error(), pt.RequestAbortedError)
