"""The rest of the language on every backend: roles, scopes, options, seeds, choices, reading, and what ends a run.

As in test_conformance.py, answers are compared with what was asked for, not between backends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.five_backends import COUNTING, takes_plain_text, writes_in_any_role

import palmette as pt

TURN = [("system", "Be brief."), ("user", "Hello?")]


def run(backend: pt.Backend, program: pt.Function[..., Any], *arguments: Any, **options: Any) -> pt.ProgramState:
    """A run in which nothing fails."""
    state = program.run(*arguments, backend=backend, **options)
    assert state.error() is None, state.error()
    return state


# -- roles -------------------------------------------------------------------------------------------------------------


@pt.function(max_tokens=4, temperature=0)
def roles_as_expressions(s: pt.ProgramState) -> None:
    s += pt.system("Be brief.") + pt.user("Hello?") + pt.assistant(pt.gen("x"))


@pt.function(max_tokens=4, temperature=0)
def roles_as_methods(s: pt.ProgramState) -> None:
    s.system("Be brief.")
    s.user("Hello?")
    s.assistant(pt.gen("x"))


@pt.function(max_tokens=4, temperature=0)
def roles_as_blocks(s: pt.ProgramState) -> None:
    with s.system():
        s += "Be brief."
    with s.user():
        s += "Hello?"
    with s.assistant():
        s += pt.gen("x")


@pt.function(max_tokens=4, temperature=0)
def roles_as_marks(s: pt.ProgramState) -> None:
    s += pt.system_begin() + "Be brief." + pt.system_end()
    s += pt.user_begin() + "Hello?" + pt.user_end() + pt.assistant_begin() + pt.gen("x") + pt.assistant_end()


def test_roles_in_all_forms_are_the_same(backend: pt.Backend) -> None:
    """Expressions, methods, blocks and marks give the same text, messages and answer."""
    forms = (roles_as_expressions, roles_as_methods, roles_as_blocks, roles_as_marks)
    states = [run(backend, form) for form in forms]
    assert len({state.text() for state in states}) == 1
    for state in states:
        said = [(message["role"], message["content"]) for message in state.messages()]
        assert said == [*TURN, ("assistant", state["x"])]


def test_a_message_of_several_parts(backend: pt.Backend) -> None:
    """Text of the program's and answers make up one message, and each answer goes on from what stands before it."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        s += pt.user("Who?") + pt.assistant(
            "It is " + pt.gen("who") + ", and " + pt.select("how", ["well", "ill"]) + "."
        )

    state = run(backend, program)
    assert state.messages()[-1]["content"] == f"It is {state['who']}, and {state['how']}."


def test_text_beside_messages(backend: pt.Backend) -> None:
    """It is part of the text; a service that takes messages only says that it has no place for it."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        s += "Preface. " + pt.user("Who?") + pt.assistant(pt.gen("who"))

    state = program.run(backend=backend)
    if writes_in_any_role(backend):
        assert state.error() is None
        assert "Preface. " in state.text()
    else:
        assert isinstance(state.error(), pt.NodeFailedError)
        assert "'Preface. ' stands outside of the messages" in str(state.error())


# -- variables ---------------------------------------------------------------------------------------------------------


def test_scopes_and_values_of_the_programs_own(backend: pt.Backend) -> None:
    """A scope's text is a variable; so is a value that the program keeps, which adds no text."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        s += "Draft: "
        with s.var_scope("body"):
            s += "Dear " + pt.gen("who") + "!"
            with s.var_scope("inner"):
                s += pt.gen("more") + " "
        s["note"] = {"kept": len(s["who"])}

    state = run(backend, program)
    assert state["body"] == f"Dear {state['who']}!{state['more']} "
    assert state["inner"] == f"{state['more']} "
    assert state["note"] == {"kept": len(state["who"])}
    assert state.text() == f"Draft: {state['body']}"
    assert state.variable_names() == ("who", "more", "inner", "body", "note")
    assert ("note" in state, "nothing" in state) == (True, False)


def test_arguments_given_in_advance(backend: pt.Backend) -> None:
    """A bound program is one with fewer arguments; the default backend is asked where none is named."""

    @pt.function(max_tokens=3)
    def program(s: pt.ProgramState, one: str, two: str = "two") -> str:
        s += f"{one} {two}" + pt.gen("x")
        return one + two

    assert run(backend, program.bind(one="a", two="b"), two="c").ret_value == "ac"
    before = pt.lang.backend.default_backend()
    pt.set_default_backend(backend)
    try:
        assert program("a").ret_value == "atwo"
    finally:
        pt.set_default_backend(before)


