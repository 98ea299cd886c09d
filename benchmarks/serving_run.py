"""Runs a workload of `serving_workloads` on a scheduler, as an offline engine does, and checks what comes out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from benchmarks.serving_workloads import Ask, Workload

from palmette.constrained import Grammar
from palmette.runtime.batch import Int32Array
from palmette.runtime.detokenizer import UnreadText
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler import Scheduler

_names = count()


@dataclass(frozen=True)
class Run:
    """One pass through a workload.

    Attributes:
        seconds: from the first request to the last token of the last.
        busy: the part of the time in which the device computed.
        steps: of the scheduler.
        computed: tokens that went through the model; those that came from the cache or were forced and never computed
            count as none.
        tokens: generated, forced ones included.
        outputs: [requests of all rounds] token ids, in the order of the workload.
    """

    seconds: float
    busy: float
    steps: int
    computed: int
    tokens: int
    retractions: int
    outputs: tuple[Int32Array, ...]


class Client:
    """Submits the rounds of workloads to a scheduler and steps it with overlap until they are done.

    Args:
        grammar: of the workload that is held to one.
        end_ids: tokens that may end its answers.
        now: the clock by which time is counted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        grammar: Grammar | None = None,
        end_ids: frozenset[int] = frozenset(),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._grammar = grammar
        self._end_ids = end_ids
        self._now = now
        self._compiled = threading.Event()
        self._submitted: list[Request] = []
        scheduler.on_grammar_ready(self._compiled.set)

    def run(self, workload: Workload) -> Run:
        """Run a workload; the cache is left as it is.

        Raises:
            PalmetteError: of the first request that failed.
            AssertionError: an output has not the length that was asked for.
        """
        before, began = self._scheduler.stats(), self._now()
        requests: list[Request] = []
        histories: dict[int, Int32Array] = {}
        for asks in workload.rounds:
            requests += self._round(asks, histories, workload)
        seconds, after = self._now() - began, self._scheduler.stats()
        outputs = tuple(request.output_ids.copy() for request in requests)
        _check(requests, workload)
        return Run(
            seconds=seconds,
            busy=(after.device_s - before.device_s) / max(1e-9, after.working_s - before.working_s),
            steps=after.steps - before.steps,
            computed=sum(request.computed_tokens for request in requests),
            tokens=sum(map(len, outputs)),
            retractions=after.retractions - before.retractions,
            outputs=outputs,
        )

    def submit(self, workload: Workload) -> None:
        """Have the first round of a workload wait for its first step."""
        self._submitted = [self._request(ask, {}, workload) for ask in workload.rounds[0]]
        for request in self._submitted:
            self._scheduler.add(request)

    @property
    def all_decode(self) -> bool:
        """Whether the prompts of all that was submitted last are computed."""
        return not any(
            request.status in ("waiting_grammar", "waiting") or (request.status == "running" and request.prefilling)
            for request in self._submitted
        )

    def _round(self, asks: Sequence[Ask], histories: dict[int, Int32Array], workload: Workload) -> list[Request]:
        began = self._now()
        requests = [self._request(ask, histories, workload) for ask in asks]
        for request in requests:
            self._scheduler.add(request)
        self._scheduler.count_work(self._now() - began)
        self._drain()
        for ask, request in zip(asks, requests, strict=True):
            if request.error is not None:
                raise request.error
            if ask.session is not None:
                histories[ask.session] = request.token_ids
        return requests

    def _request(self, ask: Ask, histories: dict[int, Int32Array], workload: Workload) -> Request:
        prompt = ask.prompt
        if ask.session in histories:
            prompt = np.concatenate((histories[ask.session], prompt))
        params = SamplingParams(
            temperature=1.0 if workload.is_json else 0.0, max_tokens=ask.new_tokens, ignore_eos=not workload.is_json
        )
        return Request(
            id=str(next(_names)),
            kind="generate",
            prompt_ids=prompt,
            params=params,
            grammar=self._grammar if workload.is_json else None,
            end_ids=self._end_ids,
            text=UnreadText(),
            stream=False,
        )

    def _drain(self) -> None:
        scheduler = self._scheduler
        while scheduler.has_work:
            self._compiled.clear()
            began = self._now()
            if scheduler.can_step:
                scheduler.step_ahead()
                scheduler.prepare_next()
                scheduler.count_work(self._now() - began)
            else:
                self._compiled.wait(0.1)


def _check(requests: Sequence[Request], workload: Workload) -> None:
    asks = [ask for asks in workload.rounds for ask in asks]
    for ask, request in zip(asks, requests, strict=True):
        made = request.num_output
        right = made <= ask.new_tokens if workload.is_json else made == ask.new_tokens
        assert right, f"{made} tokens were generated where {ask.new_tokens} were asked for"
