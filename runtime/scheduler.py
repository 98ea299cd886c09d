"""The scheduler: one step at a time, from requests to a plan for the model runner and from its result to text."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from palmette.constrained.errors import GrammarLimitError, PalmetteError

from .admission import OutputEstimate
from .batch import NOTHING_ALLOWED, UNCONSTRAINED, Runner, StepHandle, StepResult
from .clock import Clock, MonotonicClock
from .config import EngineConfig, Sizes
from .constraint import MaskRows
from .counts import SchedulerCounts
from .errors import EngineError, RequestError, RequestTimeoutError
from .generation import ForcedText, Generation
from .grammar_queue import GrammarQueue
from .kv_memory import KVMemory
from .logprobs import sampled_logprob, take_scores
from .messages import CacheTree, SchedulerStats
from .program_table import ProgramTable
from .queue_limit import QueueLimit
from .request import Request, check_request
from .running_batch import RunningBatch
from .sampling_params import check_vocabulary
from .step_builder import Row, build_masks, build_plan
from .timed_heap import Deadlines
from .waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from palmette.constrained import MaskTable, TokenGrammar


MOST_IDLE_S = 3600.0
"""Nobody waits longer at once: systems do not take any number of seconds."""


class RequestUpdate(msgspec.Struct, frozen=True):
    """News of a request: more text, and whether it has ended. Its results are in the request itself."""

    request: Request
    text: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A step in flight."""

    number: int
    rows: list[Row]
    handle: StepHandle

    @property
    def needs_masks(self) -> bool:
        """Whether a row is sampled under a mask that the token of the step before decides."""
        return any(row.follows_sample and row.request.matcher is not None for row in self.rows)