# -- options -----------------------------------------------------------------------------------------------------------


def test_least_and_most_tokens(backend: pt.Backend) -> None:
    """A model's answer keeps both bounds; its end says which ended it."""

    @pt.function(temperature=0)
    def program(s: pt.ProgramState) -> None:
        s += "Once upon" + pt.gen("both", max_tokens=6, min_tokens=6) + pt.gen("most", max_tokens=2, ignore_eos=True)

    state = run(backend, program)
    if isinstance(backend, COUNTING):
        info = state.get_meta_info("both"), state.get_meta_info("most")
        assert [(each["completion_tokens"], each["finish_reason"]) for each in info] == [(6, "length"), (2, "length")]


def test_stop_strings_end_before_they_begin(backend: pt.Backend) -> None:
    """They are no part of the answer, the first of them counts, and the meta info says which it was."""

    @pt.function(temperature=0)
    def program(s: pt.ProgramState) -> None:
        s += "Go: " + pt.gen("x", regex="ab(cd)*cdab|abcdcdab", max_tokens=20)
        s += pt.gen("y", regex="[ab]{4}", stop=["b", "z"], max_tokens=20)

    @pt.function(temperature=0, max_tokens=40)
    def free(s: pt.ProgramState) -> None:
        s += "Go: " + pt.gen("x", stop=[*"abcdefghijklmnopqrstuvwxyz"])

    state = run(backend, free)
    assert not set(state["x"]) & set("abcdefghijklmnopqrstuvwxyz")
    matched = state.get_meta_info("x")["matched"]
    assert isinstance(matched, str | int | None)
    if not isinstance(backend, pt.MockBackend):
        assert len(run(backend, program)["y"]) == 4  # the grammar accepts nothing shorter


def test_a_seed_gives_the_same_answer(backend: pt.Backend) -> None:
    """Whatever runs beside it, in the same run and in another."""

    @pt.function(temperature=1, max_tokens=8)
    def program(s: pt.ProgramState) -> None:
        s += "Once upon a time "
        forks = s.fork(3)
        forks += [pt.gen("x", seed=5), pt.gen("x", seed=5), pt.gen("x", seed=6)]
        forks.join()

    first, second = run(backend, program)["x"], run(backend, program)["x"]
    assert first[0] == first[1]
    assert first == second


@pytest.mark.parametrize(
    "method",
    [pt.token_length_normalized, pt.greedy_token_selection, pt.unconditional_likelihood_normalized],
)
def test_select_by_every_method(backend: pt.Backend, method: Any) -> None:
    """One of the choices is taken, in plain text and in a message, and the likelihoods say why where they are known."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "The sky is " + pt.select("plain", ["blue", "bluish", "green"], choices_method=method)

    @pt.function
    def chat(s: pt.ProgramState) -> None:
        s += pt.user("The sky?") + pt.assistant(pt.select("said", ["blue", "green"], choices_method=method))

    state = run(backend, program)
    info = state.get_meta_info("plain")
    assert state["plain"] == ["blue", "bluish", "green"][info["choice"]]
    if isinstance(backend, COUNTING) and takes_plain_text(backend):
        assert len(info["scores"]) == 3
    said = run(backend, chat)
    assert said["said"] in ("blue", "green")
    if isinstance(backend, pt.OpenAIBackend):
        scored = writes_in_any_role(backend)  # in a conversation the model writes its choice, and nothing is scored
        assert bool(said.get_meta_info("said")["scores"]) == scored


def test_sglangs_typed_calls(backend: pt.Backend) -> None:
    """gen_int reads as a number, gen_string as the text between its quotes."""

    @pt.function(temperature=0)
    def program(s: pt.ProgramState) -> None:
        s += "A number: " + pt.gen_int("number", max_tokens=8) + " a text: " + pt.gen_string("text", max_tokens=40)

    state = run(backend, program)
    assert type(state["number"]) is int
    assert type(state["text"]) is str


def test_several_answers_gathered_and_referred_to(backend: pt.Backend) -> None:
    """n answers are a list, whose texts a reference joins; the branch goes on with the first."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> None:
        s += "Names: " + pt.gen("name", n=2, temperature=1, seed=3)
        (critic,) = s.fork(1)
        critic += " Which? " + s.ref("name", separator=" or ") + pt.gen("best")
        assert f" Which? {' or '.join(s['name'])}" in critic.text()

    state = run(backend, program)
    assert state.text() == f"Names: {state['name'][0]}"
    assert len(state.get_meta_info("name")) == 2


