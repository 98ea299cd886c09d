"""The engine in process, on a tiny random model: trees in, events out, and nothing left behind."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from tests.engine_processes import wait_until
from tests.wire import Listener, run_tree

from palmette.constrained import Grammar, GrammarError
from palmette.lang.backend import Backend
from palmette.runtime import launch
from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.grammar_compiler import GrammarCompiler
from palmette.runtime.messages import SessionOptions
from palmette.runtime.program import (
    Event,
    Failed,
    Fork,
    Generate,
    Generated,
    Join,
    Node,
    Reference,
    Select,
    Selected,
    SelectMethod,
    Text,
)
from palmette.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


def generated(listener: Listener, node: int) -> Generated:
    event = listener.done[node]
    assert isinstance(event, Generated), event
    return event


def text_of(listener: Listener, node: int) -> str:
    return generated(listener, node).completions[0].text


def failed(listener: Listener, node: int) -> Failed:
    event = listener.done[node]
    assert isinstance(event, Failed), event
    return event


def test_an_engine_is_a_language_backend(tiny_engine: Engine) -> None:
    """The engine satisfies the protocol that the language is written against."""
    backend: Backend = tiny_engine
    assert isinstance(backend, Backend)


def test_a_straight_line_runs_as_one_submission(tiny_engine: Engine) -> None:
    """A generation after a generation starts without another message, on the text of the first."""
    both = run_tree(
        tiny_engine, [Text(0, None, "The"), Generate(1, 0, GREEDY), Text(2, 1, " and"), Generate(3, 2, GREEDY)]
    )
    first = text_of(both, 1)
    assert generated(both, 3).completions[0].prompt_tokens > generated(both, 1).completions[0].prompt_tokens
    alone = run_tree(tiny_engine, [Text(0, None, "The"), Generate(1, 0, GREEDY)])
    assert text_of(alone, 1) == first


def test_branches_see_the_text_before_the_fork_only(tiny_engine: Engine) -> None:
    """Siblings do not see each other: each gives what it gives alone."""
    tree: list[Node] = [Text(0, None, "The quick "), Fork(1, 0, 3)]
    for branch, word in enumerate(["brown", "lazy", "odd"]):
        tree += [Text(2 + 2 * branch, 1, word), Generate(3 + 2 * branch, 2 + 2 * branch, GREEDY)]
    tree.append(Join(8, 1, (3, 5, 7)))
    together = run_tree(tiny_engine, tree)
    for branch, word in enumerate(["brown", "lazy", "odd"]):
        alone = run_tree(tiny_engine, [Text(0, None, f"The quick {word}"), Generate(1, 0, GREEDY)])
        assert text_of(together, 3 + 2 * branch) == text_of(alone, 1)


def test_deltas_join_to_the_text_of_each_answer(tiny_engine: Engine) -> None:
    """Streamed generations with n=3 send deltas by answer; the branch goes on with the first."""
    params = SamplingParams(temperature=1, max_tokens=12, seed=4, ignore_eos=True)
    listener = run_tree(
        tiny_engine, [Text(0, None, "a"), Generate(1, 0, params, n=3, stream=True), Generate(2, 1, GREEDY)]
    )
    completions = generated(listener, 1).completions
    assert len({completion.text for completion in completions}) > 1
    for index, completion in enumerate(completions):
        assert "".join(d.text for d in listener.deltas if (d.node, d.index) == (1, index)) == completion.text
    expected = generated(listener, 1).completions[0]
    assert generated(listener, 2).completions[0].prompt_tokens == expected.prompt_tokens + len(expected.token_ids)


STOPS: tuple[tuple[dict[str, Any], Grammar | None], ...] = (
    ({"stop": ("e", "an")}, None),
    ({"stop_regex": ("[a-e] ?[f-t]+",)}, None),
    ({"stop": ("b",), "stop_regex": ("c{2}", "[0-9]$")}, Grammar.regex("[abc]+(x[a-c]{2,30})?[0-9]?")),
    ({}, Grammar.regex("[a-z]{3,20}[.]")),
)


@pytest.mark.parametrize(("stops", "grammar"), STOPS)
def test_many_streamed_answers_with_stops_and_grammars(
    tiny_engine: Engine, stops: dict[str, Any], grammar: Grammar | None
) -> None:
    """The deltas of every answer join to its text, no text holds a stop, and each is what it is alone."""
    params = SamplingParams(temperature=1, max_tokens=40, seed=9, ignore_eos=True, **stops)
    node = Generate(1, 0, params, grammar, n=6, stream=True)
    listener = run_tree(tiny_engine, [Text(0, None, "It is a "), node])
    completions = generated(listener, 1).completions
    assert len({completion.text for completion in completions}) > 1
    for index, completion in enumerate(completions):
        assert "".join(d.text for d in listener.deltas if (d.node, d.index) == (1, index)) == completion.text
        assert not any(d.text == "" for d in listener.deltas)
        single = Generate(1, 0, msgspec.structs.replace(params, seed=9 + index), grammar)
        alone = generated(run_tree(tiny_engine, [Text(0, None, "It is a "), single]), 1).completions[0]
        assert (alone.text, alone.finish_reason, alone.matched) == (
            completion.text,
            completion.finish_reason,
            completion.matched,
        )
        if grammar is not None:
            assert re.fullmatch(grammar.source, completion.text), completion
        elif isinstance(completion.matched, str):
            stop = "|".join(stops.get("stop", ())) or stops["stop_regex"][0]
            assert re.fullmatch(stop, completion.matched)
            assert not re.search(stop, completion.text)


def test_text_after_a_stop_string_continues_the_kept_text(tiny_engine: Engine) -> None:
    """A stop string that cuts a token leaves its beginning to the text that follows."""
    free = text_of(run_tree(tiny_engine, [Text(0, None, "It is"), Generate(1, 0, LONG)]), 1)
    stop = free[7:9]
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, stop=(stop,))
    listener = run_tree(
        tiny_engine, [Text(0, None, "It is"), Generate(1, 0, params), Text(2, 1, "!"), Generate(3, 2, GREEDY)]
    )
    completion = generated(listener, 1).completions[0]
    assert completion.text == free[: free.index(stop)]
    assert (completion.finish_reason, completion.matched) == ("stop", stop)


def test_a_select_becomes_text(tiny_engine: Engine) -> None:
    """The text after a select continues the choice, whichever method made it."""
    for method in ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"):
        node = Select(1, 0, (" the", " there", "s"), method)
        listener = run_tree(tiny_engine, [Text(0, None, "It is"), node, Generate(2, 1, GREEDY)])
        selected = listener.done[1]
        assert isinstance(selected, Selected)
        choice = node.choices[selected.choice]
        alone = run_tree(tiny_engine, [Text(0, None, "It is" + choice), Generate(1, 0, GREEDY)])
        assert text_of(listener, 2) == text_of(alone, 1)


def test_a_select_on_an_empty_prompt_is_scored_after_the_start_token(tiny_engine: Engine) -> None:
    """Where nothing stands before the choices, every token of each has a score."""
    listener = run_tree(tiny_engine, [Select(0, None, ("the other", "a"))])
    selected = listener.done[0]
    assert isinstance(selected, Selected)
    tokens = [tiny_engine.tokenizer.encode_text(choice) for choice in ("the other", "a")]
    assert [list(score.token_ids) for score in selected.scores] == tokens
    assert [len(score.logprobs) for score in selected.scores] == [len(ids) for ids in tokens]


def test_usage_adds_up(tiny_engine: Engine) -> None:
    """Computed and reused tokens of all nodes are the prompt and the output of the request."""
    listener = run_tree(
        tiny_engine, [Text(0, None, "Numbers such as 1 2 3"), Text(1, 0, " and 4"), Generate(2, 1, GREEDY)]
    )
    event = generated(listener, 2)
    completion = event.completions[0]
    total = sum(usage.computed + usage.reused + usage.forced for usage in event.usage)
    assert total == completion.prompt_tokens + completion.completion_tokens
    assert sum(usage.reused for usage in event.usage) == completion.cached_tokens


def test_a_failing_node_fails_what_continues_it_and_nothing_else(tiny_engine: Engine) -> None:
    """A bad grammar ends its node and the nodes after it; a sibling goes on."""
    bad = Generate(1, 0, GREEDY, Grammar.regex("(a"))
    listener = run_tree(
        tiny_engine, [Text(0, None, "x"), bad, Text(2, 1, "y"), Generate(3, 2, GREEDY), Generate(4, 0, GREEDY)]
    )
    assert "Grammar" in failed(listener, 1).kind
    assert failed(listener, 3).message == failed(listener, 1).message
    assert text_of(listener, 4)


BAD_REQUESTS: tuple[tuple[Node, str], ...] = (
    (Generate(1, 0, GREEDY, n=0), "n must be"),
    (Generate(1, 0, GREEDY, n=10**9), "at most 1024"),
    (Select(1, 0, ()), "at least one choice"),
    (Select(1, 0, ("a", "")), "choice 1, which is empty"),
    (Select(1, 0, ("a", "b"), cast("SelectMethod", "best")), "not 'best'"),
    (Select(1, 0, ("a", "b\ud800")), "surrogate"),
    (Generate(1, 0, SamplingParams(stop_token_ids=(10**6,))), "stop_token_ids names token 1000000"),
    (Generate(1, 0, SamplingParams(logit_bias={10**6: 1.0})), "1000000"),
    (Generate(1, 0, SamplingParams(max_tokens=2), Grammar.regex("[a-z]{40}")), "max_tokens=2"),
)


@pytest.mark.parametrize(("node", "message"), BAD_REQUESTS)
def test_a_request_that_cannot_run_fails_with_the_reason(tiny_engine: Engine, node: Node, message: str) -> None:
    """What is wrong, with the value, comes back as the node's event, and the engine goes on."""
    failure = failed(run_tree(tiny_engine, [Text(0, None, "x"), node]), 1)
    assert message in failure.message
    assert failure.kind == "RequestError"
    assert text_of(run_tree(tiny_engine, [Generate(0, None, GREEDY)]), 0)


