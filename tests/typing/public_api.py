"""How users write programs, for mypy: what is right passes, and each ignore marks a mistake that mypy must find."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, assert_type

from pydantic import BaseModel

import palmette as pt


class Summary(BaseModel):
    title: str


@pt.function
def judge(s: pt.ProgramState, essay: str, *, rounds: int = 1) -> str:
    s += pt.system("You grade essays.") + pt.user(essay)
    s += "Grade: " + pt.gen("grade", regex="[1-5]", temperature=0, stop=["\n"], max_tokens=4)
    s += pt.gen_int("number") + pt.gen_string("name", n=2) + pt.gen("summary", json_schema=Summary)
    s += pt.select("side", ["for", "against"], choices_method=pt.greedy_token_selection)
    with s.user():
        s += "block"
    s.assistant(pt.gen())
    with s.var_scope("part"), s.copy() as attempt:
        attempt += "text"
    branches = s.fork(rounds)
    assert_type(branches, pt.ProgramStateGroup)
    branches += lambda place: f"{place}" + pt.gen("x")
    for branch in branches:
        branch += pt.user_begin() + "a" + pt.user_end()
        assert_type(branch, pt.ProgramState)
    branches.join(mode="concat")
    return str(s["grade"])


@pt.tool
def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather."""
    return f"{city} {unit}"


@pt.function
async def agent(s: pt.ProgramState, question: str) -> str:
    s.use_tools(weather)
    s += pt.user(question) + pt.assistant(pt.gen("call", tools=[weather], max_tokens=64))
    call = await s.get("call")
    s += pt.tool_result(await call.arun())
    s += pt.template("{call} {rest}", call=s.ref("call"), rest=pt.gen("rest", 16, stop_regex=["a+"]))
    await s.ready()
    assert_type(await s.fork(2).map(count, ["a", "b"]), list[int])
    return str(s["rest"])


async def count(branch: pt.ProgramState, text: str) -> int:
    return len(text)


def length(branch: pt.ProgramState) -> int:
    return len(branch.text())


@pt.function
def everything(s: pt.ProgramState) -> None:
    s += pt.gen("a", 3, type=list[int]) + pt.gen("b", dtype="float") + pt.gen("c", ebnf='root ::= "a"')
    s += pt.gen("d", type=Summary | None, separate_reasoning=True) + pt.gen(
        "e", return_logprob=True, top_logprobs_num=2
    )
    s += pt.separate_reasoning(pt.gen("f", n=2), model_type="qwen3") + pt.gen("g", structural_tag={"format": {}})
    assert_type(s.fork(2).map(length), list[int])
    assert_type(s.ref("a", separator=", "), pt.Expr)
    s.fork(2).join("gather_variable")
    s.set_var("x", 1)
    assert_type(s.get_var("x"), Any)
    s.sync()


@pt.function(temperature=0, max_tokens=8)
def short(s: pt.ProgramState) -> int:
    s += pt.gen("x")
    return 1


def run(backend: pt.Backend, plain: pt.Function) -> None:
    state = judge.run("text", rounds=2, backend=backend)
    assert_type(state, pt.ProgramState)
    assert_type(state.trace(), pt.RunTrace)
    assert_type(state.trace().nodes[0], pt.TracedNode)
    state.trace().save("run.html")
    state.tree.show()
    assert_type(judge("text", rounds=2), pt.ProgramState)
    assert_type(short(), pt.ProgramState)
    assert_type(judge.run_batch([{"essay": "a"}, ("b",), ["c"]], progress_bar=True), list[pt.ProgramState])
    lazily = judge.run_batch([("b",)], generator_style=True, temperature=0, timeout_s=3.0)
    assert_type(lazily, Generator[pt.ProgramState, None, None])
    ended = judge.run_batch([("b",)], as_finished=True, results_file="out.jsonl")
    assert_type(ended, Generator[pt.ProgramState, None, None])
    assert_type(judge.run_batch([("b",)], results_file=Path("out.jsonl"), resume=True), list[pt.ProgramState])
    assert_type(lazily.__next__().place, int | None)
    assert_type(judge.run("text", temperature=0, timeout_s=1.5), pt.ProgramState)
    assert_type(state.text_iter("grade", answer=1), Iterator[str])
    assert_type(state.value_iter("summary"), Iterator[Any])
    assert_type(weather("Rome"), str)
    assert_type(pt.flush_cache(backend), int)
    assert_type(judge.stream("text", backend=backend), pt.ProgramState)
    assert_type(judge.bind(rounds=3).run("text"), pt.ProgramState)
    assert_type(state.text(), str)
    assert_type(state.messages(), list[dict[str, str]])
    assert_type(state.text_iter("grade"), Iterator[str])
    assert_type(state.text_async_iter(), AsyncIterator[str])
    assert_type(state.tree, pt.TreeView)
    assert_type(state.error(), BaseException | None)
    assert_type(state["grade"], Any)
    plain.run(anything=1)
    pt.set_default_backend(pt.MockBackend({"a": "b"}))


def scripts(mapping: Mapping[str, str]) -> list[pt.Backend]:
    return [
        pt.MockBackend(),
        pt.MockBackend(["a"], latency_s=0.1),
        pt.MockBackend(mapping),
        pt.MockBackend(lambda prompt, node: prompt),
    ]


def mistakes(s: pt.ProgramState) -> None:
    judge(3)  # type: ignore[arg-type]
    judge("text", round=2)  # type: ignore[call-arg]
    short("text")  # type: ignore[call-arg]
    s += None  # type: ignore[arg-type]
    pt.gen("x", temperature="hot")  # type: ignore[arg-type]
    pt.gen("x", temprature=3)  # type: ignore[call-arg]
    pt.gen("x", "32")  # type: ignore[arg-type]
    s += s.user("x")  # type: ignore[arg-type]
    weather(3)  # type: ignore[arg-type]
    s.use_tools(print)  # type: ignore[arg-type]
    judge.run_batch([("b",)], temperature="hot")  # type: ignore[call-overload]
    pt.select("x", ["a"], choices_method="best")  # type: ignore[arg-type]
    s.fork(2).join(mode="sum")  # type: ignore[arg-type]
