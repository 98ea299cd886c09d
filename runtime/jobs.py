"""What a node asks of the scheduler: the requests of a generation or a select, and what their ends come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from .answer_timings import Beginning, forced_characters, timings_of, timings_of_all
from .choices import decide
from .context import Context, Prompt, shared_length
from .errors import RequestError
from .logprobs import prompt_logprobs, spelled
from .messages import USUAL_OPTIONS, NewRequest, RequestEnd, RequestFailure, RequestOutput, SessionOptions
from .program import ChoiceScore, Completion, Delta, Generate, Generated, Select, Selected, TokenLogprob
from .sampling_params import SamplingParams
from .stops import check_stops
from .text_scoring import TextScoring
from .tokenizer import Tokenizer
from .usage_count import UsageCount

NEEDS_UNCONDITIONAL = "unconditional_likelihood_normalized"

MAX_ANSWERS = 1024
"""Most answers of one generation: each is a request, and all of them are made before any other program goes on."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the jobs of one program are made with.

    Attributes:
        tree_id: begins the id of every request.
        draw_seed: a seed for a generation that names none.
        options: of the program.
    """

    tree_id: str
    tokenizer: Tokenizer
    draw_seed: Callable[[], int]
    options: SessionOptions = USUAL_OPTIONS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to: its event, the text that its node adds, and the context after the node."""

    event: Generated | Selected
    text: str
    context: Context


class Job(ABC):
    """A node's requests, from when it can start until the last of them has ended.

    Attributes:
        requests: all of them, made at once.
        ends: what each came to, as far as known.
        unfinished: how many have not ended.
        failure: why the job failed: the first that came, since what fails after it was aborted for it.
        beginning: when it could begin.
    """

    def __init__(self, requests: Sequence[NewRequest]) -> None:
        self.requests = tuple(requests)
        self.ends: list[RequestEnd | None] = [None] * len(self.requests)
        self.unfinished = len(self.requests)
        self.failure: RequestFailure | None = None
        self.beginning = Beginning()
        self._places = {request.id: place for place, request in enumerate(self.requests)}

    def place(self, request_id: str) -> int:
        """The place of a request among `requests`."""
        return self._places[request_id]

    def take_end(self, request_id: str, end: RequestEnd) -> None:
        """A request has ended."""
        self.ends[self._places[request_id]] = end
        self.unfinished -= 1
        self.failure = self.failure or end.failure

    @abstractmethod
    def outcome(self, elapsed_s: float) -> Outcome:
        """What it came to, once all of its requests have ended well."""

    @property
    def _all_ends(self) -> list[RequestEnd]:
        return [end for end in self.ends if end is not None]


def job_of(node: Generate | Select, before: Context, workplace: Workplace) -> Job:
    """The job of a node whose context is known.

    Raises:
        RequestError: the node's own options cannot be served.
        GrammarError: a stop pattern of it cannot be used.
    """
    return GenerateJob(node, before, workplace) if isinstance(node, Generate) else SelectJob(node, before, workplace)


class GenerateJob(Job):
    """A generation: one request for each of its answers. The first has the prompt scored for all of them."""

    def __init__(self, node: Generate, before: Context, workplace: Workplace) -> None:
        if not 1 <= node.n <= MAX_ANSWERS:
            raise RequestError(f"n must be at least 1 and at most {MAX_ANSWERS}, not {node.n}; generate more in parts")
        tokenizer, params = workplace.tokenizer, node.params
        self.node = node
        self._before = before
        self._prompt = before.encode(tokenizer)
        self._token_text, self._token_bytes = tokenizer.token_text, tokenizer.token_bytes
        check_stops(params.stop_regex)
        seed = workplace.draw_seed() if params.seed is None else params.seed
        super().__init__([self._request(index, seed, workplace) for index in range(node.n)])

    def outcome(self, elapsed_s: float) -> Outcome:
        node, ends = self.node, self._all_ends
        first = ends[0]
        context = self._before.with_output(self._prompt, first.kept_ids, first.tail, owner=node.id)
        usage = UsageCount()
        for end in ends:
            usage.add_prompt(self._prompt, end.cached_tokens)
            usage.add_output(node.id, end.output_tokens - end.forced_tokens, end.forced_tokens)
        scored = prompt_logprobs(self.requests[0].params, self._prompt.ids, first, self._token_text)
        completions = tuple(self._completion(end, scored) for end in ends)
        return Outcome(Generated(node.id, completions, usage.nodes(), elapsed_s), first.text or "", context)

    def delta(self, output: RequestOutput) -> Delta | None:
        """What `output` adds to one of the answers; None where it adds nothing to see."""
        if not output.text and not output.logprobs:
            return None
        logprobs = spelled(output.logprobs, self.node.params, self._token_text)
        return Delta(self.node.id, output.text or "", self.place(output.id), logprobs)

    def _completion(self, end: RequestEnd, scored: tuple[TokenLogprob | None, ...] | None) -> Completion:
        if end.finish_reason is None:
            raise AssertionError(f"an answer of node {self.node.id} ended without a reason")
        params = self.node.params
        return Completion(
            text=end.text or "",
            token_ids=end.kept_ids,
            finish_reason=end.finish_reason,
            matched=end.matched,
            prompt_tokens=len(self._prompt.ids),
            cached_tokens=end.cached_tokens,
            completion_tokens=end.output_tokens,
            forced_tokens=end.forced_tokens,
            logprobs=None if params.logprobs is None else spelled(end.logprobs, params, self._token_text),
            prompt_logprobs=scored,
            forced_ranges=forced_characters(end, self._token_bytes),
            timings=timings_of(end, self.beginning),
        )

    def _request(self, index: int, seed: int, workplace: Workplace) -> NewRequest:
        node = self.node
        scores = node.params.prompt_logprobs if index == 0 else None
        params = msgspec.structs.replace(node.params, seed=(seed + index) % (1 << 64), prompt_logprobs=scores)
        return NewRequest(
            id=f"{workplace.tree_id}/{node.id}.{index}",
            kind="generate",
            prompt_ids=self._prompt.ids.tobytes(),
            params=params,
            grammar=node.grammar,
            group=_group(node, workplace),
            stream=node.stream,
            options=workplace.options,
        )


