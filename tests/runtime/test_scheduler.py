"""The scheduler on a fake model that notices every wrong page: examples, by topic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.fake_grammar import (
    InlineExecutor,
    ManualExecutor,
    ScriptedCompiler,
    ScriptedGrammar,
    scripted_brackets,
    scripted_chain,
    scripted_repeat,
)
from tests.fake_runner import END_ID, TOKEN_BYTES, VOCABULARY, FakeModel, token
from tests.fakes import FakeEngine, expected_answer, make_request, spell

from palmette.constrained import Grammar, GrammarError, GrammarLimitError, UnsupportedGrammarError, compile_grammar
from palmette.runtime.errors import EngineError, RequestAbortedError, RequestError
from palmette.runtime.policy import MAX_OVERTAKES
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


# -- ends -----------------------------------------------------------------------------------------------------------


def test_max_tokens_ends_a_request() -> None:
    """The output has max_tokens tokens and the reason is length."""
    seed = seed_where(lambda answer: answer.finish_reason == "length", max_tokens=5)
    request = make_request("r", prompt(seed), max_tokens=5)
    run_one(request).check_answer(request)
    assert (request.num_output, request.finish_reason) == (5, "length")


def test_end_of_sequence_is_not_text() -> None:
    """An end token ends the output and is not part of its text or of the tokens that the text continues from."""
    seed = seed_where(lambda answer: answer.finish_reason == "stop" and len(answer.output) > 2)
    request = make_request("r", prompt(seed))
    run_one(request).check_answer(request)
    assert request.matched == request.output_ids[-1]
    assert request.text.kept_ids == (tuple(request.output_ids[:-1].tolist()), "")


def test_ignore_eos_goes_on() -> None:
    """With ignore_eos an end token is a token like any other."""
    seed = seed_where(lambda answer: answer.finish_reason == "stop", max_tokens=30)
    request = make_request("r", prompt(seed), max_tokens=30, ignore_eos=True)
    run_one(request).check_answer(request)
    assert request.finish_reason == "length"


def test_stop_token_ids_end_a_request() -> None:
    """A stop token ends the output, is not text, and is named as the match."""
    seed = seed_where(lambda answer: token("e") in answer.output[1:], max_tokens=30)
    request = make_request("r", prompt(seed), max_tokens=30, stop_token_ids=(token("e"),))
    run_one(request).check_answer(request)
    assert request.matched == token("e")


def test_min_tokens_holds_back_the_end() -> None:
    """No end token and no stop token before min_tokens."""
    params: dict[str, Any] = {"max_tokens": 40, "stop_token_ids": (token("e"), token("f"))}
    seed = seed_where(lambda answer: len(answer.output) < 6, **params)
    request = make_request("r", prompt(seed), min_tokens=20, **params)
    run_one(request).check_answer(request)
    assert request.num_output > 20


def test_stop_strings_across_tokens() -> None:
    """A stop string that several tokens spell ends the text before it, and nothing of it is streamed."""
    answer = expected_answer(make_request("r", prompt(11), max_tokens=30, ignore_eos=True), 4096)
    stop = spell(answer.output[6:9])
    request = make_request("r", prompt(11), max_tokens=30, ignore_eos=True, stop=(stop, "never"))
    engine = run_one(request)
    engine.check_answer(request)
    assert request.matched == stop
    assert stop not in engine.texts["r"]


def test_the_context_caps_max_tokens() -> None:
    """Prompt and output fit the context; the reason is length."""
    seed = seed_where(lambda answer: len(answer.output) > 10, max_tokens=30)
    request = make_request("r", prompt(seed), max_tokens=1000)
    run_one(request, context_length=10).check_answer(request)
    assert (request.num_output, request.finish_reason) == (4, "length")


def test_a_prompt_too_long_for_the_context_is_refused_with_the_numbers() -> None:
    """The request is refused when it is added, and nothing of it stays."""
    engine = FakeEngine(context_length=10)
    with pytest.raises(RequestError, match="the prompt has 10 tokens, but at most 9 fit"):
        engine.scheduler.add(make_request("r", prompt(1, 10)))
    assert not engine.scheduler.has_work


def test_logprobs_are_one_a_token() -> None:
    """Every output token has its own log-probability and as many of the likeliest as were asked for."""
    request = make_request("r", prompt(3), max_tokens=6, logprobs=2)
    run_one(request).check_answer(request)
    assert [entry.token_id for entry in request.logprobs] == request.output_ids.tolist()
    for index, entry in enumerate(request.logprobs):
        known = FakeModel().logprobs(request.token_ids[: len(request.prompt_ids) + index])
        assert entry.logprob == known[entry.token_id]
        assert [each.logprob for each in entry.top] == sorted(known.tolist(), reverse=True)[:2]


def test_a_seed_is_drawn_for_who_names_none() -> None:
    """Requests without a seed get different ones, the same again in an engine with the same seed."""
    seeds = []
    for _ in range(2):
        engine = FakeEngine(seed=7)
        made = [make_request(name, prompt(1), temperature=1.0, seed=None) for name in "ab"]
        engine.add(*made)
        engine.run()
        seeds.append([request.params.seed for request in made])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


# -- same answer ----------------------------------------------------------------------------------------------------


def mixed_requests() -> list[Request]:
    """Requests of every kind, many with a shared prefix."""
    made = [
        make_request(f"g{i}", PREFIX[: 9 * i] + prompt(i, 3 + i), max_tokens=20, temperature=float(i % 2), seed=i)
        for i in range(12)
    ]
    made += [make_request(f"s{i}", PREFIX[:50] + prompt(i, 8), kind="score", score_from=48 + i) for i in range(4)]
    made += [
        make_request(f"c{i}", PREFIX[:30] + prompt(i), grammar=g.grammar, max_tokens=30, repetition_penalty=1.0 + i % 2)
        for i, g in enumerate(GRAMMARS * 2)
    ]
    return made


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk_size", [1, 7, 2048])
@pytest.mark.parametrize("radix_cache", [True, False])
def test_the_answer_does_not_depend_on_the_way(page_size: int, chunk_size: int, radix_cache: bool) -> None:
    """Any page size, any chunk size, cache on and off: all answers are the model's."""
    requests = mixed_requests()
    engine = FakeEngine(
        num_pages=1600 // page_size,
        page_size=page_size,
        chunk_size=chunk_size,
        radix_cache=radix_cache,
        grammars=GRAMMARS,
        policy="lpm" if chunk_size == 7 else "fcfs",
    )
    engine.add(*requests)
    engine.run()
    for request in requests:
        engine.check_answer(request)
    engine.check_empty()