class Scheduler:
    """Runs requests in steps, each one forward pass over the next tokens of many.

    A step takes in aborts and compiled grammars, gives every running request its next tokens, admits waiting requests
    within the budget that is left, and is launched; when it is done, what came of it is processed. `step` does one
    after the other; `step_ahead` launches a step before the one before it is finished. All methods are for one thread.

    Args:
        runner: executes plans.
        config: limits, policy and seed.
        sizes: of the device that `runner` is on, as `config` gives them; None for a CPU's.
        num_pages, page_size: of the runner's KV storage.
        context_length: most tokens of prompt and output.
        vocab_size: how many tokens may be sampled, to refuse options that name another one; None does not check.
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
        sizes: Sizes | None = None,
        vocab_size: int | None = None,
        mask_table: MaskTable | None = None,
        grammar_queue: GrammarQueue | None = None,
        clock: Clock | None = None,
        forced_text: ForcedText | None = None,
    ) -> None:
        self._runner = runner
        sizes = sizes or config.sizes_for("cpu")
        self._chunk_size = sizes.chunk_size
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._clock = clock or MonotonicClock()
        self._seeds = random.Random(config.seed)
        self._arrivals = itertools.count()

        self._programs = ProgramTable()
        self._memory = KVMemory(
            num_pages,
            page_size,
            radix_cache=config.radix_cache,
            programs=self._programs,
            keep_prefixes=config.keep_prefixes,
            clock=self._clock,
        )
        self._estimate = OutputEstimate()
        self._mask_table = mask_table
        self._masks = MaskRows(mask_table)
        self._generation = Generation(forced_text if config.jump_forward else None)

        self._requests: dict[str, Request] = {}  # active ones
        self._grammar_queue = grammar_queue
        self._running = RunningBatch(self._memory, sizes.max_running_requests)
        self._queue_limit = QueueLimit(config.max_queued_requests)
        self._waiting = WaitingQueue(
            config, self._memory, self._running, self._estimate, self._clock, self._queue_limit
        )
        self._request_timeout_s = config.request_timeout_s
        self._deadlines = Deadlines()
        self._aborts: set[str] = set()
        self._in_flight: deque[Step] = deque()
        self._updates: list[RequestUpdate] = []
        self._steps = 0
        self._retractions = 0
        self._counts = SchedulerCounts()

    @property
    def page_size(self) -> int:
        """Tokens a page of the KV pool."""
        return self._memory.page_size

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Take a request in. It ends in exactly one finished update of a later step.

        Raises:
            RequestError: it cannot run, or its id is that of an active request.
            QueueFullError: too many wait already.
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
        self._queue_limit.check(len(self._requests) - len(self._running))
        if request.params.seed is None:
            request.params = msgspec.structs.replace(request.params, seed=self._seeds.getrandbits(64))
        request.max_output = min(request.params.max_tokens, self._context_length - len(request.prompt_ids))
        request.arrival = next(self._arrivals)
        request.arrived_s = self._clock.now()
        request.turn_s = self._programs.turn_s(request)
        timeout_s = self._request_timeout_s if request.timeout_s is None else request.timeout_s
        if timeout_s is not None:
            request.deadline_s = request.arrived_s + timeout_s
        if request.grammar is not None and self._grammar_queue is not None:
            self._grammar_queue.add(request)
        else:
            self._waiting.add(request)
        self._deadlines.add(request)  # and from here on it is active: nothing may fail any more
        self._requests[request.id] = request
        self._programs.enter(request)

    def abort(self, request_id: str) -> bool:
        """End a request at the next step; what a step in flight computes for it is dropped.

        Returns:
            False, and nothing happens, where no active request has this id.
        """
        if request_id not in self._requests:
            return False
        self._aborts.add(request_id)
        return True

    def drop_prefixes(self, program_id: str, request_ids: Sequence[str]) -> None:
        """Keep the prefixes of these requests of a program no longer: nothing continues them."""
        program = self._programs.find(program_id)
        if program is not None and self._memory.kept is not None:
            self._memory.kept.drop(program, request_ids)

    def end_program(self, program_id: str) -> None:
        """Keep nothing for a program any more: no request of it comes."""
        program = self._programs.end(program_id)
        if program is not None and self._memory.kept is not None:
            self._memory.kept.drop_all(program)

    @property
    def has_work(self) -> bool:
        """Whether any request is active or has an update to come."""
        return bool(self._requests or self._updates)

    @property
    def can_step(self) -> bool:
        """Whether a step would do something now. False while all there is waits for grammars to compile."""
        compiled = self._grammar_queue is not None and self._grammar_queue.has_ready
        return bool(compiled or self._running or self._waiting or self._aborts or self._updates or self._in_flight)

    @property
    def idle_s(self) -> float | None:
        """How long a step would do nothing if nobody asked for anything: seconds, or None for as long as that is so.

        Where all there is waits for grammars to compile, that is until one of them has waited too long.
        """
        if self.can_step:
            return 0.0
        due_s = self._deadlines.next_s
        return None if due_s is None else min(MOST_IDLE_S, max(0.0, due_s - self._clock.now()))

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
        """Run one step, from its plan to its result, and return its news."""
        step = self.launch_step()
        if step is not None:
            self.sample_step(step)
            self.prepare_next()
            self.finish_step(step)
        return self.take_updates()

    def step_ahead(self) -> list[RequestUpdate]:
        """Launch the next step, then finish the one before it, and return the news of that one."""
        before = self._in_flight[0] if self._in_flight else None
        step = self.launch_step()
        if step is not None and not step.needs_masks:
            self.sample_step(step)
        if before is not None:
            self.finish_step(before)
        if step is not None and step.needs_masks:
            self.sample_step(step)
        return self.take_updates()

    def launch_step(self) -> Step | None:
        """Decide what the next step computes, and begin it; None where it has nothing to compute.

        The step before may still be in flight: what it samples is then counted on. Where only its end can make room,
        nothing is begun, and the caller finishes it first.
        """
        rows = self.plan_step()
        if not rows:
            return None
        rows.sort(key=_is_decode, reverse=True)  # attention has kernels for those
        self._steps += 1
        plan = build_plan(self._steps, rows, self._memory.page_size)
        for row in rows:
            row.request.flying = row
            row.request.setup_due = False
        step = Step(self._steps, rows, self._runner.launch(plan))
        self._counts.launched_rows += len(rows)
        self._memory.pool.step_launched(step.number)
        self._in_flight.append(step)
        return step

    def plan_step(self) -> list[Row]:
        """The rows of the next step, with their slots and pages."""
        self._receive_aborts()
        self._fail_expired()
        self._receive_compiled()
        rows = self._running.rows(self._chunk_size)
        if rows is None and self._in_flight:
            return []
        retractions = self._retractions
        if rows is None:
            rows = self._make_room()
        if self._retractions == retractions:
            rows += self._admit(self._chunk_size - sum(row.count for row in rows))
        return rows

    def sample_step(self, step: Step) -> None:
        """Have the rows of a launched step sampled under their masks.

        The step before must be processed if a request in it has a grammar: its token decides the mask.
        """
        for row in step.rows:
            if row.is_sampled and row.request.matcher is not None:
                self._find_mask(row)
        step.handle.sample(build_masks(step.rows, self._masks.take_updates()))

    def prepare_next(self) -> None:
        """Do what the next plan needs and this step's result does not change. To be called while the runner computes.

        Requests whose grammar is ready begin their text, and those that will soon sample their first token have its
        mask found.
        """
        self._receive_compiled()
        beginning = (request for request in self._running if request.prefilling)
        self._masks.prepare(itertools.chain(beginning, self._waiting))

    def finish_step(self, step: Step) -> None:
        """Wait for the oldest step in flight and take in what it computed. The news is for `take_updates`."""
        if not self._in_flight or self._in_flight[0] is not step:
            raise EngineError(f"step {step.number} is finished, but it is not the oldest in flight")
        result = step.handle.result()
        if result.step != step.number:
            raise EngineError(f"the result of step {result.step} came when step {step.number} was in flight")
        self._in_flight.popleft()
        self._memory.pool.step_done(step.number)
        self._counts.finished(step.number, len(step.rows), result.device_s)
        if self._memory.kept is not None:
            self._memory.kept.measured(sum(row.count for row in step.rows), result.device_s)
        sampled = scored = 0
        for row in step.rows:
            self._masks.release(row.mask_row)
            if not row.dropped:
                self._finish_row(row, result, sampled, scored)
            sampled += row.is_sampled
            scored += len(row.scored)
        if not self._running and not self._in_flight:
            self._memory.check_idle()

    def take_updates(self) -> list[RequestUpdate]:
        """The news since the last call."""
        updates, self._updates = self._updates, []
        return updates

    # -- planning ---------------------------------------------------------------------------------------------------

    def _receive_aborts(self) -> None:
        aborts, self._aborts = self._aborts, set()
        for request_id in sorted(aborts):
            request = self._requests[request_id]
            self._stop_compiling(request)
            request.abort()
            self._end(request, "")

    def _fail_expired(self) -> None:
        for request in self._deadlines.expired(self._clock.now()):
            self._stop_compiling(request)
            self._fail(request, _timed_out(request, self._clock.now()))

    def _stop_compiling(self, request: Request) -> None:
        if request.status == "waiting_grammar" and self._grammar_queue is not None:
            self._grammar_queue.remove(request)

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

    def _make_room(self) -> list[Row]:
        """Rows for the running requests when memory is short: those whose turn comes last wait again."""
        while (rows := self._running.rows(self._chunk_size)) is None:
            if len(self._running) > 1:
                self._retract(self._running.last)
            else:
                self._fail(self._running.last, self._too_large(self._running.last))
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
                row.request.first_step = self._steps + 1
                self._counts.started(row.request)
        if not self._in_flight:  # which may still make room
            for request in admission.too_large:
                self._fail(request, self._too_large(request))
        return admission.rows

    def _find_mask(self, row: Row) -> None:
        """Reference the mask of a row's next token, if that token can still be the request's."""
        if row.dropped or not row.takes_sample:
            return
        try:
            row.mask_row = self._masks.acquire(row.request)
        except Exception as error:
            self._fail(row.request, error)

    # -- processing -------------------------------------------------------------------------------------------------

    def _finish_row(self, row: Row, result: StepResult, sampled: int, scored: int) -> None:
        """Take in what a row computed, from these places in the result on, unless its request is to be aborted."""
        request = row.request
        if request.flying is row:
            request.flying = None
        if request.id in self._aborts:
            request.drop_flight()
        else:
            self._take_row(row, result, sampled, scored)

    def _take_row(self, row: Row, result: StepResult, sampled: int, scored: int) -> None:
        """Take in a row.

        One that failed ends its own request only. It is not committed: what it computed may be broken, and must not
        reach others through the radix cache.
        """
        request = row.request
        token_id = result.token_ids.item(sampled) if row.takes_sample else None
        if token_id is not None and token_id < 0:
            self._fail(request, _sampling_error(row, token_id))
        elif row.scored and np.isnan(result.score_logprobs[scored : scored + len(row.scored)]).any():
            self._fail(request, _not_finite(row))
        else:
            request.num_computed = row.stop
            request.computed_tokens += row.count
            if request.asks_scores:
                self._take_scores(row, result, scored)
            if token_id is not None:
                if request.first_token_s is None:
                    request.first_token_s = self._clock.now()
                self._take_token(request, token_id, result, sampled)
            if row.start < request.prefill_end:
                self._settle(row)

    def _take_scores(self, row: Row, result: StepResult, scored: int) -> None:
        request = row.request
        if row.scored:
            take_scores(request, result, slice(scored, scored + len(row.scored)))
        if request.kind == "score" and not request.remaining:
            request.finish(None)
            self._report(request, "")

    def _take_token(self, request: Request, token_id: int, result: StepResult, index: int) -> None:
        try:
            logprob = sampled_logprob(request, result, index)
            text = self._generation.take(request, token_id, logprob)
        except Exception as error:
            self._fail(request, error)
            return
        if request.matcher is not None and request.flying is not None and request.flying.is_outrun:
            request.went_ahead()
        self._report(request, text)

    def _settle(self, row: Row) -> None:
        """Let others use the prefix that a prefill has computed so far."""
        if row.request.status == "running":
            self._memory.commit(row.request)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _report(self, request: Request, text: str) -> None:
        """Pass on a request's text, and its end if it has ended."""
        if not request.is_active:
            self._end(request, text)
        elif request.stream and (text or request.text.num_tokens > request.reported):
            self._updates.append(RequestUpdate(request, text, False))

    def _fail(self, request: Request, error: Exception) -> None:
        if isinstance(error, GrammarLimitError) and request.grammar is not None and self._grammar_queue is not None:
            self._grammar_queue.forget(request.grammar)  # its states are shared: it would fail every later request
        request.fail(_as_palmette_error(error))
        self._end(request, "")

    def _end(self, request: Request, text: str) -> None:
        """The one way out, for every end: slot and pages come back, and the end is told."""
        if request.slot >= 0:
            if request.status == "finished" and request.place is not None and request.place.continued:
                self._memory.keep(request)
            self._running.remove(request)
        self._waiting.discard(request)
        self._estimate.finished(request)
        request.ended_s = self._clock.now()
        self._memory.left(request)
        self._counts.ended(request)
        self._aborts.discard(request.id)
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
        """Counts of queues, running batch, pages and cache at this moment, and of all that was done so far."""
        pool, cache = self._memory.pool, self._memory.cache
        return SchedulerStats(
            steps=self._steps,
            retractions=self._retractions,
            compiling=sum(request.status == "waiting_grammar" for request in self._requests.values()),
            waiting=len(self._waiting),
            running=len(self._running),
            free_pages=pool.free_pages + pool.returning_pages,
            evictable_pages=cache.evictable_pages if cache else 0,
            protected_pages=cache.protected_pages if cache else 0,
            total_pages=pool.num_pages,
            page_size=pool.page_size,
            **self._counts.totals(self._running),
        )

    def count_work(self, seconds: float) -> None:
        """Count time that was spent with work to do."""
        self._counts.working_s += seconds

    def cache_tree(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first."""
        return self._memory.describe(limit)

    def check_invariants(self) -> None:
        """Raise AssertionError unless pages, slots, queues and mask rows are accounted for. Between steps only."""
        self._memory.check_invariants(self._running)
        self._running.check_invariants()
        self._waiting.check_invariants()
        active = [*self._waiting, *self._running]
        active += [request for request in self._requests.values() if request.status == "waiting_grammar"]
        assert {request.id for request in active} == self._requests.keys()
        if self._mask_table is not None:
            flying = [row.mask_row for step in self._in_flight for row in step.rows]
            self._mask_table.check_invariants(held=[row for row in flying if row != UNCONSTRAINED])


def _is_decode(row: Row) -> bool:
    return row.count == 1


def _sampling_error(row: Row, failure: int) -> EngineError:
    if failure != NOTHING_ALLOWED:
        return _not_finite(row)
    return EngineError(
        f"request {row.request.id} cannot go on after {row.stop} tokens of prompt and output: every token that it may"
        " sample there has the logit -inf, by its grammar's mask or by the model"
    )


def _timed_out(request: Request, now_s: float) -> RequestTimeoutError:
    where = "was running" if request.status == "running" else "had not begun to run"
    if request.status == "waiting" and request.started_s is not None:
        where = "waited for memory again"
    return RequestTimeoutError(
        f"request {request.id} had not ended {now_s - request.arrived_s:.1f} s after it came: it {where}, with"
        f" {request.num_output} tokens of output; give it more time, ask for fewer tokens, or try again when less runs"
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