def test_answers_that_may_come_together(backend: pt.Backend) -> None:
    """With num_api_spec_tokens the answers are those that come without it."""

    def card(s: pt.ProgramState) -> None:
        s += "Name:" + pt.gen("a", stop="e") + "\nAge:" + pt.gen("b", stop="e") + "\nJob:" + pt.gen("c", stop="e")

    plain = run(backend, pt.function(temperature=0, max_tokens=24)(card))
    together = run(backend, pt.function(temperature=0, max_tokens=24, num_api_spec_tokens=24)(card))
    assert [together[name] for name in "abc"] == [plain[name] for name in "abc"]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_asynchronous_streams(backend: pt.Backend) -> None:
    """Pieces that are awaited join to the same texts, of one variable and of the whole branch."""

    @pt.function(max_tokens=6)
    def program(s: pt.ProgramState) -> None:
        s += "Go " + pt.gen("x") + " and " + pt.gen("y") + "."

    async def read() -> None:
        state = program.stream(backend=backend)
        pieces = [piece async for piece in state.text_async_iter("y")]
        everything = [piece async for piece in state.text_async_iter()]
        assert "".join(pieces) == await state.get("y")
        assert "".join(everything) == state.text()

    asyncio.run(read())


def test_waiting_for_what_was_appended(backend: pt.Backend) -> None:
    """`sync` in a program and `ready` in an async one wait for all of it; `tree` then has every text."""

    @pt.function(max_tokens=4)
    def program(s: pt.ProgramState) -> int:
        s += "One " + pt.gen("x")
        s.sync()
        return len(s["x"])

    @pt.function(max_tokens=4)
    async def awaited(s: pt.ProgramState) -> int:
        s += "One " + pt.gen("x")
        await s.ready()
        return len(s["x"])

    for state in (run(backend, program), asyncio.run(awaited.run_async(backend=backend))):
        assert state.ret_value == len(state["x"])
        assert "".join(node.text for node in state.tree.nodes) == state.text()


def test_reasoning_without_a_constraint(backend: pt.Backend) -> None:
    """Answer and reasoning are parts of the whole text, whatever the model does."""

    @pt.function(max_tokens=8)
    def program(s: pt.ProgramState) -> None:
        s += pt.user("Hm?") + pt.assistant(pt.separate_reasoning(pt.gen("x"), model_type="qwen3"))

    state = run(backend, program)
    assert state["x"] in state.messages()[-1]["content"]
    assert state["x_reasoning_content"] in state.messages()[-1]["content"]


# -- what ends a run ---------------------------------------------------------------------------------------------------


def test_cancelling_a_task(backend: pt.Backend) -> None:
    """A cancelled asyncio task ends its program, and the backend serves the next one."""

    @pt.function
    async def endless(s: pt.ProgramState) -> None:
        while True:
            s += pt.gen("x", 8, ignore_eos=True)
            await s.get("x")

    async def main() -> None:
        task = asyncio.create_task(endless.run_async(backend=backend))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    run(backend, roles_as_methods)


def test_wrong_arguments_are_errors_at_their_line(backend: pt.Backend) -> None:
    """Nothing is sent: what is appended must be text or an expression, and options must be in their ranges."""

    @pt.function
    def program(s: pt.ProgramState, part: Any) -> None:
        s += part()

    for part, kind, words in (
        (lambda: None, TypeError, "None"),
        (lambda: 3, TypeError, "3"),
        (lambda: pt.gen("x", temperature=-1), pt.RequestError, "temperature"),
        (lambda: pt.gen("x", temprature=1), TypeError, "temperature"),  # type: ignore[call-arg]  # what is tested
        (lambda: pt.select("x", []), ValueError, "choices must be a non-empty list"),
    ):
        with pytest.raises(kind, match=words):
            program.run(part, backend=backend)
