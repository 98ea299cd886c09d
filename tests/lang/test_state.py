"""A program's state: variables, messages, scopes, forks and joins."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lang.test_chat_template import SMOLLM2

import palmette as pt
from palmette.lang.expr import GenExpr
from palmette.lang.types import answer_type


def ran(program: Any, answers: Any = (), **options: Any) -> pt.ProgramState:
    """The state of a function that takes only its state, run on a mock."""
    state = pt.function(program).run(backend=pt.MockBackend(answers, **options))
    state._execution.tree.check_invariants()
    assert isinstance(state, pt.ProgramState)
    return state


@pytest.mark.parametrize("value", [None, 3, 2.5, b"a", ["a"]])
def test_appending_anything_else_raises_at_that_line(value: Any) -> None:
    """s += None and the like raise a TypeError that says what is allowed."""

    def program(s: pt.ProgramState) -> None:
        with pytest.raises(TypeError, match="`s \\+=` takes a string or an expression"):
            s += value

    ran(program)


# -- variables -------------------------------------------------------------------------------------------------------


def test_reading_variables() -> None:
    """Text, integers, strings and choices are read as such; `in` tells what was set."""

    def program(s: pt.ProgramState) -> str:
        s += "A" + pt.gen("text") + pt.gen_int("number") + pt.gen_string("name") + pt.select("pick", ["x", "y"])
        assert "text" in s
        assert "other" not in s
        assert s.variable_names() == ("text", "number", "name", "pick")
        return str(s["text"] + s["pick"])

    state = ran(program, ["é", "-12", '"a \\"b\\" \\n"', "y"])
    assert state.ret_value == "éy"
    assert (state["number"], state["name"]) == (-12, 'a "b" \n')
    assert state.text() == 'Aé-12"a \\"b\\" \\n"y'


def test_an_unknown_variable_is_a_key_error_with_a_hint() -> None:
    """Reading what was never set names what was, and the nearest of them."""

    def program(s: pt.ProgramState) -> None:
        s += pt.gen("summary") + pt.gen("grade")
        for read in (s.__getitem__, s.get_meta_info, lambda name: list(s.text_iter(name))):
            with pytest.raises(KeyError, match=r's\["sumary"\].*summary, grade; did you mean "summary"'):
                read("sumary")

    state = ran(program, ["a", "b"])
    with pytest.raises(pt.ProgramError, match="did you mean"):
        state["sumary"]
    with pytest.raises(TypeError, match="name must be a non-empty string"):
        state[0]  # type: ignore[index]  # the mistake under test
    with pytest.raises(KeyError, match=r's\["x"\] was never set; no variable is set$'):
        ran(lambda s: None, [])["x"]


def test_several_answers_are_a_list() -> None:
    """With n > 1 the variable and its meta info are lists, and the text goes on with the first answer."""

    def program(s: pt.ProgramState) -> None:
        s += "A" + pt.gen("x", n=3) + "B" + pt.gen_int("i", n=2)

    state = ran(program, ["1", "2", "3", "4", "5"])
    assert state["x"] == ["1", "2", "3"]
    assert state["i"] == [4, 5]
    assert state.text() == "A1B4"
    assert [info["text"] for info in state.get_meta_info("x")] == ["1", "2", "3"]
    assert "".join(state.text_iter("x")) == "1"


def test_meta_info() -> None:
    """A gen tells how it ended and what it cost, a select its choice."""

    def program(s: pt.ProgramState) -> None:
        s += "A B" + pt.gen("x", stop="!") + pt.select("y", ["p", "q"])
        s["own"] = 3

    state = ran(program, ["C D!E", "q"])
    info = state.get_meta_info("x")
    assert (info["finish_reason"], info["matched"], info["completion_tokens"]) == ("stop", "!", 2)
    assert state.get_meta_info("y")["choice"] == 1
    assert (state["own"], state.get_meta_info("own")) == (3, {})


def test_a_value_that_was_cut_off_says_so() -> None:
    """An answer that is no value of its type cannot be read, and the error says what it should be."""
    answer = pt.gen("x")
    assert isinstance(answer, GenExpr)
    unchecked = dataclasses.replace(answer, reader=answer_type(str))

    def program(s: pt.ProgramState) -> None:
        s += unchecked

    with pytest.raises(pt.ProgramError, match=r"should be str, but is '\"a'"):
        ran(program, ['"a'])["x"]


def test_var_scope_captures_text() -> None:
    """The text of a scope, generations and template text in it, becomes a variable; scopes nest."""

    def program(s: pt.ProgramState) -> None:
        s += "before "
        with s.var_scope("all"):
            s += "a"
            with s.var_scope("inner"):
                s += pt.gen("x") + "b"
            s += "c"
        s += " after"

    state = ran(program, ["1"])
    assert (state["all"], state["inner"]) == ("a1bc", "1b")
    assert list(state.text_iter("all")) == ["a", "1", "b", "c"]


# -- messages --------------------------------------------------------------------------------------------------------


def test_roles_can_be_written_in_four_ways() -> None:
    """Calls, the state's calls, blocks and begin/end give the same text and the same messages."""

    def calls(s: pt.ProgramState) -> None:
        s += pt.system("S") + pt.user("U" + pt.gen("x"))

    def state_calls(s: pt.ProgramState) -> None:
        s.system("S")
        s.user("U" + pt.gen("x"))

    def blocks(s: pt.ProgramState) -> None:
        with s.system():
            s += "S"
        with s.user():
            s += "U"
            s += pt.gen("x")

    def begin_and_end(s: pt.ProgramState) -> None:
        s += pt.system_begin() + "S" + pt.system_end()
        s += pt.user_begin()
        s += "U" + pt.gen("x")
        s += pt.user_end()

    states = [ran(program, ["1"], chat_template=SMOLLM2) for program in (calls, state_calls, blocks, begin_and_end)]
    for state in states:
        assert state.text() == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n"
        assert state.messages() == [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}]