def test_no_step_computes_more_than_a_chunk() -> None:
    """Decodes and prefills share chunk_size tokens a step, decodes first."""
    engine = FakeEngine(num_pages=2000, chunk_size=16, keep_plans=True, grammars=GRAMMARS)
    engine.add(*mixed_requests())
    engine.run()
    assert max(len(plan.token_ids) for plan in engine.runner.plans) == 16
    for plan in engine.runner.plans:
        decodes = [int(n) for n, seq in zip(np.diff(plan.query_indptr), plan.seq_lens, strict=True) if n == 1 < seq]
        assert len(decodes) <= 16


def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    """A running request gets a token in every step of a chunked prefill."""
    engine = FakeEngine(num_pages=2000, chunk_size=32, keep_plans=True)
    short, long = make_request("short", prompt(1), max_tokens=30, ignore_eos=True), make_request("long", PREFIX)
    engine.add(short)
    engine.step()
    slot = short.slot
    engine.add(long)
    for _ in range(15):
        engine.step()
    assert all(slot in plan.slots for plan in engine.runner.plans)
    assert 0 < long.num_computed < 600
    engine.run()
    engine.check_answer(short)
    engine.check_answer(long)


def test_plans_are_by_slot_and_in_order() -> None:
    """A result of another step than the one in flight is refused."""
    engine = FakeEngine()
    engine.add(make_request("r", prompt(1)))
    plan = engine.scheduler.plan_step()
    assert plan is not None
    result = engine.runner.launch(plan).result()
    with pytest.raises(EngineError, match="result of step 9 came when step 1"):
        engine.scheduler.process(dataclasses.replace(result, step=9))


def test_max_running_requests() -> None:
    """No more requests run at once than there are slots, and all get their turn."""
    engine = FakeEngine(max_running_requests=3)
    requests = [make_request(str(i), prompt(i), max_tokens=4) for i in range(10)]
    engine.add(*requests)
    while engine.scheduler.can_step:
        engine.step()
        assert engine.scheduler.stats().running <= 3
    for request in requests:
        engine.check_answer(request)


