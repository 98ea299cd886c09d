"""One program on the engine's side: nodes come in, requests go out, finished requests become events.

A node can start when the node before it on its branch is done, so finished generations release what follows them here,
without asking the client. Text, forks and joins are done as soon as they are reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from palmette.constrained.errors import PalmetteError

from .batch import Int32Array
from .choices import decide
from .clock import Clock
from .context import NO_OWNER, Context, Prompt, shared_length
from .detokenizer import OutputText
from .errors import RequestError
from .program import (
    ChoiceScore,
    Completion,
    Delta,
    Event,
    Failed,
    Generate,
    Generated,
    Node,
    NodeUsage,
    Select,
    Selected,
    Text,
)
from .request import Request
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")

NEEDS_UNCONDITIONAL = "unconditional_likelihood_normalized"

MAX_ANSWERS = 1024
"""Most answers of one generation: each is a request, and all of them are made before any other program goes on."""


@dataclass(slots=True)
class _Entry:
    """A node and where it stands. `context` is what follows the node, known once it is done."""

    node: Node
    children: list[_Entry] = field(default_factory=list)
    context: Context | None = None
    failed: tuple[str, str] | None = None
    job: _GenerateJob | _SelectJob | None = None


@dataclass(slots=True)
class _GenerateJob:
    """A generation in flight: one request for each of its answers."""

    node: Generate
    before: Context
    prompt: Prompt
    requests: tuple[Request, ...]
    started_s: float
    unfinished: int


@dataclass(slots=True)
class _SelectJob:
    """A select in flight: a score request for each choice, and for the unconditional method one without the prompt.

    `prompts` are those of `requests`.
    """

    node: Select
    before: Context
    prompts: tuple[Prompt, ...]
    score_from: int
    requests: tuple[Request, ...]
    started_s: float
    unfinished: int


class RequestTree:
    """The request tree of one program.

    It holds no lock and does no work of its own: the engine's thread calls `extend`, `deliver` and `abort`.
    """

    def __init__(
        self,
        tree_id: str,
        tokenizer: Tokenizer,
        clock: Clock,
        *,
        submit: Callable[[Request], None],
        abort: Callable[[str], object],
        emit: Callable[[Event], None],
        draw_seed: Callable[[], int],
    ) -> None:
        self._id = tree_id
        self._tokenizer = tokenizer
        self._clock = clock
        self._submit = submit
        self._abort = abort
        self._emit = emit
        self._draw_seed = draw_seed
        self._root = _Entry(node=Text(-1, None, ""), context=Context())
        self._entries: dict[int, _Entry] = {}
        self._of_request: dict[str, _Entry] = {}

    def extend(self, nodes: Iterable[Node]) -> None:
        """Add nodes, parents first and ids fresh (the session has checked), and start those that can run."""
        for node in nodes:
            entry = _Entry(node)
            self._entries[node.id] = entry
            self._parent(entry).children.append(entry)
            self._advance(entry)

    def deliver(self, request: Request, text: str, finished: bool) -> None:
        """Take news of one of this tree's requests: `text` to stream, and whether it has ended."""
        entry = self._of_request.get(request.id)
        job = entry.job if entry is not None else None
        if entry is None or job is None:
            return
        if text and isinstance(job, _GenerateJob) and job.node.stream:
            self._emit(Delta(job.node.id, text, job.requests.index(request)))
        if finished:
            del self._of_request[request.id]
            job.unfinished -= 1
            if job.unfinished == 0:
                entry.job = None
                self._attempt(entry, lambda: self._complete(entry, job))
                for child in entry.children:
                    self._advance(child)

    def abort(self) -> None:
        """Abort every request that has not ended; nothing more is emitted for them."""
        for request_id in list(self._of_request):
            del self._of_request[request_id]
            self._abort(request_id)

    def fail_all(self, kind: str, message: str) -> None:
        """Fail every node that is not done."""
        self._of_request.clear()
        for entry in list(self._entries.values()):
            if entry.context is None and entry.failed is None:
                self._fail(entry, kind, message)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _parent(self, entry: _Entry) -> _Entry:
        return self._root if entry.node.parent is None else self._entries[entry.node.parent]

    def _advance(self, entry: _Entry) -> None:
        """Start the node, and what follows it, as far as the text before it is known."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            before = self._parent(entry)
            if before.failed is not None:
                self._fail(entry, *before.failed)
            elif before.context is not None:
                self._attempt(entry, partial(self._begin, entry, before.context))
                if entry.context is not None:
                    stack.extend(reversed(entry.children))

    def _begin(self, entry: _Entry, before: Context) -> None:
        node = entry.node
        if isinstance(node, Generate):
            self._begin_generate(entry, node, before)
        elif isinstance(node, Select):
            self._begin_select(entry, node, before)
        elif isinstance(node, Text):
            entry.context = before.with_text(node.text, owner=node.id, template=node.template)
        else:
            entry.context = before

    def _attempt(self, entry: _Entry, step: Callable[[], None]) -> None:
        """Take a node one step on; an exception fails it, and never the engine."""
        try:
            step()
        except PalmetteError as error:
            self._fail(entry, type(error).__name__, str(error))
        except Exception as error:
            logger.exception("node %d failed", entry.node.id)
            self._fail(entry, "EngineError", f"{type(error).__name__}: {error}")

    def _fail(self, entry: _Entry, kind: str, message: str) -> None:
        """Fail the node and everything that waits for it."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            if entry.failed is None:
                entry.failed = (kind, message)
                entry.job = None
                if isinstance(entry.node, Generate | Select):
                    self._emit(Failed(entry.node.id, kind, message))
                stack.extend(reversed(entry.children))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _begin_generate(self, entry: _Entry, node: Generate, before: Context) -> None:
        if not 1 <= node.n <= MAX_ANSWERS:
            raise RequestError(f"n must be at least 1 and at most {MAX_ANSWERS}, not {node.n}; generate more in parts")
        prompt = before.encode(self._tokenizer)
        seed = self._draw_seed() if node.params.seed is None else node.params.seed
        requests = tuple(
            Request(
                id=f"{self._id}/{node.id}.{index}",
                kind="generate",
                prompt_ids=prompt.ids,
                params=_with_seed(node.params, seed + index),
                grammar=node.grammar,
                end_ids=self._tokenizer.end_ids,
                group=self._group(node),
                text=OutputText(self._tokenizer.token_bytes, node.params.stop),
            )
            for index in range(node.n)
        )
        entry.job = _GenerateJob(node, before, prompt, requests, self._clock.now(), len(requests))
        self._start(entry, requests)

    def _begin_select(self, entry: _Entry, node: Select, before: Context) -> None:
        if not node.choices:
            raise RequestError("select needs at least one choice")
        if not all(node.choices):
            raise RequestError(f"select cannot score choice {node.choices.index('')}, which is empty; give it text")
        prompts, score_from = self._choice_prompts(node, before)
        requests = [self._score(f"{node.id}.{i}", p.ids, score_from, node) for i, p in enumerate(prompts)]
        if node.method == NEEDS_UNCONDITIONAL:
            alone = tuple(p.after(score_from).after_start(self._tokenizer.start_id) for p in prompts)
            requests += [self._score(f"{node.id}.{i}u", p.ids, 1, node) for i, p in enumerate(alone)]
            prompts += alone
        entry.job = _SelectJob(node, before, prompts, score_from, tuple(requests), self._clock.now(), len(requests))
        self._start(entry, requests)

    def _choice_prompts(self, node: Select, before: Context) -> tuple[tuple[Prompt, ...], int]:
        """Each choice's tokens together with what stands before it, and the first place where any of them differs.

        A token may span the end of the prompt and the beginning of a choice, so every choice is scored from the first
        token that one of them does not share with the prompt alone. Something must stand before that token: where
        nothing does, the start token.
        """
        alone = before.encode(self._tokenizer)
        prompts = tuple(before.with_text(text, owner=node.id).encode(self._tokenizer) for text in node.choices)
        score_from = min(shared_length(alone.ids, prompt.ids) for prompt in prompts)
        if score_from > 0:
            return prompts, score_from
        return tuple(prompt.after_start(self._tokenizer.start_id) for prompt in prompts), 1

    def _score(self, name: str, ids: Int32Array, score_from: int, node: Select) -> Request:
        return Request(
            id=f"{self._id}/{name}",
            kind="score",
            prompt_ids=ids,
            params=SamplingParams(),
            score_from=score_from,
            group=self._group(node),
        )

    def _group(self, node: Generate | Select) -> str:
        return f"{self._id}/{node.parent}"

    def _start(self, entry: _Entry, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                self._submit(request)
            except Exception:
                self._abandon(entry)
                raise
            self._of_request[request.id] = entry

    def _abandon(self, entry: _Entry) -> None:
        """Abort the requests of a node."""
        for request_id in [name for name, owner in self._of_request.items() if owner is entry]:
            del self._of_request[request_id]
            self._abort(request_id)

    # -- results ----------------------------------------------------------------------------------------------------

    def _complete(self, entry: _Entry, job: _GenerateJob | _SelectJob) -> None:
        error = next((request.error for request in job.requests if request.error is not None), None)
        if error is not None:
            self._fail(entry, type(error).__name__, str(error))
            return
        if isinstance(job, _GenerateJob):
            self._complete_generate(entry, job)
        else:
            self._complete_select(entry, job)

    def _complete_generate(self, entry: _Entry, job: _GenerateJob) -> None:
        kept, tail = job.requests[0].text.kept_ids
        entry.context = job.before.with_output(job.prompt, kept, tail, owner=job.node.id)
        usage = _Usage()
        for request in job.requests:
            usage.add_prompt(job.prompt, request.cached_tokens)
            usage.add_output(job.node.id, len(request.output_ids) - request.forced, request.forced)
        completions = tuple(_completion(request) for request in job.requests)
        elapsed = self._clock.now() - job.started_s
        self._emit(Generated(job.node.id, completions, usage.nodes(), elapsed))

    def _complete_select(self, entry: _Entry, job: _SelectJob) -> None:
        scores = _choice_scores(job)
        choice = decide(job.node.method, scores)
        entry.context = job.before.with_text(job.node.choices[choice], owner=job.node.id)
        usage = _Usage()
        for prompt, request in zip(job.prompts, job.requests, strict=True):
            usage.add_prompt(prompt.before(len(prompt.ids) - 1), request.cached_tokens)  # the last is only scored
        first = job.requests[0]
        elapsed = self._clock.now() - job.started_s
        self._emit(Selected(job.node.id, choice, scores, job.score_from, first.cached_tokens, usage.nodes(), elapsed))


class _Usage:
    """Adds up, by node, tokens computed, reused and forced."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def add_prompt(self, prompt: Prompt, cached: int) -> None:
        for column, owners in ((1, prompt.owners[:cached]), (0, prompt.owners[cached:])):
            for owner, count in zip(*np.unique(owners, return_counts=True), strict=True):
                self._row(int(owner))[column] += int(count)

    def add_output(self, node: int, sampled: int, forced: int) -> None:
        self._row(node)[0] += sampled
        self._row(node)[2] += forced

    def nodes(self) -> tuple[NodeUsage, ...]:
        return tuple(NodeUsage(node, *row) for node, row in self._counts.items() if node != NO_OWNER)

    def _row(self, node: int) -> list[int]:
        return self._counts.setdefault(node, [0, 0, 0])


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return msgspec.structs.replace(params, seed=seed % (1 << 64))


def _completion(request: Request) -> Completion:
    kept, _ = request.text.kept_ids
    if request.finish_reason is None:
        raise AssertionError(f"request {request.id} ended without a reason")
    return Completion(
        text=request.text.text,
        token_ids=tuple(kept),
        finish_reason=request.finish_reason,
        matched=request.matched,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=request.cached_tokens,
        completion_tokens=len(request.output_ids),
        forced_tokens=request.forced,
        logprobs=tuple(request.logprobs) if request.params.logprobs is not None else None,
    )


def _choice_scores(job: _SelectJob) -> tuple[ChoiceScore, ...]:
    count = len(job.node.choices)
    alone = [tuple(r.score_logprobs) for r in job.requests[count:]] or [()] * count
    return tuple(
        ChoiceScore(tuple(prompt.ids[job.score_from :].tolist()), tuple(request.score_logprobs), unconditional)
        for prompt, request, unconditional in zip(job.prompts, job.requests, alone, strict=False)
    )
