"""Scripted grammars over the fake vocabulary, a compiler that knows them, and executors to compile in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, cast

import numpy as np
from tests.fake_runner import TOKEN_BYTES, VOCABULARY, token

from palmette.constrained import CompiledGrammar, Grammar, Matcher
from palmette.runtime.batch import UInt32Array
from palmette.runtime.request import Request


class ScriptedGrammar:
    """A compiled grammar given as an automaton over token ids, with the methods of `CompiledGrammar` done naively.

    Args:
        transitions: by state, token id to next state; state 0 is the start.
        accepting: states in which the text may end.
    """

    start = 0
    vocabulary = VOCABULARY
    always_completes = True
    shares_states = True

    def __init__(self, grammar: Grammar, transitions: Sequence[Mapping[int, int]], accepting: Sequence[int]) -> None:
        self.grammar = grammar
        self.transitions = transitions
        self.accepting = frozenset(accepting)

    def compiled(self) -> CompiledGrammar:
        """This grammar, as the type it stands in for."""
        return cast("CompiledGrammar", self)

    def matcher(self) -> Matcher:
        return Matcher(self.compiled())

    def advance(self, state: int, token_id: int) -> int | None:
        return self.transitions[state].get(token_id)

    def is_accepting(self, state: int) -> bool:
        return state in self.accepting

    def is_final(self, state: int) -> bool:
        return state in self.accepting and not self.transitions[state]

    def mask(self, state: int) -> UInt32Array:
        return self._pack(state, self.transitions[state])

    def mask_within(self, state: int, tokens_left: int) -> UInt32Array:
        within = [t for t, after in self.transitions[state].items() if len(self._ending(after)) <= tokens_left - 1]
        return self._pack(state, within)

    def shortest_ending(self, state: int) -> tuple[int, ...]:
        return self._ending(state)

    def ending_bytes(self, state: int) -> int:
        return sum(len(TOKEN_BYTES[token_id] or b"") for token_id in self._ending(state))

    def _ending(self, state: int) -> tuple[int, ...]:
        queue: deque[tuple[int, tuple[int, ...]]] = deque([(state, ())])
        seen = {state}
        while queue:
            here, path = queue.popleft()
            if here in self.accepting:
                return path
            for token_id, after in self.transitions[here].items():
                if after not in seen:
                    seen.add(after)
                    queue.append((after, (*path, token_id)))
        raise AssertionError("a scripted grammar without an ending")

    def _pack(self, state: int, token_ids: Sequence[int] | Mapping[int, int]) -> UInt32Array:
        flags = np.zeros(VOCABULARY.words * 32, dtype=np.bool_)
        flags[list(token_ids)] = True
        if state in self.accepting:
            flags[list(VOCABULARY.end_ids)] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)

    def matches(self, output: Sequence[int]) -> bool:
        """Whether the automaton accepts the whole of `output`, but for an end token."""
        state: int | None = 0
        for token_id in output:
            if token_id in VOCABULARY.end_ids:
                break
            state = self.advance(state, token_id) if state is not None else None
        return state in self.accepting


def forced_tokens(request: Request) -> list[int]:
    """A forced-text hook for scripted grammars: tokens are forced while exactly one is allowed."""
    assert request.matcher is not None
    grammar, state = cast("ScriptedGrammar", request.matcher.grammar), request.matcher.state
    forced: list[int] = []
    while state not in grammar.accepting and len(grammar.transitions[state]) == 1:
        ((token_id, state),) = grammar.transitions[state].items()
        forced.append(token_id)
    return forced


def scripted_chain(name: str, steps: Sequence[Sequence[int]]) -> ScriptedGrammar:
    """A grammar of fixed length: one of steps[i] at place i."""
    transitions: list[dict[int, int]] = [dict.fromkeys(step, i + 1) for i, step in enumerate(steps)]
    return ScriptedGrammar(Grammar.regex(name), [*transitions, {}], [len(steps)])


def scripted_repeat(name: str, token_ids: Sequence[int], least: int = 1) -> ScriptedGrammar:
    """A grammar of at least `least` of `token_ids`; only an end token ends it."""
    states = [dict.fromkeys(token_ids, min(i + 1, least)) for i in range(least + 1)]
    return ScriptedGrammar(Grammar.regex(name), states, [least])


def scripted_brackets(name: str, body: int) -> ScriptedGrammar:
    """(a|b(c{body}d))*: a step from "a" to "b" lengthens the shortest ending by `body` + 1 tokens at once."""
    states: list[dict[int, int]] = [{token("a"): 0, token("b"): 1, token("e"): 0}]
    states += [{token("c"): i + 2, token("f"): i + 2} for i in range(body)]
    states += [{token("d"): 0}]
    return ScriptedGrammar(Grammar.regex(name), states, [0])


class ScriptedCompiler:
    """Compiles the grammars it was given; any other fails, or what it was told to raise.

    Attributes:
        calls: grammars asked for, in order.
    """

    def __init__(self, *grammars: ScriptedGrammar, failing: Mapping[Grammar, Exception] | None = None) -> None:
        self._known = {grammar.grammar: grammar for grammar in grammars}
        self._failing = dict(failing or {})
        self.calls: list[Grammar] = []

    def __call__(self, grammar: Grammar) -> CompiledGrammar:
        self.calls.append(grammar)
        if grammar in self._failing:
            raise self._failing[grammar]
        return self._known[grammar].compiled()


class InlineExecutor(Executor):
    """Runs a job when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job: Future[Any] = Future()
        job.set_running_or_notify_cancel()
        _finish(job, lambda: fn(*args, **kwargs))
        return job


class ManualExecutor(Executor):
    """Runs jobs when told."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self._jobs.append((job, lambda: fn(*args, **kwargs)))
        return job

    def run_next(self) -> None:
        """Run the oldest job that was not cancelled, if there is one."""
        while self._jobs:
            job, work = self._jobs.popleft()
            if job.set_running_or_notify_cancel():
                _finish(job, work)
                return


def _finish(job: Future[Any], work: Callable[[], Any]) -> None:
    try:
        job.set_result(work())
    except Exception as error:
        job.set_exception(error)
