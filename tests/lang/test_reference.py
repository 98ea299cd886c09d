"""Values that are not known yet, as parts of a prompt."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from tests.lang.recording import Gate

import palmette as pt
from palmette.runtime.program import Reference


def test_a_reference_does_not_wait() -> None:
    """What refers to an answer goes to the backend in the same message as the answer's own node."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Draft: " + pt.gen("draft")
        (critic,) = s.fork(1)
        critic += " Again: " + s.ref("draft") + "! " + pt.gen("verdict")

    backend = pt.MockBackend(["a fox", "good"])
    program.run(backend=backend)
    assert len(backend.messages) == 1
    assert backend.calls[1].prompt == "Draft: a fox Again: a fox! "


def test_every_kind_of_variable_can_be_referred_to() -> None:
    """Text, choices, strings without their quotes, numbers, scopes, own values and earlier references."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        with s.var_scope("scope"):
            s += "<" + pt.gen("text") + ">"
        s += pt.select("pick", ["x", "y"]) + pt.gen_string("name") + pt.gen_int("number")
        s["own"] = 3
        with s.var_scope("again"):
            s += "[" + s.ref("text") + "]"
        for name in ("text", "pick", "name", "number", "own", "scope", "again"):
            s += "|" + s.ref(name)

    state = program.run(backend=pt.MockBackend(["T", "y", '"N \\"q\\""', "7"]))
    assert state.text().partition("|")[2] == 'T|y|N "q"|7|3|<T>|[T]'
    assert state["again"] == "[T]"
    assert any(isinstance(record.node, Reference) for record in state._execution.tree.records)


def test_a_reference_to_another_branch_and_to_several_values() -> None:
    """A branch may refer to its sibling's answer; gathered values need a separator."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        forks = s.fork(2)
        forks += pt.gen("x")
        forks[1] += " and " + forks[0].ref("x")
        forks.join()
        s += pt.gen("n", n=2)
        with pytest.raises(pt.ProgramError, match=r's.ref\("x"\) has several values.*separator'):
            s += s.ref("x")
        with pytest.raises(pt.ProgramError, match="has several values"):
            s += s.ref("n")
        s += "; " + s.ref("x", separator=", ") + "; " + s.ref("n", separator="/")
        assert forks[1].text() == "b and a"

    state = program.run(backend=pt.MockBackend(["a", "b", "c", "d"]))
    assert state.text() == "c; a, b; c/d"


def test_a_reference_to_reasoning_waits_for_it() -> None:
    """The part of an answer that the runtime cannot cut out is read by the program."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x", separate_reasoning=True)
        s += "|" + s.ref("x") + "|" + s.ref("x_reasoning_content")

    assert program.run(backend=pt.MockBackend(["<think>r</think>a"])).text().endswith("|a|r")


def test_a_failed_answer_fails_what_refers_to_it() -> None:
    """The reader of a later value gets the original error, and siblings go on."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        one, two = s.fork(2)
        one += pt.gen("bad", regex="[0-9]")
        two += "then " + one.ref("bad") + pt.gen("after")
        s += pt.gen("good")
        with pytest.raises(pt.NodeFailedError, match="breaks the regex") as failure:
            two["after"]
        assert isinstance(failure.value.__cause__, pt.GrammarError)
        with pytest.raises(pt.NodeFailedError):
            two.text()

    state = program.run(backend=pt.MockBackend({"^$": "x"}))
    assert state["good"] == "x"


def test_references_that_cannot_be() -> None:
    """An unknown name, another run's reference and an f-string are errors that say what to do."""
    kept: list[pt.Expr] = []

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("draft")
        with pytest.raises(KeyError, match='did you mean "draft"'):
            s.ref("daft")
        with pytest.raises(TypeError, match=r"pt\.template"):
            f"{s.ref('draft')}"
        kept.append(s.ref("draft"))
        if len(kept) > 1:
            with pytest.raises(pt.ProgramError, match="belongs to another run"):
                s += kept[0]

    program.run(backend=pt.MockBackend(["a"]))
    program.run(backend=pt.MockBackend(["a"]))


def test_a_reference_follows_an_answer_that_is_still_to_come() -> None:
    """The text of what refers to an answer is streamed once the answer is there."""
    gate = Gate("late")

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        s += " twice " + s.ref("x")

    state = program.stream(backend=pt.MockBackend(gate))
    gate.let_go()
    assert "".join(state.text_iter()) == "late twice late"


# -- templates -------------------------------------------------------------------------------------------------------


def test_a_template_formats_values_and_takes_expressions() -> None:
    """Fields by place and name, format specs and attributes of plain values, and expressions wherever they stand."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.gen("x")
        s += pt.template("{} {{}} {:>3} {word!r} {pair[1]} {x}", 7, 8, word="w", pair=(1, 2), x=s.ref("x"))

    assert program.run(backend=pt.MockBackend(["X"])).text() == "X7 {}   8 'w' 2 X"


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("{x}", {}, r"a field \{x\}, which was not given"),
        ("a", {"x": 1}, "was given 'x', but its text has no such field"),
        ("{x:>3}", {"x": pt.gen("y")}, r"\{x:>3\} is an expression.*write \{x\}"),
        ("{x!r}", {"x": pt.gen("y")}, r"\{x!r\} is an expression"),
        ("{} {0}", {}, r"so \{0\} cannot follow"),
        (3, {}, "takes a string, not int: 3"),
    ],
)
def test_templates_that_cannot_be(text: str, fields: dict[str, object], message: str) -> None:
    """A field without a value, a value without a field, and formatting what is not known yet are refused."""
    with pytest.raises(TypeError, match=message):
        pt.template(text, *(["a"] if "{}" in str(text) else []), **fields)


def test_a_reference_of_a_longer_run_is_refused() -> None:
    """A reference to a node that this run does not have is named as another run's."""

    @pt.function
    def long(s: pt.ProgramState) -> None:
        s += "a" + pt.gen("x") + "b" + pt.gen("y")

    @pt.function
    def borrow(s: pt.ProgramState, expr: pt.Expr) -> None:
        s += expr

    backend = pt.MockBackend({"": "z"})
    with pytest.raises(pt.ProgramError, match=r's.ref\("y"\) belongs to another run'):
        borrow.run(long.run(backend=backend).ref("y"), backend=backend)


def test_a_reference_to_any_type_of_str_has_no_quotes() -> None:
    """A str with constraints is referred to by what its quotes hold, as a plain one is."""
    short = Annotated[str, msgspec.Meta(max_length=9)]

    @pt.function
    def twice(s: pt.ProgramState) -> None:
        s += pt.gen("x", type=short)
        s += " " + s.ref("x")

    state = twice.run(backend=pt.MockBackend(['"ab"']))
    assert state.error() is None
    assert state.text() == '"ab" ab'