class SelectJob(Job):
    """A select: its choices are scored by one request, and for the unconditional method by another without the prompt.

    Thousands of choices take a few more (`TextScoring`).
    """

    def __init__(self, node: Select, before: Context, workplace: Workplace) -> None:
        if not node.choices:
            raise RequestError("select needs at least one choice")
        if not all(node.choices):
            raise RequestError(f"select cannot score choice {node.choices.index('')}, which is empty; give it text")
        self.node = node
        self._before = before
        prompts, score_from = _choice_prompts(node, before, workplace.tokenizer)
        self._given = TextScoring(prompts, score_from)
        self._alone: TextScoring | None = None
        requests = _score_requests(self._given, "", node, workplace)
        if node.method == NEEDS_UNCONDITIONAL:
            start_id = workplace.tokenizer.start_id
            self._alone = TextScoring([prompt.after(score_from).after_start(start_id) for prompt in prompts], 1)
            requests += _score_requests(self._alone, "u", node, workplace)
        super().__init__(requests)

    def outcome(self, elapsed_s: float) -> Outcome:
        node, scores = self.node, self._scores()
        choice = decide(node.method, scores)
        context = self._before.with_text(node.choices[choice], owner=node.id)
        usage = UsageCount()
        self._given.count(usage, self._all_ends[: len(self._given)])
        if self._alone is not None:
            self._alone.count(usage, self._all_ends[len(self._given) :])
        cached = self._all_ends[0].cached_tokens
        timings = timings_of_all(self._all_ends, self.beginning)
        event = Selected(node.id, choice, scores, self._given.score_from, cached, usage.nodes(), elapsed_s, timings)
        return Outcome(event, node.choices[choice], context)

    def _scores(self) -> tuple[ChoiceScore, ...]:
        ends, count = self._all_ends, len(self._given)
        given = self._given.logprobs(ends[:count])
        alone = [()] * len(given) if self._alone is None else self._alone.logprobs(ends[count:])
        return tuple(
            ChoiceScore(self._given.scored_ids(choice), logprobs, unconditional)
            for choice, (logprobs, unconditional) in enumerate(zip(given, alone, strict=True))
        )


def _choice_prompts(node: Select, before: Context, tokenizer: Tokenizer) -> tuple[tuple[Prompt, ...], int]:
    """Each choice's tokens together with what stands before it, and the first place where any of them differs.

    A token may span the end of the prompt and the beginning of a choice, so every choice is scored from the first
    token that one of them does not share with the prompt alone. Something must stand before that token: where nothing
    does, the start token.
    """
    alone = before.encode(tokenizer)
    prompts = tuple(before.with_text(text, owner=node.id).encode(tokenizer) for text in node.choices)
    score_from = min(shared_length(alone.ids, prompt.ids) for prompt in prompts)
    if score_from > 0:
        return prompts, score_from
    return tuple(prompt.after_start(tokenizer.start_id) for prompt in prompts), 1


def _score_requests(scoring: TextScoring, mark: str, node: Select, workplace: Workplace) -> list[NewRequest]:
    return [
        NewRequest(
            id=f"{workplace.tree_id}/{node.id}.{index}{mark}",
            kind="score",
            prompt_ids=token_ids.tobytes(),
            params=SamplingParams(seed=0),
            tree=tree,
            group=_group(node, workplace),
            options=workplace.options,
        )
        for index, (token_ids, tree) in enumerate(scoring.requests())
    ]


def _group(node: Generate | Select, workplace: Workplace) -> str:
    return f"{workplace.tree_id}/{node.parent}"