@pytest.mark.parametrize(
    ("option", "params"),
    [
        ("logit_bias", lambda unknown: SamplingParams(logit_bias={unknown: 1.0})),
        ("stop_token_ids", lambda unknown: SamplingParams(stop_token_ids=(unknown,))),
    ],
)
def test_logits_without_a_token_are_refused_and_stop_nothing(
    tiny_engine: Engine, option: str, params: Callable[[int], SamplingParams]
) -> None:
    """Most models have more logits than tokens: an option that names one of those fails its own request."""
    unknown = len(tiny_engine.tokenizer.token_bytes)
    assert unknown < tiny_engine.model_info.vocab_size
    failure = failed(run_tree(tiny_engine, [Text(0, None, "x"), Generate(1, 0, params(unknown))]), 1)
    assert (failure.kind, f"{option} names token {unknown}" in failure.message) == ("RequestError", True)
    assert text_of(run_tree(tiny_engine, [Generate(0, None, GREEDY)]), 0)


def test_a_prompt_longer_than_the_context_fails_with_the_numbers(tiny_engine: Engine) -> None:
    """A prompt that does not fit the context is refused, and says how long it is and may be."""
    listener = run_tree(tiny_engine, [Text(0, None, "8 " * 3000), Generate(1, 0, GREEDY)])
    assert re.search(r"\d+ tokens", failed(listener, 1).message)
    assert str(tiny_engine.model_info.context_length) in failed(listener, 1).message


