"""The scheduler on a fake model that notices every wrong page: ends, order, aborts, fairness."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.fake_grammar import (
    ManualExecutor,
    scripted_chain,
)
from tests.fake_runner import TOKEN_BYTES, FakeModel, FakeStep, token
from tests.fakes import FakeEngine, expected_answer, make_request, spell, text_of
from tests.scheduler_examples import CODE, GRAMMARS, PREFIX, prompt, run_one, seed_where

from palmette.runtime.errors import EngineError, RequestAbortedError, RequestError
from palmette.runtime.request import Request

pytestmark = pytest.mark.usefixtures("both_loops")

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
    assert text_of(request).kept_ids == (tuple(request.output_ids[:-1].tolist()), "")


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
    """A result of another step than the one in flight is refused, and so is finishing a later step first."""
    engine = FakeEngine()
    engine.add(make_request("r", prompt(1)))
    first = engine.scheduler.launch_step()
    assert first is not None
    first.handle.sample()
    later = engine.scheduler.launch_step()
    assert later is not None
    with pytest.raises(EngineError, match="step 2 is finished, but it is not the oldest"):
        engine.scheduler.finish_step(later)
    wrong = dataclasses.replace(first.handle.result(), step=9)
    with (
        mock.patch.object(FakeStep, "result", return_value=wrong),
        pytest.raises(EngineError, match="result of step 9 came when step 1"),
    ):
        engine.scheduler.finish_step(first)


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


# -- abort ----------------------------------------------------------------------------------------------------------


def test_abort_at_any_time() -> None:
    """Aborted while compiling, waiting, prefilling or decoding: one finished update, an error, and the pages back."""
    executor = ManualExecutor()
    engine = FakeEngine(
        num_pages=1000, chunk_size=50, max_running_requests=2, grammars=GRAMMARS, executor=executor, policy="fcfs"
    )
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
    step = engine.scheduler.launch_step()
    assert step is not None
    engine.scheduler.sample_step(step)
    assert engine.scheduler.abort("r")
    engine.scheduler.finish_step(step)
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


# -- randomness, time, text ------------------------------------------------------------------------------------------


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
    engine = FakeEngine(overlap=False, max_running_requests=1)
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
    assert "".join(deltas) == text_of(request).text
    engine.check_answer(request)
