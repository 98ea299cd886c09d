"""Arguments of gen, select and the roles are checked at the user's line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

import palmette as pt
from palmette.constrained.grammar import Grammar
from palmette.lang.expr import Constant, ExprList, GenExpr, RoleBegin, RoleEnd, SelectExpr
from palmette.lang.types import answer_type

untyped: Any = pt  # the mistakes under test are ones that a type checker finds, too


class Pet(BaseModel):
    name: str


def gen_of(expr: pt.Expr) -> GenExpr:
    assert isinstance(expr, GenExpr)
    return expr


def test_gen_keeps_what_was_given() -> None:
    """Options that are given are kept in the form of the wire; None means the default."""
    expr = gen_of(pt.gen("x", max_tokens=3, temperature=None, stop="\n", stop_token_ids=[2]))
    assert expr.name == "x"
    assert expr.options == {"max_tokens": 3, "stop": ("\n",), "stop_token_ids": (2,)}


@pytest.mark.parametrize(
    ("constraint", "grammar"),
    [
        ({"regex": "a+"}, Grammar.regex("a+")),
        ({"json_schema": Pet}, answer_type(Pet).grammar),
        ({"type": Pet}, answer_type(Pet).grammar),
        ({"dtype": "int"}, answer_type(int).grammar),
        ({"dtype": bool}, answer_type(bool).grammar),
        ({"ebnf": 'root ::= "a"'}, Grammar.ebnf('root ::= "a"')),
        ({"lark": 'start: "a"'}, Grammar.lark('start: "a"')),
        ({"json_schema": {"type": "null"}}, Grammar.json_schema({"type": "null"})),
        ({"grammar": Grammar.choices(["a", "b"])}, Grammar.choices(["a", "b"])),
    ],
)
def test_gen_takes_every_kind_of_constraint(constraint: dict[str, Any], grammar: Grammar) -> None:
    """Patterns, schemas, types and grammars become the node's grammar."""
    assert gen_of(pt.gen("x", **constraint)).grammar == grammar