def test_a_message_is_appended_once() -> None:
    """`s += s.user(...)` is an error that says the message is there already, as in SGLang."""

    def program(s: pt.ProgramState) -> None:
        with pytest.raises(TypeError, match="append their message themselves"):
            s += s.user("U")  # type: ignore[arg-type]  # the mistake under test

    assert ran(program).messages() == [{"role": "user", "content": "U"}]


def test_a_value_is_built_once() -> None:
    """Reading a typed variable twice gives the same object, so that a list may be added to."""

    def program(s: pt.ProgramState) -> None:
        s += pt.gen("tags", type=list[str])
        s["tags"].append("mine")
        assert s["tags"] == ["a", "mine"]

    assert ran(program, ['["a"]'])["tags"] == ["a", "mine"]


def test_roles_do_not_nest() -> None:
    """Opening a message in a message, and closing one that is not open, are errors at that line."""

    def program(s: pt.ProgramState) -> None:
        with pytest.raises(pt.ProgramError, match="no user message to close: none is open"):
            s += pt.user_end()
        s += pt.user_begin()
        with pytest.raises(pt.ProgramError, match="no assistant message can begin inside the open user message"):
            s += pt.assistant("A")
        with pytest.raises(pt.ProgramError, match="the open message is of user") as caught:
            s += pt.assistant_end()
        assert caught.value.line is not None
        assert caught.value.line.file == __file__
        assert "assistant_end" in caught.value.line.code

    ran(program)


def test_a_role_that_the_model_refuses_raises_at_its_line() -> None:
    """The template's own complaint reaches the line that opens the message."""

    def program(s: pt.ProgramState) -> None:
        with pytest.raises(pt.ChatTemplateError, match="no jokes"):
            s += pt.system("S")

    ran(program, chat_template="{{ raise_exception('no jokes') }}")


# -- forks -----------------------------------------------------------------------------------------------------------


def test_fork_before_any_text() -> None:
    """Branches of an empty state begin the text themselves."""

    def program(s: pt.ProgramState) -> None:
        branches = s.fork(2)
        branches += ["a", "b"]
        branches += pt.gen("x")
        branches.join()

    state = ran(program, lambda prompt, node: prompt.upper())
    assert (state["x"], state.text()) == (["A", "B"], "")


def test_branches_see_the_text_of_the_fork_only() -> None:
    """What the parent appends after a fork is not in its branches, nor theirs in it."""

    def program(s: pt.ProgramState) -> None:
        s += "A" + pt.gen("x")
        (branch,) = s.fork(1)
        s += "P"
        branch += "B"
        assert branch["x"] == "1"
        assert branch.text() == "A1B"

    assert ran(program, ["1"]).text() == "A1P"


def test_a_fork_in_a_message_keeps_the_message_open() -> None:
    """Branches inherit the open message: each can close it, and has it among its messages."""

    def program(s: pt.ProgramState) -> None:
        s += pt.user("Q") + pt.assistant_begin() + "Well, "
        branches = s.fork(2)
        branches += pt.gen("x")
        branches += pt.assistant_end()
        for place, branch in enumerate(branches):
            assert branch.messages()[-1] == {"role": "assistant", "content": f"Well, {branch['x']}"}
            assert branch.messages()[-1]["content"] == f"Well, {place}"
        branches.join()
        s += "nothing." + pt.assistant_end()

    state = ran(program, ["0", "1"])
    assert state.messages()[-1]["content"] == "Well, nothing."


def test_nested_forks_gather_nested_lists() -> None:
    """Forks in forks give lists of lists."""

    def program(s: pt.ProgramState) -> None:
        outer = s.fork(2)
        for letter, branch in zip("ab", outer, strict=True):
            inner = branch.fork(2)
            inner += [f"{letter}{place}" + pt.gen("x") for place in range(2)]
            inner.join()
        outer.join()

    assert ran(program, lambda prompt, node: prompt)["x"] == [["a0", "a1"], ["b0", "b1"]]


