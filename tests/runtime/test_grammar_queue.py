"""Requests that wait for their grammar."""

from __future__ import annotations

import threading

import pytest
from tests.fake_grammar import InlineExecutor, ManualExecutor, ScriptedCompiler, scripted_chain
from tests.fakes import make_request

from palmette.constrained import (
    CompiledGrammar,
    Grammar,
    GrammarError,
    GrammarLimitError,
    PalmetteError,
    UnsupportedGrammarError,
)
from palmette.runtime.grammar_cache import GrammarCache
from palmette.runtime.grammar_queue import GrammarQueue
from palmette.runtime.request import Request

CHAINS = [scripted_chain(name, [[3, 4]]) for name in ("x", "y", "z")]
BAD = Grammar.regex("(")


def waiting(name: str, grammar: Grammar) -> Request:
    return make_request(name, [3], grammar=grammar)


def ended(queue: GrammarQueue) -> list[tuple[str, bool]]:
    """Polled requests by id, and whether they got a grammar."""
    return [(o.request.id, not isinstance(o.compiled, PalmetteError)) for o in queue.poll()]


def test_a_grammar_compiles_once_for_all_that_wait() -> None:
    """Single flight: requests with equal grammars share one compilation, also when they come while it runs."""
    compiler, executor = ScriptedCompiler(*CHAINS), ManualExecutor()
    queue = GrammarQueue(compiler, executor=executor)
    queue.add(waiting("a", Grammar.regex("x")))
    queue.add(waiting("b", Grammar.regex("x")))
    assert ended(queue) == []
    assert not queue.has_ready
    executor.run_next()
    queue.add(waiting("c", Grammar.regex("x")))
    assert queue.has_ready
    assert ended(queue) == [("a", True), ("b", True), ("c", True)]
    queue.add(waiting("d", Grammar.regex("x")))
    assert ended(queue) == [("d", True)]
    assert compiler.calls == [Grammar.regex("x")]


def test_the_slow_one_blocks_nobody_that_is_compiled() -> None:
    """A request with a known grammar passes those that wait for another."""
    executor = ManualExecutor()
    queue = GrammarQueue(ScriptedCompiler(*CHAINS), executor=executor)
    queue.add(waiting("a", Grammar.regex("x")))
    executor.run_next()
    assert ended(queue) == [("a", True)]
    queue.add(waiting("slow", Grammar.regex("y")))
    queue.add(waiting("quick", Grammar.regex("x")))
    assert ended(queue) == [("quick", True)]
    assert len(queue) == 1


def test_a_failure_fails_exactly_those_that_wait_for_it() -> None:
    """The error of the compiler is the outcome; other requests get theirs, and a later request tries again."""
    error = UnsupportedGrammarError("no lookbehind", pointer="@1")
    compiler = ScriptedCompiler(*CHAINS, failing={BAD: error})
    queue = GrammarQueue(compiler, executor=InlineExecutor())
    for name, grammar in (("a", BAD), ("b", Grammar.regex("x")), ("c", BAD)):
        queue.add(waiting(name, grammar))
    outcomes = {outcome.request.id: outcome.compiled for outcome in queue.poll()}
    assert outcomes["a"] is outcomes["c"] is error
    assert outcomes["b"] is CHAINS[0].compiled()
    queue.add(waiting("d", BAD))
    assert ended(queue) == [("d", False)]
    assert compiler.calls.count(BAD) == 2


def test_an_unexpected_exception_is_a_grammar_error() -> None:
    """A defect of the compiler ends the request with its cause, not the scheduler."""
    cause = RecursionError("deep")
    queue = GrammarQueue(ScriptedCompiler(failing={BAD: cause}), executor=InlineExecutor())
    queue.add(waiting("a", BAD))
    (outcome,) = queue.poll()
    assert isinstance(outcome.compiled, GrammarError)
    assert outcome.compiled.__cause__ is cause


@pytest.mark.parametrize("cause", [MemoryError(), RecursionError("deep")])
def test_what_is_too_large_to_compile_meets_a_limit(cause: Exception) -> None:
    """Memory and stack are limits like others."""
    queue = GrammarQueue(ScriptedCompiler(failing={BAD: cause}), executor=InlineExecutor())
    queue.add(waiting("a", BAD))
    (outcome,) = queue.poll()
    assert isinstance(outcome.compiled, GrammarLimitError)
    assert "simplify it" in str(outcome.compiled)


def test_compiled_grammars_are_kept_by_last_use() -> None:
    """The cache is bounded: the grammar used longest ago is compiled anew."""
    compiler = ScriptedCompiler(*CHAINS)
    queue = GrammarQueue(compiler, executor=InlineExecutor(), cache=GrammarCache(2))
    for index, name in enumerate("xyxzxy"):
        queue.add(waiting(str(index), Grammar.regex(name)))
        assert ended(queue) == [(str(index), True)]
    assert [grammar.source for grammar in compiler.calls] == ["x", "y", "z", "y"]


def test_a_request_can_leave_while_its_grammar_compiles() -> None:
    """An aborted request is not heard of again; the others that wait are."""
    executor = ManualExecutor()
    queue = GrammarQueue(ScriptedCompiler(*CHAINS), executor=executor)
    gone, stays = waiting("gone", Grammar.regex("x")), waiting("stays", Grammar.regex("x"))
    queue.add(gone)
    queue.add(stays)
    queue.remove(gone)
    queue.remove(gone)
    executor.run_next()
    assert ended(queue) == [("stays", True)]


def test_nobody_waits_so_nothing_is_compiled() -> None:
    """A job that has not begun is cancelled with its last request, and begins anew with the next."""
    compiler, executor = ScriptedCompiler(*CHAINS), ManualExecutor()
    queue = GrammarQueue(compiler, executor=executor)
    request = waiting("a", Grammar.regex("x"))
    queue.add(request)
    queue.remove(request)
    executor.run_next()
    assert compiler.calls == []
    queue.add(waiting("b", Grammar.regex("x")))
    executor.run_next()
    assert ended(queue) == [("b", True)]


def test_a_ready_request_can_leave() -> None:
    """An abort between the compilation and the next step is in time."""
    queue = GrammarQueue(ScriptedCompiler(*CHAINS), executor=InlineExecutor())
    request = waiting("a", Grammar.regex("x"))
    queue.add(request)
    queue.remove(request)
    assert ended(queue) == []
    queue.add(request)
    queue.poll()
    queue.add(request)
    queue.remove(request)
    assert ended(queue) == []


def test_compiling_is_off_the_callers_thread() -> None:
    """The default executor compiles elsewhere and tells when it is done."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    def compile_grammar(grammar: Grammar) -> CompiledGrammar:
        threads.append(threading.current_thread())
        return CHAINS[0].compiled()

    queue = GrammarQueue(compile_grammar)
    queue.on_ready(done.set)
    queue.add(waiting("a", Grammar.regex("x")))
    assert done.wait(30)
    assert ended(queue) == [("a", True)]
    assert threads[0] is not threading.current_thread()
    queue.close()


@pytest.mark.parametrize("begun", [False, True])
def test_close_waits_for_nothing(begun: bool) -> None:
    """After close no job tells anyone that it is done."""
    executor, calls = ManualExecutor(), 0

    def count() -> None:
        nonlocal calls
        calls += 1

    queue = GrammarQueue(ScriptedCompiler(*CHAINS), executor=executor)
    queue.on_ready(count)
    queue.add(waiting("a", Grammar.regex("x")))
    if begun:
        executor.run_next()
    queue.close()
    executor.run_next()
    assert calls == int(begun)
