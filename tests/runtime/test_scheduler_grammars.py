"""The scheduler on a fake model: requests that are held to a grammar."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.fake_grammar import (
    InlineExecutor,
    ManualExecutor,
    ScriptedCompiler,
    ScriptedGrammar,
    scripted_brackets,
    scripted_chain,
)
from tests.fake_runner import END_ID, VOCABULARY, FakeModel, token
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import BRACKETS, CALL, CODE, DIGITS, FIXED, GRAMMARS, WORD, prompt, run_one

from palmette.constrained import Grammar, GrammarError, GrammarLimitError, UnsupportedGrammarError, compile_grammar
from palmette.runtime.batch import StepHandle, StepMasks, StepPlan, StepResult, UInt32Array
from palmette.runtime.errors import EngineError, RequestError


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_constrained_answers_match(grammar: Any, jump_forward: bool) -> None:
    """Every grammar is matched in full, with and without jumping over forced text."""
    for seed in range(8):
        request = make_request("r", prompt(seed), grammar=grammar.grammar, max_tokens=40)
        run_one(request, jump_forward=jump_forward).check_answer(request)


pytestmark = pytest.mark.usefixtures("both_loops")


def test_forced_text_is_not_sampled() -> None:
    """Forced tokens cost no step of their own: they are appended and computed in one longer row."""
    request = make_request("r", prompt(1), grammar=CALL.grammar)
    engine = run_one(request, overlap=False)
    assert request.forced == 4
    assert engine.scheduler.stats().steps == 1
    sampled = run_one(make_request("r", prompt(1), grammar=CALL.grammar), jump_forward=False, overlap=False)
    assert sampled.scheduler.stats().steps == 5


def test_a_fully_forced_answer_needs_no_step() -> None:
    """Where the grammar leaves no choice at all the answer is there at once, and a jump ends at a final state."""
    request = make_request("r", prompt(1), grammar=FIXED.grammar)
    engine = run_one(request)
    assert (engine.texts["r"], request.finish_reason, request.forced) == ("xy", "grammar", 2)
    assert engine.runner.computed == 0


@pytest.mark.parametrize("settings", [{}, {"chunk_size": 1}, {"chunk_size": 3, "radix_cache": False}])
def test_forced_tokens_have_their_logprobs(settings: dict[str, Any]) -> None:
    """They are scored by the step that computes them; the last token of an answer is sampled, so that there is one."""
    for grammar, count in ((CALL, 3), (FIXED, 1)):
        request = make_request("r", prompt(1), grammar=grammar.grammar, logprobs=2)
        run_one(request, **settings).check_answer(request)
        assert request.forced == count
        assert [entry.token_id for entry in request.logprobs] == request.output_ids.tolist()
        for place, entry in enumerate(request.logprobs, len(request.prompt_ids)):
            known = FakeModel().logprobs(request.token_ids[:place])
            assert entry.logprob == known[entry.token_id]
            assert [each.logprob for each in entry.top] == sorted(known.tolist(), reverse=True)[:2]


@pytest.mark.parametrize("asked", [{"stop": ("q",)}, {"stop_regex": ("q",)}])
def test_no_jump_with_logprobs_where_text_may_end_it(asked: dict[str, Any]) -> None:
    """A stop inside forced text would end the answer before its tokens are scored, so all are sampled."""
    request = make_request("r", prompt(1), grammar=CALL.grammar, logprobs=0, **asked)
    run_one(request).check_answer(request)
    assert request.forced == 0
    assert len(request.logprobs) == request.num_output


def test_a_retracted_request_keeps_the_logprobs_of_forced_tokens() -> None:
    """What is computed again after a retraction is not scored again."""
    chain = scripted_chain("long", [[token(letter)] for letter in "abcd"] + [[token("x"), token("y")]] * 25)
    engine = FakeEngine(grammars=[chain], num_pages=60, chunk_size=8)
    engine.scheduler._estimate.ratio = 0.0
    made = [
        make_request(name, prompt(i), grammar=chain.grammar, logprobs=1, max_tokens=34) for i, name in enumerate("ab")
    ]
    engine.add(*[make_request(f"other{i}", prompt(3 + i), max_tokens=40, ignore_eos=True) for i in range(2)], *made)
    engine.run()
    assert all(request.forced for request in made)
    assert sum(request.retractions for request in made) > 0
    for request in made:
        assert [entry.token_id for entry in request.logprobs] == request.output_ids.tolist()


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


def test_a_grammar_that_meets_its_limits_in_the_middle_fails_its_request_only() -> None:
    """The step goes on with the others, the pages come back, and the grammar is compiled anew for the next."""

    class Limited(ScriptedGrammar):
        def mask(self, state: int) -> UInt32Array:
            if state == 2:
                raise GrammarLimitError("the mask takes too long")
            return super().mask(state)

    compiler = ScriptedCompiler(Limited(CODE.grammar, CODE.transitions, [3]), WORD)
    engine = FakeEngine(compiler=compiler, grammars=[WORD])
    bad, good, again = (
        make_request(name, prompt(seed), grammar=scripted.grammar, max_tokens=20)
        for seed, (name, scripted) in enumerate((("bad", CODE), ("good", WORD), ("again", CODE)))
    )
    engine.add(bad, good)
    engine.run()
    engine.add(again)
    engine.run()
    for request in (bad, again):
        assert isinstance(request.error, GrammarLimitError)
        assert request.num_output == 2
    engine.check_answer(good)
    assert compiler.calls.count(CODE.grammar) == 2
    engine.check_empty()


def test_the_next_step_is_prepared_while_the_model_runs() -> None:
    """Between the launch of a step and its result, compiled grammars begin and the masks they need first are found."""
    calls: list[str] = []
    executor = ManualExecutor()

    class Telling(ScriptedGrammar):
        def mask(self, state: int) -> UInt32Array:
            calls.append(f"mask {state}")
            return super().mask(state)

    class TellingStep:
        def __init__(self, step: StepHandle) -> None:
            self._step = step

        def sample(self, masks: StepMasks | None = None) -> None:
            self._step.sample(masks)

        def result(self) -> StepResult:
            calls.append("result")
            return self._step.result()

    class TellingRunner:
        def launch(self, plan: StepPlan) -> TellingStep:
            calls.append("launch")
            executor.run_next()  # a grammar is done while the model computes
            return TellingStep(engine.runner.launch(plan))

    telling = Telling(CODE.grammar, CODE.transitions, [3])
    engine = FakeEngine(overlap=False, grammars=[CODE], compiler=ScriptedCompiler(telling), executor=executor)
    engine.scheduler._runner = TellingRunner()
    request = make_request("held", prompt(2), grammar=CODE.grammar)
    engine.add(make_request("free", prompt(1), max_tokens=4, ignore_eos=True), request)
    engine.step()
    assert calls == ["launch", "mask 0", "result"]
    engine.run()
    engine.check_answer(request)


def test_a_mask_that_fails_while_it_is_prepared_fails_its_request_when_it_is_needed() -> None:
    """What goes wrong ahead of time is not lost, and concerns nobody else."""
    broken = scripted_chain("broken", [DIGITS])
    error = GrammarLimitError("the mask takes too long")

    class Limited(ScriptedGrammar):
        def mask(self, state: int) -> UInt32Array:
            raise error

    engine = FakeEngine(
        grammars=[CODE], compiler=ScriptedCompiler(Limited(broken.grammar, broken.transitions, [1]), CODE)
    )
    bad, good = (make_request(g.grammar.source, prompt(1, 30), grammar=g.grammar) for g in (broken, CODE))
    engine.add(good)
    engine.step()
    engine.add(bad)
    engine.run()
    assert bad.error is error
    engine.check_answer(good)
    engine.check_empty()


def test_an_answer_may_be_cut_off_where_that_is_asked_for() -> None:
    """Without always_complete the budget ends the answer anywhere, even one that could never be complete."""
    request = make_request("r", prompt(1), grammar=CALL.grammar, max_tokens=4, always_complete=False)
    run_one(request, jump_forward=False)
    assert (request.status, request.finish_reason, request.num_output) == ("finished", "length", 4)
    cut = 0
    for seed in range(12):
        request = make_request("r", prompt(seed), grammar=BRACKETS.grammar, max_tokens=7, always_complete=False)
        run_one(request)
        assert request.status == "finished"
        cut += not BRACKETS.matches(request.output_ids.tolist())
    assert cut


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


def test_the_row_of_a_request_that_is_aborted_comes_back() -> None:
    """Though what its step samples, in flight by then, is dropped; every step checks who holds which row."""
    engine = FakeEngine(grammars=GRAMMARS, mask_rows=1)
    for number in range(3):
        request = make_request(str(number), prompt(1), grammar=WORD.grammar)
        engine.add(request)
        engine.step()
        assert engine.scheduler.abort(request.id)
        engine.run()
        assert request.status == "aborted"
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


def test_end_ids_of_a_constrained_answer() -> None:
    """Where the grammar accepts, an end token of either kind ends it, with ignore_eos too."""
    for ignore_eos in (False, True):
        request = make_request("r", prompt(4), grammar=WORD.grammar, ignore_eos=ignore_eos, max_tokens=200)
        run_one(request)
        assert request.finish_reason == "stop"
        assert request.matched in (END_ID, 2)
        assert request.num_output >= 3