def test_join_keeps_what_the_parent_set() -> None:
    """The parent's own variables stay; gathered ones are replaced by a later gather; branches stay readable."""

    def program(s: pt.ProgramState) -> None:
        s += pt.gen("mine")
        for _ in range(2):
            branches = s.fork(2)
            branches += pt.gen("mine") + pt.gen("theirs")
            branches.join()
            assert [branch["theirs"] for branch in branches] == s["theirs"]

    state = ran(program, ["p", "a", "b", "c", "d", "e", "f", "g", "h"])
    assert state["mine"] == "p"
    assert len(state["theirs"]) == 2
    assert not {"a", "b", "c", "d"} & set(state["theirs"])
    assert [info["text"] for info in state.get_meta_info("theirs")] == state["theirs"]


def test_text_of_a_list_cannot_be_iterated() -> None:
    """text_iter follows one text; a gathered variable and a value of the program's own are none."""

    def program(s: pt.ProgramState) -> None:
        s["own"] = "text"
        branches = s.fork(2)
        branches += pt.gen("x")
        branches.join()
        with s.var_scope("empty"):
            pass
        assert list(s.text_iter("empty")) == []
        for name in ("own", "x"):
            with pytest.raises(pt.ProgramError, match="is no text of this branch"):
                list(s.text_iter(name))

    assert ran(program, ["1", "2"])["empty"] == ""


def test_a_gathered_variable_holds_only_branches_that_set_it() -> None:
    """A branch that did not set the variable is not in its list."""

    def program(s: pt.ProgramState) -> None:
        branches = s.fork(3)
        branches[1] += pt.gen("x")
        branches.join()

    assert ran(program, ["1"])["x"] == ["1"]


def test_join_concat_appends_the_texts() -> None:
    """mode="concat" brings the branches' texts and messages to the parent, in order."""

    def program(s: pt.ProgramState) -> None:
        s += pt.user("Q")
        branches = s.fork(2)
        branches += lambda place: pt.assistant(f"{place}" + pt.gen("x"))
        branches.join("concat")
        s += "!"

    state = ran(program, ["a", "b"])
    assert state.text() == "USER: Q\nASSISTANT: 0a\nASSISTANT: 1b\n!"
    assert [message["content"] for message in state.messages()] == ["Q", "0a", "1b"]
    assert "x" not in state


def test_join_mistakes() -> None:
    """Joining twice, an unknown mode, a message left open and appending to a joined branch are errors."""

    def program(s: pt.ProgramState) -> None:
        branches = s.fork(2)
        branches[0] += pt.user_begin()
        with pytest.raises(ValueError, match=r"knows the modes.*not 'sum'"):
            branches.join("sum")  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(pt.ProgramError, match="branch 0 has opened or closed a message"):
            branches.join("concat")
        branches.join()
        with pytest.raises(pt.ProgramError, match="joined already"):
            branches.join()
        with pytest.raises(pt.ProgramError, match="this branch was joined"):
            branches[0] += "more"

    ran(program)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_fork_needs_a_branch(size: Any) -> None:
    """fork takes a whole number of at least 1."""

    def program(s: pt.ProgramState) -> None:
        with pytest.raises(ValueError, match="at least 1 branch"):
            s.fork(size)

    ran(program)


def test_a_group_checks_what_is_appended() -> None:
    """A list must have one item a branch, and a branch cannot be replaced."""

    def program(s: pt.ProgramState) -> None:
        branches = s.fork(2)
        with pytest.raises(TypeError, match="a list of 2 of them"):
            branches += ["a"]
        with pytest.raises(TypeError, match="cannot be replaced"):
            branches[0] = s
        assert len(branches) == 2
        assert branches[0:1] == (branches[0],)

    ran(program)


def test_copy_is_a_fork_of_one_that_joins() -> None:
    """A copy tries something without touching the state; what it set comes back as a list of one."""

    def program(s: pt.ProgramState) -> None:
        s += "A"
        with s.copy() as attempt:
            attempt += "B" + pt.gen("x")
            assert attempt.text() == "AB1"

    state = ran(program, ["1"])
    assert (state.text(), state["x"]) == ("A", ["1"])


# -- a law -----------------------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["text", "gen", "fork", "read"]), st.text(max_size=4)))


@given(steps)
def test_branches_are_strings_that_grow(plan: list[tuple[int, str, str]]) -> None:
    """Whatever a program appends, forks and reads, every branch's text is what a plain string would be."""

    def program(s: pt.ProgramState) -> None:
        branches = [(s, "")]
        for place, step, text in plan:
            state, expected = branches[place % len(branches)]
            if step == "fork":
                branches += [(child, expected) for child in state.fork(2)]
                continue
            if step == "gen":
                state += pt.gen("x")
                expected += f"<{len(expected)}>"
            if step == "text":
                state += text
                expected += text
            if step == "read":
                assert state.text() == expected
            branches[place % len(branches)] = (state, expected)
        for state, expected in branches:
            state._interpreter.check_invariants()
            state._execution.check_invariants()
            assert state.text() == expected
            assert "".join(state.text_iter()) == expected

    ran(program, lambda prompt, node: f"<{len(prompt)}>")
