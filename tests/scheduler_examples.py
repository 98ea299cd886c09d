"""Prompts, grammars and single runs for the tests of the scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fake_grammar import (
    scripted_brackets,
    scripted_chain,
    scripted_repeat,
)
from tests.fake_runner import token
from tests.fakes import FakeEngine, expected_answer, make_request

from palmette.runtime.request import Request

PREFIX = [3 + i * 7 % 40 for i in range(600)]
DIGITS = [token(digit) for digit in "0123456789"]
CODE = scripted_chain("code", [DIGITS, DIGITS, DIGITS])
CALL = scripted_chain("call", [[token("a")], [token("b")], DIGITS, [token("c")], [token("d")]])
WORD = scripted_repeat("word", [token(letter) for letter in "abc"], least=2)
BRACKETS = scripted_brackets("brackets", 12)
FIXED = scripted_chain("fixed", [[token("x")], [token("y")]])
GRAMMARS = [CODE, CALL, WORD, BRACKETS, FIXED]


def prompt(seed: int, length: int = 6) -> list[int]:
    """A prompt that shares nothing with those of other seeds."""
    return [3 + seed % 40, *np.random.default_rng(seed).integers(3, 46, length - 1).tolist()]


def run_one(request: Request, **settings: Any) -> FakeEngine:
    """An engine that has run one request to its end and got all its pages back."""
    engine = FakeEngine(grammars=GRAMMARS, **settings)
    engine.add(request)
    engine.run()
    engine.check_empty()
    return engine


def seed_where(wanted: Any, **params: Any) -> int:
    """The first prompt seed whose expected answer is as wanted."""
    for seed in range(2000):
        if wanted(expected_answer(make_request("r", prompt(seed), **params), 4096)):
            return seed
    raise AssertionError("no such prompt")