@pytest.mark.parametrize("pattern", ["(a", "a*", "(?=a)b", "[a-z]{9999}"])
def test_a_stop_pattern_that_cannot_be_used_fails_its_node(tiny_engine: Engine, pattern: str) -> None:
    """The error is a GrammarError of that node; a sibling goes on."""
    bad = Generate(1, 0, SamplingParams(stop_regex=("fine", pattern)), n=2)
    listener = run_tree(tiny_engine, [Text(0, None, "x"), bad, Generate(2, 0, GREEDY)])
    assert "Grammar" in failed(listener, 1).kind
    assert text_of(listener, 2)


@pytest.mark.parametrize(
    "nodes",
    [
        [Text(0, None, "a"), Text(0, None, "b")],
        [Text(-1, None, "a")],
        [Text(1, 0, "a")],
        [Text(1, 2, "a"), Text(2, None, "b")],
    ],
)
def test_a_malformed_tree_is_refused_at_once(tiny_engine: Engine, nodes: list[Node]) -> None:
    """Ids that are taken or negative and parents that are not there raise in `extend`, and add nothing."""
    session = tiny_engine.open(lambda event: None)
    with pytest.raises(RequestError, match="node"):
        session.extend(nodes)
    session.extend([Text(0, None, "still fine")])
    session.close()


def test_no_event_comes_after_close(tiny_engine: Engine) -> None:
    """Closing aborts what runs; the pages come back, and the sink is left alone."""
    events: list[Event] = []
    started = threading.Event()

    def sink(event: Event) -> None:
        events.append(event)
        started.set()

    session = tiny_engine.open(sink)
    session.extend([Text(0, None, "go"), Generate(1, 0, LONG, stream=True), Generate(2, 1, LONG)])
    assert started.wait(60)
    session.close()
    count = len(events)
    session.close()
    run_tree(tiny_engine, [Text(0, None, "other"), Generate(1, 0, GREEDY)])
    assert len(events) == count
    tiny_engine.flush_cache()
    stats = tiny_engine.stats()
    assert (stats.running, stats.free_pages) == (0, stats.total_pages)
    with pytest.raises(EngineError, match="closed"):
        session.extend([Text(3, None, "late")])


