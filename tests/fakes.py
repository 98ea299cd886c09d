"""A scripted model, grammar compiler and clock: exact, instant, and merciless about pages.

`FakeRunner` stands for a model whose KV cache holds the tokens themselves. Every sampled row reads its whole context
back through its page table, and the next token is a hash of that context, so a wrong page gives a wrong answer.
`expected_answer` gives the right one without pages, chunks, batches or a scheduler.
"""

from __future__ import annotations

import codecs
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from palmette.constrained import CompiledGrammar, Grammar, MaskTable, Matcher, Vocabulary
from palmette.runtime.batch import FROM_SLOT, UNCONSTRAINED, Int32Array, SlotSetup, StepPlan, StepResult, UInt32Array
from palmette.runtime.config import EngineConfig
from palmette.runtime.detokenizer import OutputText
from palmette.runtime.grammar_queue import GrammarQueue
from palmette.runtime.request import Request, RequestKind
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler import RequestUpdate, Scheduler

BoolArray = npt.NDArray[np.bool_]

END_ID = 1
OTHER_END_ID = 2
_LETTERS = [bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz"]
_DIGITS = [bytes([byte]) for byte in b"0123456789"]
_LONGER = [b" ", b".", b"ab", b"ba", b"the ", b"\xf0\x9f", b"\x98\x80", "é".encode(), b"c.", b"\n"]
TOKEN_BYTES: tuple[bytes | None, ...] = (None, None, None, *_LETTERS, *_DIGITS, *_LONGER)
VOCABULARY = Vocabulary(TOKEN_BYTES, end_ids=(END_ID, OTHER_END_ID), size=64)
NO_TOKENS: Int32Array = np.empty(0, dtype=np.int32)


def token(text: str) -> int:
    """The id of the token that is spelled `text`."""
    return TOKEN_BYTES.index(text.encode())


def ids(*token_ids: int) -> Int32Array:
    """An int32 array."""
    return np.array(token_ids, dtype=np.int32)


class FakeClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


# -- the model ------------------------------------------------------------------------------------------------------


class FakeModel:
    """A deterministic language model: everything is a hash of the whole context."""

    def draw(self, context: Int32Array, allowed: BoolArray, salt: bytes = b"") -> int:
        """The best of the allowed tokens [vocabulary size]; as for a greedy model, a narrower choice keeps the best."""
        assert allowed.any(), "no token is allowed"
        scores = _mix(np.uint64(_digest(context, salt)) + np.arange(1, len(allowed) + 1, dtype=np.uint64))
        return int(np.where(allowed, scores | np.uint64(1), np.uint64(0)).argmax())

    def logprobs(self, context: Int32Array) -> npt.NDArray[np.float32]:
        """[vocabulary size], exact in float32."""
        mixed = _mix(np.uint64(_digest(context, b"logprob")) + np.arange(VOCABULARY.size, dtype=np.uint64))
        return -((mixed >> np.uint64(52)).astype(np.float32)) / np.float32(256)


def _digest(context: Int32Array, salt: bytes) -> int:
    data = np.ascontiguousarray(context, dtype=np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(data + salt, digest_size=7).digest(), "little")


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def random_stream(params: SamplingParams, position: int, output: Sequence[int]) -> bytes:
    """What besides the context decides a draw: seed and output position, and the output where it is penalised."""
    salt = b"" if params.greedy else struct.pack("<QI", params.seed, position)
    return salt + ids(*output).tobytes() if params.has_penalties else salt


def held_back(allowed: BoolArray, params: SamplingParams, end_ids: Sequence[int], position: int) -> BoolArray:
    """`allowed` without the end tokens where min_tokens holds them back."""
    if position >= params.min_tokens:
        return allowed
    allowed = allowed.copy()
    allowed[list(end_ids)] = False
    return allowed


def everything() -> BoolArray:
    """The tokens that an unconstrained request may take."""
    return np.arange(VOCABULARY.size) < len(TOKEN_BYTES)


def unpack(bits: UInt32Array) -> BoolArray:
    """Packed mask words as one flag a token."""
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[: VOCABULARY.size].astype(np.bool_)


@dataclass
class FakeStep:
    """A step in flight."""

    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


@dataclass
class _Slot:
    setup: SlotSetup
    known: list[int] = field(default_factory=list)  # prompt and output, as far as the runner was told or sampled


class FakeRunner:
    """Runs steps of the fake model over a paged KV cache that holds (token id, position) by slot.

    Attributes:
        plans: every plan, oldest first, where `keep_plans` is set.
        computed: tokens computed so far.
    """

    def __init__(self, *, num_pages: int, page_size: int, keep_plans: bool = False) -> None:
        self.model = FakeModel()
        self.page_size = page_size
        self.keep_plans = keep_plans
        self.plans: list[StepPlan] = []
        self.computed = 0
        self._tokens = np.full(num_pages * page_size, -1, dtype=np.int32)
        self._positions = np.full(num_pages * page_size, -1, dtype=np.int32)
        self._slots: dict[int, _Slot] = {}
        self._masks: dict[int, UInt32Array] = {}

    def poison(self, pages: Int32Array) -> None:
        """Destroy what free pages hold."""
        slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()
        self._tokens[slots] = -7
        self._positions[slots] = -7

    def launch(self, plan: StepPlan) -> FakeStep:
        if self.keep_plans:
            self.plans.append(plan)
        self.computed += len(plan.token_ids)
        for setup in plan.setups:
            assert setup.params.seed is not None, "a slot was set up without a seed"
            self._slots[setup.slot] = _Slot(setup, [*setup.prompt_ids.tolist(), *setup.output_ids.tolist()])
        if plan.mask_updates is not None:
            self._masks.update(zip(plan.mask_updates[0].tolist(), plan.mask_updates[1], strict=True))
        self._check_shapes(plan)
        self._write(plan)
        return FakeStep(self._result(plan))

    def _check_shapes(self, plan: StepPlan) -> None:
        rows = len(plan.slots)
        assert plan.query_indptr[0] == plan.page_indptr[0] == 0
        assert (np.diff(plan.query_indptr) > 0).all(), "a row without tokens"
        assert plan.query_indptr[-1] == len(plan.token_ids) == len(plan.positions) == len(plan.kv_slots)
        assert plan.page_indptr[-1] == len(plan.page_ids)
        assert len(plan.seq_lens) == rows == len(set(plan.slots.tolist())), "two rows for one slot"
        assert len(set(plan.kv_slots.tolist())) == len(plan.kv_slots), "two tokens are written to one place"
        assert (np.diff(plan.page_indptr) == -(-plan.seq_lens // self.page_size)).all(), "wrong number of pages"

    def _write(self, plan: StepPlan) -> None:
        slots = np.repeat(plan.slots, np.diff(plan.query_indptr))
        token_ids = plan.token_ids.copy()
        for index in np.flatnonzero(token_ids == FROM_SLOT):
            token_ids[index] = self._slots[int(slots[index])].known[-1]
        self._tokens[plan.kv_slots] = token_ids
        self._positions[plan.kv_slots] = plan.positions
        for token_id, position, slot in zip(token_ids.tolist(), plan.positions.tolist(), slots.tolist(), strict=True):
            state = self._slots.get(slot)
            if state is not None and position == len(state.known):
                state.known.append(token_id)  # forced

    def _context(self, plan: StepPlan, row: int) -> Int32Array:
        """The row's tokens as the page table finds them."""
        pages = plan.page_ids[plan.page_indptr[row] : plan.page_indptr[row + 1]]
        slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()[: plan.seq_lens[row]]
        assert np.array_equal(self._positions[slots], np.arange(len(slots))), "the page table shows foreign tokens"
        first, last = plan.query_indptr[row], plan.query_indptr[row + 1]
        assert np.array_equal(plan.kv_slots[first:last], slots[len(slots) - (last - first) :])
        context: Int32Array = self._tokens[slots]
        return context

    def _result(self, plan: StepPlan) -> StepResult:
        sampled = [self._sample(plan, index) for index in range(len(plan.sample_rows))]
        return StepResult(
            step=plan.step,
            token_ids=ids(*[token_id for token_id, _, _ in sampled]),
            logprobs=np.array([logprob for _, logprob, _ in sampled], dtype=np.float32),
            top_logprobs=tuple(top for _, _, top in sampled),
            score_logprobs=np.array(self._scores(plan), dtype=np.float32),
        )

    def _sample(
        self, plan: StepPlan, index: int
    ) -> tuple[int, float, tuple[Int32Array, npt.NDArray[np.float32]] | None]:
        row, position = int(plan.sample_rows[index]), int(plan.output_positions[index])
        context = self._context(plan, row)
        state = self._slots[int(plan.slots[row])]
        params, mask_row = state.setup.params, int(plan.mask_rows[index])
        allowed = everything() if mask_row == UNCONSTRAINED else unpack(self._masks[mask_row])
        allowed = held_back(allowed, params, state.setup.end_ids.tolist(), position)
        output = state.known[len(state.setup.prompt_ids) :]
        drawn = self.model.draw(context, allowed, random_stream(params, position, output))
        state.known.append(drawn)
        if params.logprobs is None:
            return drawn, float("nan"), None
        logprobs = self.model.logprobs(context)
        best = np.argsort(-logprobs, kind="stable")[: params.logprobs].astype(np.int32)
        return drawn, float(logprobs[drawn]), (best, logprobs[best]) if params.logprobs else None

    def _scores(self, plan: StepPlan) -> list[float]:
        scores = []
        rows = np.searchsorted(plan.query_indptr, plan.score_tokens, side="right") - 1
        for row, flat, target in zip(rows, plan.score_tokens, plan.score_targets, strict=True):
            context = self._context(plan, int(row))[: plan.positions[flat] + 1]
            scores.append(float(self.model.logprobs(context)[target]))
        return scores


# -- grammars -------------------------------------------------------------------------------------------------------


class ScriptedGrammar:
    """A compiled grammar given as an automaton over token ids, with the methods of `CompiledGrammar` done naively.

    Args:
        transitions: by state, token id to next state; state 0 is the start.
        accepting: states in which the text may end.
    """

    start = 0
    vocabulary = VOCABULARY

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


# -- requests and their right answers -------------------------------------------------------------------------------


def make_request(
    request_id: str,
    prompt: Sequence[int],
    *,
    kind: RequestKind = "generate",
    score_from: int = 0,
    grammar: Grammar | None = None,
    group: str | None = None,
    **params: Any,
) -> Request:
    """A request of the fake vocabulary; greedy unless `params` say otherwise."""
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 5, **params})
    return Request(
        id=request_id,
        kind=kind,
        prompt_ids=ids(*prompt),
        params=sampling,
        grammar=grammar,
        score_from=score_from,
        end_ids=frozenset((END_ID, OTHER_END_ID)),
        group=group,
        text=OutputText(TOKEN_BYTES, sampling.stop),
    )


@dataclass(frozen=True)
class Answer:
    """What a generation must come to."""

    output: tuple[int, ...]
    text: str
    finish_reason: str


def expected_answer(request: Request, context_length: int, grammar: ScriptedGrammar | None = None) -> Answer:
    """The right answer of a generate request, straight from the fake model: no pages, no chunks, no forced text."""
    params = request.params
    most = min(params.max_tokens, context_length - len(request.prompt_ids))
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.end_ids))
    output: list[int] = []
    matcher = grammar.matcher() if grammar else None
    while len(output) < most:
        if matcher is not None and matcher.finished:
            return Answer(tuple(output), spell(output), "grammar")
        drawn = _expected_token(request, output, most, ends, matcher)
        output.append(drawn)
        accepting = matcher is None or matcher.is_accepting
        if (drawn in ends and accepting) or (matcher is not None and drawn in request.end_ids):
            return Answer(tuple(output), spell(output[:-1]), "stop")
        if matcher is not None:
            matcher.accept(drawn)
        cut = min((at for stop in params.stop if (at := spell(output, whole=False).find(stop)) >= 0), default=None)
        if cut is not None:
            return Answer(tuple(output), spell(output)[:cut], "stop")
    done = matcher is not None and matcher.finished
    return Answer(tuple(output), spell(output), "grammar" if done else "length")


