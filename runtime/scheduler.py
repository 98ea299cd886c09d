"""The scheduler: one step at a time, from requests to a plan for the model runner and from its result to text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from palmette.constrained.errors import GrammarLimitError, PalmetteError

from .batch import NOTHING_ALLOWED, Runner, StepPlan, StepResult
from .clock import Clock, MonotonicClock
from .config import EngineConfig
from .constraint import MaskRows
from .errors import EngineError, RequestError
from .generation import ForcedText, Generation
from .grammar_queue import GrammarQueue
from .kv_memory import KVMemory
from .logprobs import sampled_logprob, take_scores
from .messages import SchedulerStats
from .policy import OutputEstimate
from .request import Request, check_request
from .running_batch import RunningBatch
from .sampling_params import check_vocabulary
from .step_builder import Row, build_plan
from .waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from palmette.constrained import MaskTable, TokenGrammar


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """News of a request: more text, and whether it has ended. Its results are in the request itself."""

    request: Request
    text: str
    finished: bool


class Scheduler:
    """Runs requests in steps, each one forward pass over the next tokens of many.

    A step takes in aborts and compiled grammars, gives every running request its next tokens, admits waiting requests
    within the budget that is left, prepares the next step while the runner computes, and processes what came of it. All
    methods are for one thread.

    Args:
        runner: executes plans.
        config: limits, policy and seed; its sizes that may be None are given here.
        num_pages, page_size: of the runner's KV storage.
        context_length: most tokens of prompt and output.
        vocab_size: number of logits, to refuse a logit bias on another token; None does not check.
        mask_table, grammar_queue: None refuses requests with a grammar.
        forced_text: finds tokens that a grammar forces; unused where the config has jump_forward off.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        config: EngineConfig,
        num_pages: int,
        page_size: int,
        context_length: int,
        vocab_size: int | None = None,
        mask_table: MaskTable | None = None,
        grammar_queue: GrammarQueue | None = None,
        clock: Clock | None = None,
        forced_text: ForcedText | None = None,
    ) -> None:
        self._runner = runner
        self._chunk_size = config.chunk_size
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._clock = clock or MonotonicClock()
        self._seeds = random.Random(config.seed)
        self._arrivals = itertools.count()

        self._memory = KVMemory(num_pages, page_size, radix_cache=config.radix_cache)
        self._estimate = OutputEstimate()
        self._mask_table = mask_table
        self._masks = MaskRows(mask_table)
        self._generation = Generation(forced_text if config.jump_forward else None)

        self._requests: dict[str, Request] = {}  # active ones
        self._grammar_queue = grammar_queue
        self._running = RunningBatch(self._memory, config.max_running_requests)
        self._waiting = WaitingQueue(config.policy, self._memory, self._running, self._estimate)
        self._aborts: set[str] = set()
        self._in_flight: list[Row] = []
        self._updates: list[RequestUpdate] = []
        self._steps = 0
        self._retractions = 0

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Take a request in. It ends in exactly one finished update of a later step.

        Raises:
            RequestError: it cannot run, or its id is that of an active request.
        """
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is active; wait for its end or use another id")
        if request.grammar is not None and (self._grammar_queue is None or self._mask_table is None):
            raise RequestError("this engine was started without grammars; generate without one")
        if self._vocab_size is not None:
            check_vocabulary(request.params, self._vocab_size)
        check_request(
            request,
            context_length=self._context_length,
            pool_tokens=self._memory.pool_tokens,
            vocab_size=self._vocab_size,
        )
        if request.params.seed is None:
            request.params = msgspec.structs.replace(request.params, seed=self._seeds.getrandbits(64))
        request.max_output = min(request.params.max_tokens, self._context_length - len(request.prompt_ids))
        request.arrival = next(self._arrivals)
        request.arrived_s = self._clock.now()
        self._requests[request.id] = request
        if request.grammar is not None and self._grammar_queue is not None:
            self._grammar_queue.add(request)
        else:
            self._waiting.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request at the next step; what a step in flight computes for it is dropped.

        Returns:
            False, and nothing happens, where no active request has this id.
        """
        if request_id not in self._requests:
            return False
        self._aborts.add(request_id)
        return True

    @property
    def has_work(self) -> bool:
        """Whether any request is active or has an update to come."""
        return bool(self._requests or self._updates)

    @property
    def can_step(self) -> bool:
        """Whether a step would do something now. False while all there is waits for grammars to compile."""
        compiled = self._grammar_queue is not None and self._grammar_queue.has_ready
        return bool(compiled or self._running or self._waiting or self._aborts or self._updates)

    def on_grammar_ready(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, from another thread, whenever `can_step` may have become true by a grammar."""
        if self._grammar_queue is not None:
            self._grammar_queue.on_ready(callback)

    def flush_cache(self) -> int:
        """Drop every cached prefix that no running request uses; returns the number of tokens dropped."""
        return self._memory.flush()

    def close(self) -> None:
        """Compile no more grammars. Active requests are left as they are."""
        if self._grammar_queue is not None:
            self._grammar_queue.close()

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestUpdate]:
        """Run one step and return its news."""
        plan = self.plan_step()
        if plan is not None:
            in_flight = self._runner.launch(plan)
            self.prepare_next()
            self.process(in_flight.result())
        if not self._running:
            self._memory.check_idle()
        return self.take_updates()

    def plan_step(self) -> StepPlan | None:
        """Decide what the next step computes; None where it has nothing to compute."""
        self._receive_aborts()
        self._receive_compiled()
        retractions = self._retractions
        rows = self._continue_running()
        if self._retractions == retractions:
            rows += self._admit(self._chunk_size - sum(row.count for row in rows))
        rows = [row for row in rows if self._find_mask(row)]
        if not rows:
            return None
        self._steps += 1
        self._in_flight = rows
        plan = build_plan(self._steps, rows, self._memory.page_size, self._masks.take_updates())
        for row in rows:
            row.request.setup_due = False
        return plan

    def prepare_next(self) -> None:
        """Do what the next plan needs and this step's result does not change. To be called while the runner computes.

        Requests whose grammar is ready begin their text, and those that will soon sample their first token have its
        mask found.
        """
        self._receive_compiled()
        beginning = (request for request in self._running if request.prefilling)
        self._masks.prepare(itertools.chain(beginning, self._waiting))

    def process(self, result: StepResult) -> None:
        """Take in what the step of the last plan computed. The news is for `take_updates`."""
        if result.step != self._steps:
            raise EngineError(f"the result of step {result.step} came when step {self._steps} was in flight")
        rows, self._in_flight = self._in_flight, []
        sampled = scored = 0
        for row in rows:
            if row.request.id not in self._aborts:
                self._take_row(row, result, sampled, scored)
            self._masks.release(row.mask_row)
            sampled += row.is_sampled
            scored += len(row.scored)
        self._estimate.step_done()

    def take_updates(self) -> list[RequestUpdate]:
        """The news since the last call."""
        updates, self._updates = self._updates, []
        return updates

    # -- planning ---------------------------------------------------------------------------------------------------

    def _receive_aborts(self) -> None:
        aborts, self._aborts = self._aborts, set()
        for request_id in sorted(aborts):
            request = self._requests[request_id]
            if request.status == "waiting_grammar" and self._grammar_queue is not None:
                self._grammar_queue.remove(request)
            request.abort()
            self._end(request, "")

    def _receive_compiled(self) -> None:
        for outcome in self._grammar_queue.poll() if self._grammar_queue is not None else ():
            if isinstance(outcome.compiled, PalmetteError):
                self._fail(outcome.request, outcome.compiled)
            else:
                self._begin_constrained(outcome.request, outcome.compiled)

    def _begin_constrained(self, request: Request, compiled: TokenGrammar) -> None:
        request.move_to("waiting")
        self._waiting.add(request)
        try:
            text = self._generation.begin(request, compiled)
        except Exception as error:
            self._fail(request, error)
        else:
            self._report(request, text)

    def _continue_running(self) -> list[Row]:
        """Rows for the running requests. Where memory is short, the newest ones wait again."""
        while (rows := self._running.rows(self._chunk_size)) is None:
            if len(self._running) > 1:
                self._retract(self._running.newest)
            else:
                self._fail(self._running.newest, self._too_large(self._running.newest))
        return rows

    def _retract(self, request: Request) -> None:
        """Take a request's slot and pages back. Its output, matcher and place in the queue stay."""
        self._running.remove(request)
        request.move_to("waiting")
        request.retractions += 1
        self._waiting.add(request)
        self._retractions += 1
        self._estimate.retracted()

    def _admit(self, tokens: int) -> list[Row]:
        """Rows for waiting requests that begin to run in this step."""
        admission = self._waiting.admit(tokens)
        for row in admission.rows:
            if row.request.started_s is None:
                row.request.started_s = self._clock.now()
                row.request.cached_tokens = min(row.start, len(row.request.prompt_ids))
        for request in admission.too_large:
            self._fail(request, self._too_large(request))
        return admission.rows

    def _find_mask(self, row: Row) -> bool:
        """Reference the mask of a row's next token; False where the request failed."""
        if row.is_sampled:
            try:
                row.mask_row = self._masks.acquire(row.request)
            except Exception as error:
                self._fail(row.request, error)
                return False
        return True

    # -- processing -------------------------------------------------------------------------------------------------

    def _take_row(self, row: Row, result: StepResult, sampled: int, scored: int) -> None:
        """Take in what a row computed, from these places in the result on.

        A row that failed ends its own request only. It is not committed: what it computed may be broken, and must not
        reach others through the radix cache.
        """
        places = slice(scored, scored + len(row.scored))
        if row.is_sampled and result.token_ids[sampled] < 0:
            self._fail(row.request, _sampling_error(row, int(result.token_ids[sampled])))
        elif np.isnan(result.score_logprobs[places]).any():
            self._fail(row.request, _not_finite(row))
        else:
            self._advance(row, result, places)
            if row.is_sampled:
                self._take_token(row.request, result, sampled)
            self._settle(row)

    def _advance(self, row: Row, result: StepResult, scored: slice) -> None:
        """Commit what a row computed."""
        request = row.request
        request.num_computed = row.stop
        request.computed_tokens += row.count
        if row.scored:
            take_scores(request, result, scored)
        if request.kind == "score" and not request.remaining:
            request.finish(None)
            self._report(request, "")

    def _take_token(self, request: Request, result: StepResult, index: int) -> None:
        try:
            text = self._generation.take(request, int(result.token_ids[index]), sampled_logprob(request, result, index))
        except Exception as error:
            self._fail(request, error)
        else:
            self._report(request, text)

    def _settle(self, row: Row) -> None:
        """Let others use the prefix that a prefill has computed so far."""
        if row.request.status == "running" and row.start < row.request.prefill_end:
            self._memory.commit(row.request)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _report(self, request: Request, text: str) -> None:
        """Pass on a request's text, and its end if it has ended."""
        if not request.is_active:
            self._end(request, text)
        elif text:
            self._updates.append(RequestUpdate(request, text, False))

    def _fail(self, request: Request, error: Exception) -> None:
        if isinstance(error, GrammarLimitError) and request.grammar is not None and self._grammar_queue is not None:
            self._grammar_queue.forget(request.grammar)  # its states are shared: it would fail every later request
        request.fail(_as_palmette_error(error))
        self._end(request, "")

    def _end(self, request: Request, text: str) -> None:
        """The one way out, for every end: slot and pages come back, and the end is told."""
        if request.slot >= 0:
            self._running.remove(request)
        self._waiting.discard(request)
        request.ended_s = self._clock.now()
        del self._requests[request.id]
        self._updates.append(RequestUpdate(request, text, True))

    def _too_large(self, request: Request) -> RequestError:
        return RequestError(
            f"request {request.id} needs {request.end} tokens of KV cache, but the pool holds"
            f" {self._memory.pool_tokens}, and nothing else is running; shorten the prompt, lower max_tokens, or start"
            " the engine with a larger max_total_tokens"
        )

    # -- checks -----------------------------------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """Counts of queues, running batch, pages and cache at this moment."""
        pool, cache = self._memory.pool, self._memory.cache
        return SchedulerStats(
            steps=self._steps,
            retractions=self._retractions,
            compiling=sum(request.status == "waiting_grammar" for request in self._requests.values()),
            waiting=len(self._waiting),
            running=len(self._running),
            free_pages=pool.free_pages,
            evictable_pages=cache.evictable_pages if cache else 0,
            protected_pages=cache.protected_pages if cache else 0,
            total_pages=pool.num_pages,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless pages, slots, queues and mask rows are accounted for. Between steps only."""
        self._memory.check_invariants(self._running)
        self._running.check_invariants()
        self._waiting.check_invariants()
        active = [*self._waiting, *self._running]
        active += [request for request in self._requests.values() if request.status == "waiting_grammar"]
        assert {request.id for request in active} == self._requests.keys()
        if self._mask_table is not None:
            self._mask_table.check_invariants()


def _sampling_error(row: Row, failure: int) -> EngineError:
    if failure != NOTHING_ALLOWED:
        return _not_finite(row)
    return EngineError(
        f"request {row.request.id} cannot go on after {row.stop} tokens of prompt and output: every token that it may"
        " sample there has the logit -inf, by its grammar's mask or by the model"
    )


def _not_finite(row: Row) -> EngineError:
    return EngineError(
        f"request {row.request.id} failed within its first {row.stop} tokens: the model's logits are NaN or infinite,"
        " so its weights or its number format are broken; try dtype='float32'"
    )


def _as_palmette_error(error: Exception) -> PalmetteError:
    if isinstance(error, PalmetteError):
        return error
    wrapped = EngineError(f"the request failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