# -- reuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_fork_computes_its_prefix_once(page_size: int) -> None:
    """Sixteen branches on 600 shared tokens compute them once; the other fifteen take them from the tree."""
    engine = FakeEngine(num_pages=2048 // page_size, page_size=page_size)
    branches = [make_request(str(i), [*PREFIX, 3 + i, 4], max_tokens=8, group="fork") for i in range(16)]
    engine.add(*branches)
    engine.run()
    shared = 600 // page_size * page_size
    assert [branch.cached_tokens for branch in branches] == [0] + [shared] * 15
    assert engine.runner.computed == sum(branch.computed_tokens for branch in branches)
    prompts = engine.runner.computed - sum(branch.num_output - 1 for branch in branches)
    assert prompts == 602 + 15 * (602 - shared)
    for branch in branches:
        engine.check_answer(branch)


def test_branches_run_side_by_side() -> None:
    """Once the prefix is there, all siblings are admitted in one step."""
    engine = FakeEngine(num_pages=2048)
    engine.add(
        *[make_request(str(i), [*PREFIX, 3 + i], max_tokens=40, ignore_eos=True, group="fork") for i in range(16)]
    )
    engine.step()
    assert engine.scheduler.stats().running == 1
    engine.step()
    assert engine.scheduler.stats().running == 16


def test_who_waits_for_a_prefix_goes_on_when_it_is_never_computed() -> None:
    """If the request that computes the shared prefix is aborted halfway, the next takes over from where it was."""
    engine = FakeEngine(num_pages=2048, chunk_size=100)
    branches = [make_request(str(i), [*PREFIX, 3 + i], max_tokens=4) for i in range(4)]
    engine.add(*branches)
    engine.step()
    engine.step()
    assert engine.scheduler.stats().running == 1
    assert engine.scheduler.abort("0")
    engine.run()
    assert branches[1].cached_tokens == 200
    for branch in branches[1:]:
        engine.check_answer(branch)


def test_the_next_turn_reuses_prompt_and_output() -> None:
    """A conversation's next turn finds the whole previous turn, but for the last token, which nobody computed."""
    engine = FakeEngine()
    first = make_request("1", prompt(5, 20), max_tokens=10, ignore_eos=True)
    engine.add(first)
    engine.run()
    second = make_request("2", [*first.token_ids.tolist(), 7, 8], max_tokens=3)
    engine.add(second)
    engine.run()
    assert second.cached_tokens == 29
    engine.check_answer(second)


def test_the_last_prompt_token_is_always_computed() -> None:
    """The same prompt again computes one token."""
    engine = FakeEngine()
    for name in "ab":
        request = make_request(name, prompt(5, 20), max_tokens=2)
        engine.add(request)
        engine.run()
        engine.check_answer(request)
    assert request.cached_tokens == 19


def test_choices_share_their_prompt() -> None:
    """Score requests on one prompt compute it once, and what they add each."""
    engine = FakeEngine(num_pages=1024)
    choices = [make_request(str(i), [*PREFIX[:100], 3 + i, 5, 6], kind="score", score_from=100) for i in range(8)]
    engine.add(*choices)
    engine.run()
    assert [choice.cached_tokens for choice in choices] == [0] + [99] * 7
    assert engine.runner.computed == 102 + 7 * 3
    for choice in choices:
        engine.check_answer(choice)


def test_flush_drops_what_is_not_in_use() -> None:
    """Flushing under a running request keeps its pages."""
    engine = FakeEngine()
    engine.add(make_request("a", prompt(1, 20), max_tokens=2, ignore_eos=True))
    engine.run()
    running = make_request("b", prompt(2, 20), max_tokens=9, ignore_eos=True)
    engine.add(running)
    engine.step()
    assert engine.scheduler.flush_cache() == 21
    engine.run()
    engine.check_answer(running)


# -- memory ---------------------------------------------------------------------------------------------------------


def crowded(num_pages: int = 60, **settings: Any) -> tuple[FakeEngine, list[Request]]:
    """An engine that is promised few tokens and gets many: estimates are far too low, so it must retract."""
    engine = FakeEngine(num_pages=num_pages, grammars=GRAMMARS, **settings)
    engine.scheduler._estimate.ratio = 0.0
    made = [
        make_request(
            str(i), prompt(i, 8), max_tokens=25, ignore_eos=True, temperature=1.0, seed=i, presence_penalty=0.5
        )
        for i in range(5)
    ]
    made.append(make_request("w", prompt(9, 8), max_tokens=25, grammar=WORD.grammar))
    return engine, made


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("radix_cache", [True, False])
def test_retraction_keeps_output_stream_and_matcher(page_size: int, radix_cache: bool) -> None:
    """Retracted requests go on where they were: same random stream, same penalties, same grammar state."""
    engine, requests = crowded(60 // page_size, page_size=page_size, radix_cache=radix_cache)
    engine.add(*requests)
    engine.run()
    assert engine.scheduler.stats().retractions > 0
    assert sum(request.retractions for request in requests) == engine.scheduler.stats().retractions
    for request in requests:
        engine.check_answer(request)
    engine.check_empty()


def test_the_oldest_is_never_retracted() -> None:
    """The newest request gives way, so the oldest always gets on."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    assert requests[0].retractions == 0


def test_a_retraction_raises_the_estimate() -> None:
    """The engine learns to keep more room."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    assert engine.scheduler._estimate.ratio > 0.1


def test_scores_survive_a_retraction() -> None:
    """A score request that is retracted between chunks has every score once."""
    engine = FakeEngine(num_pages=70, chunk_size=16)
    engine.scheduler._estimate.ratio = 0.0
    decode = make_request("d", prompt(1), max_tokens=40, ignore_eos=True)
    score = make_request("s", PREFIX[:60], kind="score", score_from=2)
    engine.add(decode, score)
    engine.step()
    engine.step()
    assert 0 < len(score.score_logprobs) < 58
    engine.scheduler._retract(score)
    engine.run()
    engine.check_answer(score)
    engine.check_answer(decode)


def test_a_lone_request_that_cannot_fit_fails_with_the_sizes() -> None:
    """When the pool is full and nothing else runs, the request fails; the engine goes on."""
    engine = FakeEngine(num_pages=12)
    large, small = (
        make_request("l", prompt(1), max_tokens=50, ignore_eos=True),
        make_request("s", prompt(2), max_tokens=3),
    )
    engine.add(large, small)
    engine.run()
    assert large.status == "failed"
    assert isinstance(large.error, RequestError)
    assert "needs 13 tokens of KV cache, but the pool holds 12" in str(large.error)
    engine.check_answer(small)
    engine.check_empty()


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """Such a request would wait for ever."""
    with pytest.raises(RequestError, match="600 tokens, but the KV pool holds 100"):
        FakeEngine(num_pages=100).scheduler.add(make_request("r", PREFIX))


def test_forced_text_larger_than_the_pool_fails_the_request() -> None:
    """A request that outgrows the pool before it runs does not wait for ever either."""
    chain = scripted_chain("long", [[token("a")]] * 10 + [DIGITS])
    engine = FakeEngine(num_pages=12, grammars=[chain])
    request = make_request("r", prompt(1), grammar=chain.grammar)
    engine.add(request)
    engine.run()
    assert "needs 16 tokens of KV cache, but the pool holds 12" in str(request.error)
    engine.check_empty()


# -- abort ----------------------------------------------------------------------------------------------------------


def test_abort_at_any_time() -> None:
    """Aborted while compiling, waiting, prefilling or decoding: one finished update, an error, and the pages back."""
    executor = ManualExecutor()
    engine = FakeEngine(num_pages=1000, chunk_size=50, max_running_requests=2, grammars=GRAMMARS, executor=executor)
    requests = {
        "decoding": make_request("decoding", prompt(1), ignore_eos=True),
        "prefilling": make_request("prefilling", PREFIX),
        "waiting": make_request("waiting", prompt(3)),
        "compiling": make_request("compiling", prompt(4), grammar=CODE.grammar),
    }
    engine.add(*requests.values())
    engine.step()
    engine.step()
    assert [request.status for request in requests.values()] == ["running", "running", "waiting", "waiting_grammar"]
    for name in requests:
        assert engine.scheduler.abort(name)
    assert {update.request.id for update in engine.step() if update.finished} == requests.keys()
    for request in requests.values():
        assert request.status == "aborted"
        assert isinstance(request.error, RequestAbortedError)
    executor.run_next()
    engine.run()
    engine.check_empty()


def test_abort_is_exact() -> None:
    """An unknown, a finished and a prefix of an id are no-ops."""
    engine = FakeEngine()
    request = make_request("r10", prompt(1), max_tokens=3)
    engine.add(request)
    assert not engine.scheduler.abort("r1")
    engine.run()
    engine.check_answer(request)
    assert not engine.scheduler.abort("r10")
    assert not engine.scheduler.can_step


def test_the_step_in_flight_of_an_aborted_request_is_dropped() -> None:
    """Its result changes nothing, and its pages come back after that step."""
    engine = FakeEngine()
    request, other = make_request("r", prompt(1)), make_request("o", prompt(2))
    engine.add(request, other)
    plan = engine.scheduler.plan_step()
    assert plan is not None
    assert engine.scheduler.abort("r")
    engine.scheduler.process(engine.runner.launch(plan).result())
    assert request.num_output == 0
    assert len(request.page_table.pages) == 6
    engine.run()
    assert request.status == "aborted"
    assert request.num_output == 0
    engine.check_answer(other)
    engine.check_empty()


def test_an_active_id_cannot_be_used_again() -> None:
    """A reused id is refused while the first request is active, and allowed after."""
    engine = FakeEngine()
    engine.add(make_request("r", prompt(1), max_tokens=2))
    with pytest.raises(RequestError, match="'r' is active"):
        engine.scheduler.add(make_request("r", prompt(2)))
    engine.run()
    engine.add(make_request("r", prompt(2), max_tokens=2))
    engine.run()


# -- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_nobody_starves(policy: str) -> None:
    """A request without a cached prefix is overtaken by a bounded number of better matches, however many come."""
    engine = FakeEngine(num_pages=400, max_running_requests=2, policy=policy)
    engine.add(make_request("warm", PREFIX[:100], max_tokens=1))
    engine.run()
    starved = make_request("starved", prompt(77, 20), max_tokens=2)
    engine.add(*[make_request(f"h{i}", [*PREFIX[:100], 3 + i], max_tokens=3) for i in range(4)], starved)
    later = 0
    while starved.started_s is None:
        engine.add(make_request(f"l{later}", [*PREFIX[:100], 3 + later % 40, later % 7 + 3], max_tokens=3))
        later += 1
        engine.step()
        assert later < 20 * MAX_OVERTAKES
    assert starved.overtaken <= MAX_OVERTAKES + 2
    if policy == "lpm":
        assert starved.overtaken >= MAX_OVERTAKES
    else:
        assert starved.overtaken == 0
    engine.run()
    engine.check_answer(starved)


def test_a_large_request_gets_its_memory() -> None:
    """Small requests behind one that does not fit yet are not admitted before it."""
    engine = FakeEngine(num_pages=200, policy="fcfs")
    running = make_request("run", prompt(1, 100), max_tokens=20, ignore_eos=True)
    engine.add(running)
    engine.step()
    large, small = make_request("large", prompt(2, 150), max_tokens=2), make_request("small", prompt(3), max_tokens=2)
    engine.add(large, small)
    engine.run()
    assert [request.id for request in engine.finished].index("large") == 1


def test_lpm_runs_the_warm_request_first() -> None:
    """With one slot, the request whose prefix is cached goes before an older cold one."""
    for policy, order in (("lpm", ["warm", "cold"]), ("fcfs", ["cold", "warm"])):
        engine = FakeEngine(num_pages=400, max_running_requests=1, policy=policy)
        engine.add(make_request("first", PREFIX[:80], max_tokens=1))
        engine.run()
        engine.add(make_request("cold", prompt(5, 80), max_tokens=2), make_request("warm", PREFIX[:90], max_tokens=2))
        engine.run()
        assert [request.id for request in engine.finished][1:] == order


# -- grammars -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_constrained_answers_match(grammar: Any, jump_forward: bool) -> None:
    """Every grammar is matched in full, with and without jumping over forced text."""
    for seed in range(8):
        request = make_request("r", prompt(seed), grammar=grammar.grammar, max_tokens=40)
        run_one(request, jump_forward=jump_forward).check_answer(request)


def test_forced_text_is_not_sampled() -> None:
    """Forced tokens cost no step of their own: they are appended and computed in one longer row."""
    request = make_request("r", prompt(1), grammar=CALL.grammar)
    engine = run_one(request)
    assert request.forced == 4
    assert engine.scheduler.stats().steps == 1
    assert run_one(make_request("r", prompt(1), grammar=CALL.grammar), jump_forward=False).scheduler.stats().steps == 5


def test_a_fully_forced_answer_needs_no_step() -> None:
    """Where the grammar leaves no choice at all the answer is there at once, and a jump ends at a final state."""
    request = make_request("r", prompt(1), grammar=FIXED.grammar)
    engine = run_one(request)
    assert (engine.texts["r"], request.finish_reason, request.forced) == ("xy", "grammar", 2)
    assert engine.runner.computed == 0


def test_no_jump_where_logprobs_are_wanted() -> None:
    """Every token of a request with logprobs is sampled, so that it has one."""
    request = make_request("r", prompt(1), grammar=CALL.grammar, logprobs=0)
    run_one(request).check_answer(request)
    assert request.forced == 0
    assert len(request.logprobs) == 5


@pytest.mark.parametrize("max_tokens", range(1, 40))
def test_constrained_answers_are_complete(max_tokens: int) -> None:
    """However short the budget, and though one token may lengthen the shortest ending, the answer matches in full."""
    for seed in range(4):
        request = make_request("r", prompt(seed), grammar=BRACKETS.grammar, max_tokens=max_tokens, presence_penalty=0.1)
        run_one(request).check_answer(request)


@pytest.mark.parametrize(
    "pattern",
    [r"[ab]{2,}(c\.[a-f]{9})*", r"(the |[a-z]{12})\.\n?", r"é([0-9]{3}(\.[0-9]+)?)+"],
    ids=["repeat", "branches", "utf-8"],
)
def test_real_grammars_are_matched_in_full(pattern: str) -> None:
    """With the real compiler, every answer matches its pattern whatever the budget, or fails before it runs."""
    engine = FakeEngine(num_pages=2000, compiler=lambda g: compile_grammar(g, VOCABULARY), jump_forward=False)
    requests = [
        make_request(
            f"{n}/{seed}", prompt(seed), grammar=Grammar.regex(pattern), max_tokens=n, temperature=1.0, seed=seed
        )
        for n in range(1, 30)
        for seed in range(3)
    ]
    engine.add(*requests)
    engine.run()
    assert sum(request.status == "finished" for request in requests) > 40
    for request in requests:
        if request.status == "failed":
            assert isinstance(request.error, RequestError)
            assert request.computed_tokens == 0
        else:
            assert re.fullmatch(pattern, engine.texts[request.id])
    engine.check_empty()


@pytest.mark.parametrize("seed", range(4))
def test_a_token_that_lengthens_the_ending_beyond_a_large_budget_is_not_taken(seed: int) -> None:
    """However much of the budget is left, the answer matches in full."""
    far = scripted_brackets("far", 1500)
    engine = FakeEngine(num_pages=2048, grammars=[far], jump_forward=False)
    request = make_request("r", prompt(seed), grammar=far.grammar, max_tokens=1300)
    engine.add(request)
    engine.run()
    engine.check_answer(request)


def test_a_grammar_that_met_its_limits_is_compiled_anew() -> None:
    """Its states are shared, so the next request that asks for it must not get the full ones."""

    class Limited(ScriptedGrammar):
        def advance(self, state: int, token_id: int) -> int | None:
            raise GrammarLimitError("the grammar met too many states")

    compiler = ScriptedCompiler(Limited(CODE.grammar, CODE.transitions, [3]))
    engine = FakeEngine(compiler=compiler)
    for name in ("first", "second"):
        request = make_request(name, prompt(1), grammar=CODE.grammar)
        engine.add(request)
        engine.run()
        assert isinstance(request.error, GrammarLimitError)
    assert len(compiler.calls) == 2
    engine.check_empty()


def test_a_budget_too_short_for_the_grammar_is_an_error_with_the_number() -> None:
    """If not even the shortest match fits, the request fails before it runs and says how many tokens it takes."""
    request = make_request("r", prompt(1), grammar=CALL.grammar, max_tokens=4)
    engine = run_one(request)
    assert isinstance(request.error, RequestError)
    assert "takes 5 tokens, but max_tokens=4; allow at least 5" in str(request.error)
    assert engine.runner.computed == 0
    request = make_request("r", prompt(1), grammar=CALL.grammar)
    run_one(request, context_length=9)
    assert "max_tokens=128, of which 3 fit the context" in str(request.error)


def test_a_complete_grammar_wins_over_min_tokens() -> None:
    """min_tokens does not keep a finished grammar going."""
    request = make_request("r", prompt(1), grammar=CODE.grammar, min_tokens=10)
    run_one(request).check_answer(request)
    assert (request.num_output, request.finish_reason) == (3, "grammar")


def test_stop_strings_end_constrained_text_only_where_the_grammar_accepts() -> None:
    """A stop string in an incomplete answer is ordinary text; in a complete one it ends it."""
    stops = tuple("0123456789")
    request = make_request("r", prompt(1), grammar=CODE.grammar, stop=stops)
    engine = run_one(request)
    assert len(engine.texts["r"]) == 3
    assert request.finish_reason == "grammar"
    request = make_request("r", prompt(2), grammar=WORD.grammar, stop=("a", "b", "c"))
    engine = run_one(request)
    assert request.finish_reason == "stop"
    assert len(engine.texts["r"]) >= 2


def test_stop_tokens_end_constrained_text_only_where_the_grammar_accepts() -> None:
    """The same holds for stop token ids."""
    letters = tuple(token(letter) for letter in "abc")
    request = make_request("r", prompt(1), grammar=WORD.grammar, stop_token_ids=letters)
    engine = run_one(request)
    assert len(engine.texts["r"]) == 2
    assert request.finish_reason == "stop"


def test_interleaved_grammars_do_not_mix() -> None:
    """Rows of different grammars and of none, in changing batches and a small mask table, keep their own masks."""
    engine = FakeEngine(num_pages=800, grammars=GRAMMARS, mask_rows=12, max_running_requests=8, chunk_size=40)
    requests = [
        make_request(f"{i}/{j}", prompt(i), temperature=1.0, seed=i, max_tokens=20, grammar=grammar)
        for i in range(7)
        for j, grammar in enumerate([*(scripted.grammar for scripted in GRAMMARS), None])
    ]
    for request in requests:
        engine.add(request)
        engine.step()
    engine.run()
    for request in requests:
        engine.check_answer(request)


def test_a_full_mask_table_fails_that_request_only() -> None:
    """Who gets no row fails with an error; who has one goes on, and the rows come back."""
    engine = FakeEngine(grammars=GRAMMARS, mask_rows=1)
    requests = [make_request(g.grammar.source, prompt(1), grammar=g.grammar) for g in (CODE, WORD)]
    engine.add(*requests)
    engine.run()
    engine.check_answer(requests[0])
    assert requests[1].status == "failed"
    assert "mask table" in str(requests[1].error)
    again = make_request("again", prompt(1), grammar=WORD.grammar)
    engine.add(again)
    engine.run()
    engine.check_answer(again)
    engine.check_empty()


def test_an_exception_in_a_matcher_fails_that_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in a grammar's automaton ends its request with the cause; others go on."""
    broken = scripted_chain("broken", [DIGITS, DIGITS])

    def advance(state: int, token_id: int) -> int:
        raise ZeroDivisionError("defect")

    monkeypatch.setattr(broken, "advance", advance)
    engine = FakeEngine(grammars=[broken, CODE])
    bad, good = (make_request(g.grammar.source, prompt(1), grammar=g.grammar) for g in (broken, CODE))
    engine.add(bad, good)
    engine.run()
    assert isinstance(bad.error, EngineError)
    assert isinstance(bad.error.__cause__, ZeroDivisionError)
    engine.check_answer(good)
    engine.check_empty()


def test_a_bad_grammar_fails_its_request_only() -> None:
    """The compiler's error is the request's."""
    error = UnsupportedGrammarError("no lookbehind", pointer="@3")
    bad = Grammar.regex("bad")
    engine = FakeEngine(compiler=ScriptedCompiler(CODE, failing={bad: error}), grammars=[CODE])
    requests = [make_request("a", prompt(1), grammar=bad), make_request("b", prompt(2), grammar=CODE.grammar)]
    engine.add(*requests)
    engine.run()
    assert requests[0].error is error
    assert isinstance(error, GrammarError)
    engine.check_answer(requests[1])


def test_a_compiling_grammar_blocks_nobody() -> None:
    """Others run while a grammar compiles; with nothing else to do the scheduler says that it cannot step."""
    executor = ManualExecutor()
    engine = FakeEngine(grammars=GRAMMARS, executor=executor)
    woken: list[bool] = []
    engine.scheduler.on_grammar_ready(lambda: woken.append(engine.scheduler.can_step))
    slow, quick = make_request("slow", prompt(1), grammar=CODE.grammar), make_request("quick", prompt(2), max_tokens=3)
    engine.add(slow, quick)
    engine.run()
    assert [request.id for request in engine.finished] == ["quick"]
    assert engine.scheduler.has_work
    assert not engine.scheduler.can_step
    assert engine.scheduler.stats().compiling == 1
    executor.run_next()
    assert woken == [True]
    engine.run()
    engine.check_answer(slow)


def test_an_engine_without_grammars_refuses_them() -> None:
    """A request with a grammar is refused where there is no mask table; it never runs unconstrained."""
    engine = FakeEngine()
    engine.scheduler._mask_table = None
    with pytest.raises(RequestError, match="without grammars"):
        engine.scheduler.add(make_request("r", prompt(1), grammar=CODE.grammar))


def test_close_stops_compiling() -> None:
    """Closing shuts the grammar queue's executor down."""
    engine = FakeEngine(executor=InlineExecutor(), grammars=GRAMMARS)
    engine.scheduler.close()
    assert not engine.scheduler.has_work


def test_seeded_draws_do_not_depend_on_neighbours() -> None:
    """A seeded random request gives the same answer alone and in any batch."""
    alone = make_request("r", prompt(1), temperature=1.0, seed=3, max_tokens=15)
    run_one(alone)
    crowd = [make_request(str(i), prompt(i), temperature=1.0, seed=i, max_tokens=15) for i in range(10)]
    engine = FakeEngine(num_pages=400)
    engine.add(*crowd[:5], again := make_request("r", prompt(1), temperature=1.0, seed=3, max_tokens=15), *crowd[5:])
    engine.run()
    assert again.output_ids.tolist() == alone.output_ids.tolist()


def test_times_come_from_the_clock() -> None:
    """Arrival, start and end are told by the injected clock."""
    engine = FakeEngine(max_running_requests=1)
    requests = [make_request(str(i), prompt(i), max_tokens=2, ignore_eos=True) for i in range(2)]
    engine.add(*requests)
    while engine.scheduler.can_step:
        engine.clock.time_s += 1
        engine.step()
    assert [(r.arrived_s, r.started_s, r.ended_s) for r in requests] == [(0, 1, 2), (0, 3, 4)]


def test_texts_are_whole_characters() -> None:
    """The deltas join to the text, emoji included, whatever the stop strings hold back."""
    emoji = [TOKEN_BYTES.index(b"\xf0\x9f"), TOKEN_BYTES.index(b"\x98\x80")]
    chain = scripted_chain("emoji", [emoji[:1], emoji[1:], [token("é")], [token("a"), token("b")]])
    request = make_request("r", prompt(1), grammar=chain.grammar, stop=("é!",), logprobs=0)
    engine = FakeEngine(grammars=[chain])
    engine.add(request)
    deltas: list[str] = []
    while engine.scheduler.can_step:
        deltas += [update.text for update in engine.step() if update.text]
    assert deltas[0] == "\U0001f600"
    assert "".join(deltas) == request.text.text
    engine.check_answer(request)


def test_end_ids_of_a_constrained_answer() -> None:
    """Where the grammar accepts, an end token of either kind ends it, with ignore_eos too."""
    for ignore_eos in (False, True):
        request = make_request("r", prompt(4), grammar=WORD.grammar, ignore_eos=ignore_eos, max_tokens=200)
        run_one(request)
        assert request.finish_reason == "stop"
        assert request.matched in (END_ID, 2)
        assert request.num_output >= 3


def tokens_of(requests: Sequence[Request]) -> int:
    return sum(request.computed_tokens for request in requests)


def test_computed_tokens_are_counted_by_request() -> None:
    """What the runner computed is what the requests say they took."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    assert tokens_of(requests) == engine.runner.computed