def _expected_token(request: Request, output: list[int], most: int, ends: set[int], matcher: Matcher | None) -> int:
    position = len(output)
    if matcher is None:
        allowed = held_back(everything(), request.params, sorted(ends), position)
    else:
        allowed = unpack(matcher.mask_within(most - position))
    context = np.concatenate([request.prompt_ids, ids(*output)])
    return FakeModel().draw(context, allowed, random_stream(request.params, position, output))


def spell(output: Sequence[int], *, whole: bool = True) -> str:
    """The text of output tokens; `whole`: with replacement characters for a cut-off character at the end."""
    data = b"".join(TOKEN_BYTES[token_id] or b"" for token_id in output)
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data, final=whole)


def expected_scores(request: Request) -> list[float]:
    """The right log-probabilities of a score request."""
    prompt = request.prompt_ids
    return [float(FakeModel().logprobs(prompt[:i])[prompt[i]]) for i in range(request.score_from, len(prompt))]


class FakeEngine:
    """A scheduler on a fake runner. Every step checks all invariants and then destroys what free pages hold.

    Attributes:
        texts: by request id, the streamed text so far.
        finished: requests in the order they ended.
    """

    def __init__(
        self,
        *,
        num_pages: int = 256,
        page_size: int = 1,
        context_length: int = 4096,
        grammars: Sequence[ScriptedGrammar] = (),
        compiler: Callable[[Grammar], CompiledGrammar] | None = None,
        executor: Executor | None = None,
        mask_rows: int = 64,
        keep_plans: bool = False,
        **settings: Any,
    ) -> None:
        self.context_length = context_length
        self.clock = FakeClock()
        self.grammars = {grammar.grammar: grammar for grammar in grammars}
        self.runner = FakeRunner(num_pages=num_pages, page_size=page_size, keep_plans=keep_plans)
        self.scheduler = Scheduler(
            self.runner,
            config=EngineConfig(**{"seed": 1, **settings}),
            num_pages=num_pages,
            page_size=page_size,
            context_length=context_length,
            mask_table=MaskTable(mask_rows, VOCABULARY),
            grammar_queue=GrammarQueue(
                compiler or ScriptedCompiler(*grammars), executor=executor or InlineExecutor(), capacity=8
            ),
            clock=self.clock,
            forced_text=forced_tokens,
        )
        self.memory = self.scheduler._memory
        self.texts: dict[str, str] = {}
        self.finished: list[Request] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)
            self.texts[request.id] = ""

    def step(self) -> list[RequestUpdate]:
        """One step of the scheduler, checked."""
        updates = self.scheduler.step()
        for update in updates:
            assert update.request not in self.finished, "news after the end"
            self.texts[update.request.id] += update.text
            if update.finished:
                self.finished.append(update.request)
        self.scheduler.check_invariants()
        self.runner.poison(self.memory.pool.free_ids())
        return updates

    def run(self, *, steps: int = 20_000) -> list[Request]:
        """Step until nothing is left to do; returns all requests that ended so far."""
        for _ in range(steps):
            if not self.scheduler.can_step:
                return self.finished
            self.step()
        raise AssertionError(f"still not done after {steps} steps: {self.scheduler.stats()}")

    def check_answer(self, request: Request) -> None:
        """Raise AssertionError unless a finished request has the right answer and its deltas join to its text."""
        assert request.status == "finished", (request.id, request.status, request.error)
        if request.kind == "score":
            assert request.score_logprobs == expected_scores(request), request.id
            return
        grammar = self.grammars[request.grammar] if request.grammar is not None else None
        expected = expected_answer(request, self.context_length, grammar)
        assert tuple(request.output_ids.tolist()) == expected.output, request.id
        assert self.texts[request.id] == request.text.text == expected.text, request.id
        assert request.finish_reason == expected.finish_reason, request.id
        if grammar is not None:
            assert grammar.matches(request.output_ids.tolist()), request.id

    def check_empty(self) -> None:
        """Raise AssertionError unless every page is back once the cache is flushed."""
        self.scheduler.flush_cache()
        stats = self.scheduler.stats()
        assert stats.free_pages == stats.total_pages
        assert stats.running == stats.waiting == stats.compiling == 0