def test_gen_with_choices_is_select() -> None:
    """gen(choices=...) scores the choices, as select does."""
    assert pt.gen("x", choices=["a", "b"]) == pt.select("x", ["a", "b"])
    method = pt.greedy_token_selection
    assert pt.gen("x", choices=["a"], choices_method=method) == SelectExpr("x", ("a",), method)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: untyped.gen("x", min_new_tokens=3), TypeError, "did you mean 'min_tokens'"),
        (lambda: untyped.gen("x", temprature=0), TypeError, "did you mean 'temperature'"),
        (lambda: untyped.gen("x", qqq=0), TypeError, "its options are always_complete"),
        (lambda: untyped.gen("x", temperature=-1), ValueError, "temperature must be a number"),
        (lambda: untyped.gen("x", max_tokens=0), ValueError, "max_tokens must be a whole number"),
        (lambda: untyped.gen("x", min_tokens=-1), ValueError, "min_tokens must be a whole number"),
        (lambda: untyped.gen("x", min_tokens=5, max_tokens=2), ValueError, "min_tokens=5 is more than"),
        (lambda: untyped.gen("x", stop=3), ValueError, "stop must be"),
        (lambda: untyped.gen("x", stop=[""]), ValueError, "stop must be"),
        (lambda: untyped.gen("x", stop_token_ids="12"), ValueError, "stop_token_ids must be"),
        (lambda: untyped.gen("x", logit_bias=3), ValueError, "logit_bias must be a mapping"),
        (lambda: untyped.gen("x", logit_bias={1: "a"}), ValueError, "logit_bias must be a mapping"),
        (lambda: untyped.gen("x", n=0), ValueError, "n must be a whole number"),
        (lambda: untyped.gen("x", n=True), ValueError, "n must be a whole number"),
        (lambda: untyped.gen("", max_tokens=3), TypeError, "non-empty string"),
        (lambda: untyped.gen(3), TypeError, "non-empty string"),
        (lambda: untyped.gen("x", regex="a", json_schema={}), ValueError, "one constraint, not 2: regex, json_schema"),
        (lambda: untyped.gen("x", regex=3), pt.GrammarError, "regex must be a string"),
        (lambda: untyped.gen("x", regex="("), pt.GrammarError, r"bad regular expression '\('"),
        (lambda: untyped.gen("x", json_schema=3), pt.GrammarError, "json_schema must be"),
        (lambda: untyped.gen("x", json_schema={"type": "strng"}), pt.GrammarError, "not 'strng'"),
        (lambda: untyped.gen("x", json_schema={"not": {}}), pt.GrammarError, "nothing matches"),
        (lambda: untyped.gen("x", type=complex), TypeError, "complex"),
        (lambda: untyped.gen("x", dtype="complex"), ValueError, "dtype must be int, float, bool or str"),
        (lambda: untyped.gen("x", ebnf="root ::= other"), pt.GrammarError, "other"),
        (lambda: untyped.gen("x", lark="start: other"), pt.GrammarError, "other"),
        (lambda: untyped.gen("x", lark=3), pt.GrammarError, "lark source must be a string"),
        (lambda: untyped.gen("x", structural_tag={}), pt.GrammarError, "structural_tag"),
        (lambda: untyped.gen("x", tools=[print]), ValueError, "decorated with @pt.tool"),
        (lambda: untyped.gen("x", tools=[]), ValueError, "non-empty list"),
        (lambda: untyped.gen("x", stop_regex="("), pt.GrammarError, "stop_regex|regular expression"),
        (lambda: untyped.gen("x", top_logprobs_num=2), ValueError, "go with return_logprob=True"),
        (lambda: untyped.gen("x", return_logprob=True, logprobs=2), ValueError, "two names of one option"),
        (lambda: untyped.gen("x", grammar="a"), pt.GrammarError, "must be a Grammar"),
        (lambda: untyped.gen("x", grammar=Grammar.regex("[b-a]")), pt.GrammarError, "bad regular expression"),
        (lambda: untyped.gen("x", choices=["a"], max_tokens=3), ValueError, "none, so leave out max_tokens$"),
        (lambda: untyped.gen("x", choices=["a"], n=2), ValueError, "none, so leave out n$"),
        (lambda: untyped.gen("x", choices_method="greedy_token_selection"), ValueError, "goes with choices"),
        (lambda: untyped.select("x", "abc"), pt.GrammarError, "list of strings"),
        (lambda: untyped.select("x", []), pt.GrammarError, "non-empty"),
        (lambda: untyped.select("x", ["a", "a"]), pt.GrammarError, "distinct"),
        (lambda: untyped.select("x", ["a"], choices_method="best"), ValueError, "one of token_length_normalized"),
        (lambda: untyped.user(3), TypeError, r"user\(\) takes a string or an expression.*write str\(3\)"),
        (lambda: untyped.assistant(None), TypeError, r"assistant\(\) takes a string or an expression"),
    ],
)
def test_wrong_arguments_say_what_is_right(make: Any, error: type[Exception], says: str) -> None:
    """A wrong argument raises at once, with the value and what is allowed."""
    with pytest.raises(error, match=says):
        make()


def test_typed_generations_are_constrained() -> None:
    """gen_int and gen_string are gen(type=...) of int and str."""
    assert pt.gen_int("x", 3) == pt.gen("x", 3, type=int)
    assert pt.gen_string("x", n=2, top_p=0.5) == pt.gen("x", n=2, type=str, top_p=0.5)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"return_logprob": True}, {"logprobs": 0}),
        ({"return_logprob": True, "top_logprobs_num": 3}, {"logprobs": 3}),
        (
            {"return_logprob": True, "logprob_start_len": 2, "top_logprobs_num": 1, "return_text_in_logprobs": True},
            {"logprobs": 1, "prompt_logprobs": 1, "prompt_logprobs_from": 2, "return_text_in_logprobs": True},
        ),
        ({"return_logprob": False}, {}),
        ({"top_k": -1, "stop_regex": "a+"}, {"top_k": 0, "stop_regex": ("a+",)}),
    ],
)
def test_names_of_sglang_are_taken(given: dict[str, Any], options: dict[str, Any]) -> None:
    """SGLang's options of a gen mean what they mean there."""
    assert gen_of(pt.gen("x", **given)).options == options


def test_roles_wrap_their_content() -> None:
    """A role is its begin, its content and its end, whatever way it is written."""
    expected = ExprList((RoleBegin("user"), Constant("Hi"), RoleEnd("user")))
    assert pt.user("Hi") == expected
    assert pt.user_begin() + "Hi" + pt.user_end() == expected
    assert pt.system_begin() + pt.system_end() == ExprList((RoleBegin("system"), RoleEnd("system")))
    assert pt.assistant_begin() + pt.assistant_end() == ExprList((RoleBegin("assistant"), RoleEnd("assistant")))