def test_closing_from_many_threads_gives_everything_back(tiny_engine: Engine) -> None:
    """Generations, scores, many answers and requests whose grammars compile end within a step; others are untouched."""
    open_before = len(tiny_engine._host)  # clients of other tests may have left some open over HTTP
    expected = text_of(run_tree(tiny_engine, [Text(0, None, "The"), Generate(1, 0, GREEDY)]), 1)
    answers: list[str] = []

    def drop(worker: int) -> None:
        for turn in range(4):
            session = tiny_engine.open(lambda event: None)
            session.extend(abandoned(worker, turn))
            if turn % 2:
                answers.append(text_of(run_tree(tiny_engine, [Text(0, None, "The"), Generate(1, 0, GREEDY)]), 1))
            session.close()

    workers = [threading.Thread(target=drop, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers == [expected] * 6
    run_tree(tiny_engine, [Generate(0, None, GREEDY)])  # what was dropped ends within a step
    tiny_engine.flush_cache()
    stats = tiny_engine.stats()
    assert (stats.running, stats.waiting, stats.compiling, stats.free_pages) == (0, 0, 0, stats.total_pages)
    tiny_engine.check_invariants()
    wait_until(lambda: len(tiny_engine._host) <= open_before, "the news of what was dropped")


def abandoned(worker: int, turn: int) -> list[Node]:
    """A program of everything that takes long, with grammars that nobody has compiled before."""
    grammar = Grammar.regex(f"({worker}|{turn}|[a-z ]){{20,60}}")
    return [
        Text(0, None, f"Worker {worker} in turn {turn} "),
        Generate(1, 0, LONG, n=4, stream=True),
        Generate(2, 0, LONG, grammar, n=2),
        Select(3, 0, tuple(f"{word} and so on and on" for word in "abcdef"), "unconditional_likelihood_normalized"),
        Generate(4, 0, SamplingParams(max_tokens=400, ignore_eos=True, prompt_logprobs=5, stop_regex=("zz+q",))),
        Generate(5, 1, LONG),
        Reference(6, 0, 2),
        Generate(7, 6, LONG),
    ]


def test_a_sink_may_close_its_own_session(tiny_engine: Engine) -> None:
    """Closing from inside an event neither blocks nor breaks the engine."""
    done = threading.Event()

    def sink(event: Event) -> None:
        session.close()
        done.set()

    session = tiny_engine.open(sink)
    session.extend([Generate(0, None, LONG, stream=True)])
    assert done.wait(60)
    assert text_of(run_tree(tiny_engine, [Generate(0, None, GREEDY)]), 0)


@pytest.mark.parametrize("error", [ValueError("broken client"), SystemExit(1)])
def test_a_sink_that_raises_ends_its_session_alone(tiny_engine: Engine, error: BaseException) -> None:
    """An exception in one client's sink does not stop the others."""

    def sink(event: Event) -> None:
        raise error

    session = tiny_engine.open(sink)
    session.extend([Generate(0, None, GREEDY)])
    assert text_of(run_tree(tiny_engine, [Generate(0, None, GREEDY)]), 0)


def test_a_sink_may_ask_the_engine(tiny_engine: Engine) -> None:
    """The engine's thread answers its own questions instead of waiting for itself."""
    counts: list[int] = []

    def sink(event: Event) -> None:
        counts.append(tiny_engine.stats().total_pages + tiny_engine.flush_cache())
        done.set()

    done = threading.Event()
    session = tiny_engine.open(sink)
    session.extend([Generate(0, None, GREEDY)])
    assert done.wait(60)
    session.close()
    assert counts


def test_the_nodes_given_are_the_callers_again(tiny_engine: Engine) -> None:
    """Changing the list after `extend` returned changes nothing, though the engine has not looked at it yet."""
    listener, changed = Listener(), threading.Event()
    nodes: list[Node] = [Text(0, None, "a"), Generate(1, 0, GREEDY)]
    tiny_engine._send(lambda: assert_set(changed))
    session = tiny_engine.open(listener)
    session.extend(nodes)
    nodes.clear()
    changed.set()
    listener.wait([1])
    session.close()
    assert text_of(listener, 1)


def test_nodes_that_arrive_after_close_never_run(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread closes the session while `extend` sends, nothing is left running that nobody would abort."""
    session, send = tiny_engine.open(lambda event: None), tiny_engine._send

    def close_first(command: Any) -> None:
        monkeypatch.setattr(tiny_engine, "_send", send)
        session.close()
        send(command)

    monkeypatch.setattr(tiny_engine, "_send", close_first)
    session.extend([Generate(0, None, LONG)])
    stats = tiny_engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_seeds_make_answers_repeatable(tiny_engine: Engine) -> None:
    """The same seed gives the same text, whatever else is in the batch; another seed gives another."""
    params = SamplingParams(temperature=1, seed=11, max_tokens=16, ignore_eos=True)
    alone = text_of(run_tree(tiny_engine, [Generate(0, None, params)]), 0)
    crowd = [
        Generate(i, None, SamplingParams(temperature=1, seed=i, max_tokens=16, ignore_eos=True)) for i in range(20)
    ]
    listener = run_tree(tiny_engine, crowd)
    assert text_of(listener, 11) == alone
    assert len({text_of(listener, i) for i in range(20)}) > 15


def test_shutdown_fails_what_runs_and_refuses_more(tiny_model_folder: Any) -> None:
    """Waiting programs get an error, never a hang, and later calls say that the engine is gone."""
    engine = launch(str(tiny_model_folder), max_total_tokens=2000, processes=False)
    listener = Listener()
    session = engine.open(listener)
    session.extend([Generate(0, None, LONG), Generate(1, 0, LONG)])
    engine.shutdown()
    listener.wait([0, 1])
    assert failed(listener, 0).kind == "EngineError"
    for call in (lambda: engine.open(listener), lambda: session.extend([Text(2, None, "x")]), engine.stats):
        with pytest.raises(EngineError, match="shut down"):
            call()
    engine.shutdown()
    session.abort()
    session.close()
    session.abort()
    session.close()


def test_a_request_whose_grammar_compiles_too_long_fails_in_time(
    tiny_model_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that does nothing but wait for a grammar looks at its deadlines; nothing else has to wake it."""
    go_on = threading.Event()

    def compile_slowly(compiler: GrammarCompiler, grammar: Grammar) -> Any:
        go_on.wait(60)
        raise GrammarError("given up")

    with launch(str(tiny_model_folder), max_total_tokens=2000, processes=False) as engine:
        monkeypatch.setattr(GrammarCompiler, "__call__", compile_slowly)
        listener = Listener()
        session = engine.open(listener, SessionOptions(timeout_s=0.2))
        session.extend([Generate(0, None, GREEDY, Grammar.regex("[a-z]{3}"))])
        listener.wait([0])
        assert failed(listener, 0).kind == "RequestTimeoutError"
        go_on.set()


@pytest.mark.parametrize("kind", [MemoryError, SystemExit])
def test_a_failure_of_the_engine_is_told_to_everyone(
    tiny_model_folder: Any, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """An exception in the step loop ends every node with an error, and names the cause to later callers."""
    engine = launch(str(tiny_model_folder), max_total_tokens=2000, processes=False)

    def explode(plan: object) -> None:
        raise kind("out of memory")

    monkeypatch.setattr(engine._scheduler._runner, "launch", explode)
    listener = run_tree_until_failed(engine)
    assert "out of memory" in failed(listener, 0).message
    with pytest.raises(EngineError, match="out of memory"):
        engine.stats()
    engine.shutdown()


def run_tree_until_failed(engine: Engine) -> Listener:
    listener = Listener()
    engine.open(listener).extend([Generate(0, None, GREEDY)])
    listener.wait([0])
    return listener


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.parametrize("method", ["token_length_normalized", "unconditional_likelihood_normalized"])
def test_usage_of_a_select_counts_what_is_computed(tiny_engine: Engine, method: Any) -> None:
    """A token counts once that some choice goes on from, and for the unconditional method once more; no start token."""
    tiny_engine.flush_cache()
    choices = (" the", " there was")
    listener = run_tree(tiny_engine, [Text(0, None, "It is"), Select(1, 0, choices, method)])
    selected = listener.done[1]
    assert isinstance(selected, Selected)
    inner = {score.token_ids[:end] for score in selected.scores for end in range(1, len(score.token_ids))}
    assert inner
    alone = len(inner) if method.startswith("unconditional") else 0
    assert sum(usage.computed + usage.reused for usage in selected.usage) == selected.prompt_tokens + len(inner) + alone


def test_a_chain_of_ten_thousand_texts(tiny_engine: Engine) -> None:
    """A deep tree neither recurses nor copies what stands before each node."""
    chain: list[Node] = [Text(i, i - 1 if i else None, "a" if i % 100 == 0 else "") for i in range(10_000)]
    assert text_of(run_tree(tiny_engine, [*chain, Generate(10_000, 9_999, GREEDY)]), 10_000)
