"""The laws of the scheduler under random load: right answers, nothing lost, nobody forgotten."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.fake_grammar import ManualExecutor, ScriptedCompiler, scripted_brackets, scripted_chain, scripted_repeat
from tests.fake_runner import BROKEN, BrokenModel, token
from tests.fakes import FakeEngine, make_request, make_score, spell
from tests.program_calls import check_forgotten

from palmette.constrained import Grammar, GrammarError
from palmette.runtime.admission import OutputEstimate
from palmette.runtime.batch import NOT_FINITE
from palmette.runtime.errors import EngineError, RequestError, RequestTimeoutError
from palmette.runtime.messages import ProgramPlace
from palmette.runtime.request import Request

DIGITS = [token(digit) for digit in "0123456789"]
GRAMMARS = [
    scripted_chain("call", [[token("a")], [token("b")], DIGITS, [token("c")], DIGITS]),
    scripted_repeat("word", [token(letter) for letter in "abc"], least=2),
    scripted_brackets("brackets", 6),
]
BAD = Grammar.regex("bad")
PROGRAMS = ["a0", "a1", "b0", "b1"]
TRUNKS = [[3 + (i * (7 + trunk) + trunk) % 40 for i in range(40)] for trunk in range(3)]


def prompts() -> st.SearchStrategy[list[int]]:
    """Prompts that often share a prefix."""
    return st.builds(
        lambda trunk, length, tail: TRUNKS[trunk][:length] + tail,
        st.integers(0, 2),
        st.integers(0, 40),
        st.lists(st.integers(3, 6), min_size=1, max_size=6),
    )


def treatments() -> st.SearchStrategy[dict[str, Any]]:
    """How a request is treated beside others."""
    return st.fixed_dictionaries(
        {
            "priority": st.sampled_from([0, 0, 0, 1, -1]),
            "namespace": st.sampled_from(["", "", "other"]),
            "timeout_s": st.sampled_from([None, None, None, 2.0, 6.0]),
            "stream": st.booleans(),
            "place": places(),
        }
    )


def places() -> st.SearchStrategy[ProgramPlace | None]:
    """Of a few programs of two kinds, or of none."""
    place = st.builds(
        lambda program, continued, later: ProgramPlace(
            id=program, name=program[0], continued=continued, later_tokens=9 * later
        ),
        program=st.sampled_from(PROGRAMS),
        continued=st.booleans(),
        later=st.integers(0, 3),
    )
    return st.one_of(st.none(), place, place)


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, aborts and steps on a tiny pool. `FakeEngine` checks the invariants after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.aborted: set[str] = set()

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        tokens=st.sampled_from([64, 96, 400]),
        chunk_size=st.sampled_from([1, 5, 16, 512]),
        policy=st.sampled_from(["fcfs", "lpm", "dfs-weight", "least-work", "least-work", "random"]),
        radix_cache=st.sampled_from([True, True, False]),
        keep_prefixes=st.sampled_from([True, True, False]),
        device_s=st.sampled_from([0.0, 1.0]),
        max_running_requests=st.sampled_from([1, 3, 32]),
        jump_forward=st.booleans(),
        ratio=st.sampled_from([0.0, 0.7]),
        overlap=st.booleans(),
    )
    def begin(self, page_size: int, tokens: int, ratio: float, device_s: float, **config: Any) -> None:
        self.executor = ManualExecutor()
        self.engine = FakeEngine(
            num_pages=tokens // page_size,
            page_size=page_size,
            context_length=90,
            grammars=GRAMMARS,
            compiler=ScriptedCompiler(*GRAMMARS, failing={BAD: GrammarError("bad")}),
            executor=self.executor,
            mask_rows=40,
            **config,
        )
        self.engine.runner.model = BrokenModel(NOT_FINITE, 6)
        self.engine.scheduler._estimate.ratio = ratio
        if self.engine.memory.kept is not None:
            self.engine.memory.kept.measured(tokens, device_s)

    def add(self, request: Request, treatment: dict[str, Any] | None = None) -> None:
        for name, value in (treatment or {}).items():
            setattr(request, name, value)
        self.engine.add(request)
        self.requests.append(request)

    @rule(
        prompt=prompts(),
        max_tokens=st.integers(1, 30),
        temperature=st.sampled_from([0.0, 1.0]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        min_tokens=st.integers(0, 1),
        logprobs=st.sampled_from([None, 1]),
        prompt_logprobs=st.sampled_from([None, None, 0, 2]),
        stop=st.sampled_from([(), ("ab", "7")]),
        group=st.sampled_from([None, "x", "y"]),
        branches=st.integers(1, 4),
        treatment=treatments(),
    )
    def generate(self, prompt: list[int], branches: int, treatment: dict[str, Any], **params: Any) -> None:
        for _ in range(branches):
            name = f"g{len(self.requests)}"
            self.add(make_request(name, prompt, **{**params, "seed": len(self.requests)}), treatment)

    @rule(
        prompt=prompts(),
        grammar=st.sampled_from([g.grammar for g in GRAMMARS]),
        max_tokens=st.integers(5, 30),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        prompt_logprobs=st.sampled_from([None, None, 1]),
        logprobs=st.sampled_from([None, None, 2]),
        min_tokens=st.integers(0, 4),
        treatment=treatments(),
    )
    def constrain(self, prompt: list[int], treatment: dict[str, Any], **options: Any) -> None:
        self.add(make_request(f"c{len(self.requests)}", prompt, **options), treatment)

    @rule(length=st.integers(1, 8), max_tokens=st.integers(1, 12), constrained=st.booleans(), treatment=treatments())
    def break_down(self, length: int, max_tokens: int, constrained: bool, treatment: dict[str, Any]) -> None:
        """Have the model break somewhere in a request: its logits are NaN once its context is long enough."""
        grammar = GRAMMARS[1].grammar if constrained else None
        name = f"n{len(self.requests)}"
        self.add(make_request(name, [BROKEN] * length, max_tokens=max(2, max_tokens), grammar=grammar), treatment)

    @rule(place=places(), more=st.lists(st.integers(3, 6), max_size=4), max_tokens=st.integers(1, 12))
    def go_on(self, place: ProgramPlace | None, more: list[int], max_tokens: int) -> None:
        """Go on from the last answer of a program."""
        answers = [r for r in self.requests if r.status == "finished" and r.kind == "generate"]
        own = [r.token_ids.tolist() for r in answers if place and r.place and r.place.id == place.id]
        if own and len(own[-1]) + len(more) < 60:
            name = f"p{len(self.requests)}"
            self.add(make_request(name, own[-1] + more, max_tokens=max_tokens), {"place": place})

    @rule(program=st.sampled_from([*PROGRAMS, "unknown"]))
    def end_program(self, program: str) -> None:
        self.engine.scheduler.end_program(program)
        self.engine.scheduler.check_invariants()

    @rule(data=st.data(), count=st.integers(1, 3))
    def drop_prefixes(self, data: st.DataObject, count: int) -> None:
        of_programs = [request for request in self.requests if request.place is not None]
        if of_programs:
            request = data.draw(st.sampled_from(of_programs))
            assert request.place is not None
            names = [request.id, *(f"g{number}" for number in range(count))]
            self.engine.scheduler.drop_prefixes(request.place.id, names)
            self.engine.scheduler.check_invariants()

    @rule(prompt=prompts())
    def fail(self, prompt: list[int]) -> None:
        self.add(make_request(f"b{len(self.requests)}", prompt, grammar=BAD))

    @rule(prompt=prompts(), tail=st.lists(st.integers(3, 6), min_size=1, max_size=5), place=places())
    def score(self, prompt: list[int], tail: list[int], place: ProgramPlace | None) -> None:
        name = f"s{len(self.requests)}"
        request = make_request(name, prompt + tail, kind="score", score_from=len(prompt), group="x")
        self.add(request, {"place": place})

    @rule(
        prompt=prompts(),
        tails=st.lists(st.lists(st.integers(3, 5), max_size=5), min_size=2, max_size=8),
        place=places(),
    )
    def choose(self, prompt: list[int], tails: list[list[int]], place: ProgramPlace | None) -> None:
        name, page_size = f"t{len(self.requests)}", self.engine.memory.page_size
        texts = [[*prompt, *tail] for tail in tails]
        request = make_score(name, texts, len(prompt), group="x", page_size=page_size)
        if request.end <= self.engine.memory.pool_tokens:
            self.add(request, {"place": place})
        else:
            with pytest.raises(RequestError, match="with its choices has"):
                self.engine.add(request)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        active = [request.id for request in self.requests if request.is_active]
        if active:
            name = data.draw(st.sampled_from(active))
            assert self.engine.scheduler.abort(name)
            self.aborted.add(name)

    @rule(data=st.data())
    def abort_in_flight(self, data: st.DataObject) -> None:
        if self.engine.overlap:
            self.engine.step()
            self.abort(data)
        elif (step := self.engine.scheduler.launch_step()) is not None:
            self.engine.scheduler.sample_step(step)
            self.abort(data)
            self.engine.scheduler.flush_cache()
            self.engine.scheduler.finish_step(step)
        self.engine.step()

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            now_s = self.engine.clock.time_s
            assert all(r.deadline_s is None or r.deadline_s > now_s for r in self.requests if r.is_active)

    @rule(seconds=st.sampled_from([0.5, 1.5, 4.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.engine.clock.time_s += seconds

    @rule()
    def compile(self) -> None:
        self.executor.run_next()

    @rule()
    def flush(self) -> None:
        self.engine.scheduler.flush_cache()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(len(self.requests)):
            self.executor.run_next()
        self.engine.run()
        assert {request.id for request in self.engine.finished} == {request.id for request in self.requests}
        for request in self.requests:
            self.check_end(request)
        for program in PROGRAMS:
            self.engine.scheduler.end_program(program)
        check_forgotten(self.engine)
        self.engine.check_empty()

    def check_end(self, request: Request) -> None:
        if request.status == "aborted":
            assert request.id in self.aborted
        elif request.status == "failed" and request.grammar == BAD:
            assert isinstance(request.error, GrammarError | RequestTimeoutError)
        elif isinstance(request.error, RequestTimeoutError):
            assert request.timeout_s is not None
            assert request.ended_s is not None
            assert request.ended_s >= request.arrived_s + request.timeout_s
        elif request.status == "failed" and request.prompt_ids[0] == BROKEN:
            assert isinstance(request.error, EngineError)
            assert "NaN or infinite" in str(request.error)
        elif request.status == "failed":
            assert isinstance(request.error, RequestError)
            pool = self.engine.memory.pool
            assert request.pages_for(request.end, pool.page_size) > pool.num_pages
        else:
            self.engine.check_answer(request)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestScheduler = SchedulerMachine.TestCase


def random_tree(count: int, source: random.Random, page_size: int = 1) -> list[Request]:
    """Requests whose prompts are the paths of a random tree: most continue the prompt of an earlier one."""
    paths = [[source.randrange(3, 46) for _ in range(source.randrange(100, 400))]]
    made = []
    for index in range(count):
        parent = source.choice(paths)
        path = parent[: source.randrange(len(parent) // 2, len(parent) + 1)][:1500]
        path = path + [source.randrange(3, 46) for _ in range(source.randrange(1, source.choice([4, 40, 600])))]
        paths.append(path)
        made.append(_random_request(str(index), path, source, page_size))
    return made


def _random_score(name: str, path: list[int], source: random.Random, page_size: int) -> Request:
    """The end of a path, or several ends of it, scored."""
    score_from = source.randrange(max(1, len(path) - 40), len(path))
    if source.random() < 0.5:
        return make_request(name, path, kind="score", score_from=score_from)
    tails = [[source.randrange(3, 6) for _ in range(source.randrange(1, 8))] for _ in range(source.randrange(2, 9))]
    return make_score(name, [path[:score_from] + tail for tail in tails], score_from, page_size=page_size)


def _random_request(name: str, path: list[int], source: random.Random, page_size: int) -> Request:
    if source.random() < 0.2:
        return _random_score(name, path, source, page_size)
    grammar = source.choice(GRAMMARS).grammar if source.random() < 0.2 else None
    return make_request(
        name,
        path,
        grammar=grammar,
        max_tokens=source.randrange(5, 100),
        temperature=source.choice([0.0, 1.0]),
        seed=source.randrange(1 << 30),
        ignore_eos=source.random() < 0.5,
        group=source.choice([None, None, "x"]),
    )


@pytest.mark.parametrize(("page_size", "policy"), [(1, "lpm"), (16, "fcfs")])
def test_a_random_tree_of_400_requests(page_size: int, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of requests far larger than the pool, with evictions and retractions: all answers right, no page lost."""
    monkeypatch.setattr(OutputEstimate, "LOWEST", 0.0)
    monkeypatch.setattr(OutputEstimate, "RISE", 0.0)
    monkeypatch.setattr(OutputEstimate, "finished", lambda estimate, request: None)  # it never learns: it must retract
    source = random.Random(page_size)
    requests = random_tree(400, source, page_size)
    engine = FakeEngine(
        num_pages=12_000 // page_size,
        page_size=page_size,
        policy=policy,
        chunk_size=4096,
        max_running_requests=200,
        mask_rows=200,
        grammars=GRAMMARS,
    )
    engine.scheduler._estimate.ratio = 0.0
    for request in requests:
        engine.add(request)
        if source.random() < 0.05:
            engine.step()
    engine.run()
    for request in requests:
        engine.check_answer(request)
    assert engine.runner.computed > 2 * 12_000  # so most of it was evicted
    assert engine.scheduler.stats().retractions > 0
    assert sum(request.cached_tokens for request in requests) > 20_000
    engine.check_empty()


def test_forced_retraction_in_a_random_tree() -> None:
    """Requests retracted at random moments still get the right answers."""
    source = random.Random(3)
    requests = random_tree(60, source)
    engine = FakeEngine(num_pages=6000, chunk_size=256, grammars=GRAMMARS)
    engine.add(*requests)
    while engine.scheduler.can_step:
        engine.step()
        running = list(engine.scheduler._running)
        if running and source.random() < 0.2:
            engine.scheduler._retract(source.choice(running))
            engine.scheduler.check_invariants()
    for request in requests:
        engine.check_answer(request)
    engine.check_empty()


def test_spelling_is_not_trivial() -> None:
    """The fake model writes varied text, so that equal answers mean something."""
    engine = FakeEngine(num_pages=2000)
    requests = [make_request(str(i), TRUNKS[0][: i + 1], max_tokens=30, ignore_eos=True) for i in range(20)]
    engine.add(*requests)
    engine.run()
    texts = {spell(request.output_ids.tolist()) for request in requests}
    assert len(texts) == 20
    assert len(set("".join(texts))) > 30
