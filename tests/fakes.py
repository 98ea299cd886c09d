"""A scheduler on scripted parts: exact and instant, and checked after every step.

`expected_answer` gives the right answer of a request without pages, chunks, batches or a scheduler.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.fake_grammar import InlineExecutor, ScriptedCompiler, ScriptedGrammar, forced_tokens
from tests.fake_runner import (
    END_ID,
    OTHER_END_ID,
    TOKEN_BYTES,
    VOCABULARY,
    FakeClock,
    FakeModel,
    FakeRunner,
    everything,
    held_back,
    ids,
    random_stream,
    unpack,
)

from palmette.constrained import CompiledGrammar, Grammar, MaskTable, Matcher
from palmette.constrained.stop_pattern import stop_patterns
from palmette.runtime.batch import Int32Array
from palmette.runtime.choice_tree import ChoiceTree
from palmette.runtime.config import EngineConfig
from palmette.runtime.detokenizer import OutputText
from palmette.runtime.grammar_cache import GrammarCache
from palmette.runtime.grammar_queue import GrammarQueue
from palmette.runtime.messages import RequestKind
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler import RequestUpdate, Scheduler
from palmette.runtime.score_request import ScoreRequest, TreeLayout


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
    """A request of the fake vocabulary; greedy unless `params` say otherwise. One of kind "score" scores the prompt."""
    if kind == "score":
        return make_score(request_id, [prompt], score_from, group=group)
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 5, **params})
    patterns = stop_patterns(sampling.stop_regex) if sampling.stop_regex else None
    return Request(
        id=request_id,
        prompt_ids=ids(*prompt),
        params=sampling,
        grammar=grammar,
        end_ids=frozenset((END_ID, OTHER_END_ID)),
        group=group,
        text=OutputText(TOKEN_BYTES, sampling.stop, patterns),
    )


def make_score(
    request_id: str, texts: Sequence[Sequence[int]], score_from: int, *, group: str | None = None, page_size: int = 1
) -> ScoreRequest:
    """A request for the scores of texts whose first `score_from` tokens are the same."""
    arrays = [ids(*text) for text in texts]
    tree = ChoiceTree.of(arrays, score_from)
    layout = TreeLayout.of(tree.tokens(arrays), tree.shape, page_size)
    params = SamplingParams(seed=0)
    return ScoreRequest(id=request_id, prompt_ids=layout.token_ids, tree=layout, params=params, group=group)


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


def text_of(request: Request) -> OutputText:
    """The text of a request whose text the scheduler reads, as it does for all that `make_request` makes."""
    assert isinstance(request.text, OutputText)
    return request.text


def expected_scores(request: Request) -> list[float]:
    """The right log-probabilities of a request whose prompt, or whose tree, is scored."""
    if isinstance(request, ScoreRequest):
        paths, targets = _scored_paths(request.tree), request.tree.targets.tolist()
    else:
        places = range(request.score_from, len(request.prompt_ids))
        paths, targets = [request.prompt_ids[:i] for i in places], request.prompt_ids[request.score_from :].tolist()
    return [float(FakeModel().logprobs(path)[target]) for path, target in zip(paths, targets, strict=True)]


def _scored_paths(tree: TreeLayout) -> list[Int32Array]:
    """The tokens up to each of those that score others."""
    path: list[int] = []
    path_of: list[list[int]] = []
    for limb, (first, start) in enumerate(zip(tree.firsts, tree.starts, strict=True)):
        path = path[:start]
        for token_id in tree.token_ids[first : tree.stop_of(limb)].tolist():
            path = [*path, token_id]
            path_of.append(path)
    return [ids(*path_of[source]) for source in tree.sources]


class FakeEngine:
    """A scheduler on a fake runner; its steps overlap where `overlap` says so, or else the class does.

    Every step checks all invariants and then destroys what free pages hold.

    Attributes:
        texts: by request id, the streamed text so far.
        finished: requests in the order they ended.
    """

    overlaps = False

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
        overlap: bool | None = None,
        **settings: Any,
    ) -> None:
        self.overlap = self.overlaps if overlap is None else overlap
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
                compiler or ScriptedCompiler(*grammars), executor=executor or InlineExecutor(), cache=GrammarCache(8)
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
        updates = self.scheduler.step_ahead() if self.overlap else self.scheduler.step()
        if self.overlap:
            self.scheduler.prepare_next()
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
        assert text_of(request).text == expected.text, request.id
        if request.stream:
            assert self.texts[request.id] == expected.text, request.id
        assert request.finish_reason == expected.finish_reason, request.id
        assert request.score_logprobs == expected_scores(request), request.id
        if grammar is not None:
            assert grammar.matches(request.output_ids.tolist()), request.id

    def check_empty(self) -> None:
        """Raise AssertionError unless every page is back once the cache is flushed."""
        self.scheduler.flush_cache()
        stats = self.scheduler.stats()
        assert stats.free_pages == stats.total_pages
        assert stats.running == stats.waiting == stats.compiling == 0
