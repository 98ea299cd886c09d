"""What a node asks of the scheduler: the requests of a generation or a select, and what their ends come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.constrained.stop_pattern import StopPatterns, stop_patterns

from .batch import Int32Array
from .choices import decide
from .context import Context, Prompt, shared_length
from .detokenizer import OutputText
from .errors import RequestError
from .logprobs import TokenText, output_logprobs, prompt_logprobs
from .program import ChoiceScore, Completion, Generate, Generated, Select, Selected, TokenLogprob
from .request import Request
from .sampling_params import SamplingParams
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
    """

    tree_id: str
    tokenizer: Tokenizer
    draw_seed: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to: its event, the text that its node adds, and the context after the node."""

    event: Generated | Selected
    text: str
    context: Context


@lru_cache(maxsize=256)
def compiled_stops(patterns: tuple[str, ...]) -> StopPatterns | PalmetteError:
    """Compiled stop patterns, or why they cannot be used; either is kept.

    A session calls this in its client's thread, so that the engine's finds it done.
    """
    try:
        return stop_patterns(patterns)
    except PalmetteError as error:
        return error


class Job(ABC):
    """A node's requests, from when it can start until the last of them has ended.

    Attributes:
        requests: all of them, made at once.
        unfinished: how many have not ended.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.unfinished = len(self.requests)

    @property
    def error(self) -> PalmetteError | None:
        """Why the job failed, if a request of it did."""
        return next((request.error for request in self.requests if request.error is not None), None)

    @abstractmethod
    def outcome(self, elapsed_s: float) -> Outcome:
        """What it came to, once all of its requests have ended well."""


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
        self._token_text = tokenizer.token_text
        patterns = compiled_stops(params.stop_regex) if params.stop_regex else None
        if isinstance(patterns, PalmetteError):
            raise patterns
        seed = workplace.draw_seed() if params.seed is None else params.seed
        super().__init__([self._request(index, seed, patterns, workplace) for index in range(node.n)])

    def outcome(self, elapsed_s: float) -> Outcome:
        node, first = self.node, self.requests[0]
        kept, tail = first.text.kept_ids
        context = self._before.with_output(self._prompt, kept, tail, owner=node.id)
        usage = UsageCount()
        for request in self.requests:
            usage.add_prompt(self._prompt, request.cached_tokens)
            usage.add_output(node.id, len(request.output_ids) - request.forced, request.forced)
        scored = prompt_logprobs(first, self._token_text)
        completions = tuple(_completion(request, scored, self._token_text) for request in self.requests)
        return Outcome(Generated(node.id, completions, usage.nodes(), elapsed_s), first.text.text, context)

    def _request(self, index: int, seed: int, patterns: StopPatterns | None, workplace: Workplace) -> Request:
        node, tokenizer = self.node, workplace.tokenizer
        scores = node.params.prompt_logprobs if index == 0 else None
        params = msgspec.structs.replace(node.params, seed=(seed + index) % (1 << 64), prompt_logprobs=scores)
        return Request(
            id=f"{workplace.tree_id}/{node.id}.{index}",
            kind="generate",
            prompt_ids=self._prompt.ids,
            params=params,
            grammar=node.grammar,
            end_ids=tokenizer.end_ids,
            group=_group(node, workplace),
            text=OutputText(tokenizer.token_bytes, params.stop, patterns),
        )


class SelectJob(Job):
    """A select: a score request for each choice, and for the unconditional method one without the prompt."""

    def __init__(self, node: Select, before: Context, workplace: Workplace) -> None:
        if not node.choices:
            raise RequestError("select needs at least one choice")
        if not all(node.choices):
            raise RequestError(f"select cannot score choice {node.choices.index('')}, which is empty; give it text")
        self.node = node
        self._before = before
        prompts, self._score_from = _choice_prompts(node, before, workplace.tokenizer)
        requests = [_score(f"{node.id}.{i}", p.ids, self._score_from, node, workplace) for i, p in enumerate(prompts)]
        if node.method == NEEDS_UNCONDITIONAL:
            alone = tuple(p.after(self._score_from).after_start(workplace.tokenizer.start_id) for p in prompts)
            requests += [_score(f"{node.id}.{i}u", p.ids, 1, node, workplace) for i, p in enumerate(alone)]
            prompts += alone
        self._prompts = prompts  # those of the requests
        super().__init__(requests)

    def outcome(self, elapsed_s: float) -> Outcome:
        node, scores = self.node, self._scores()
        choice = decide(node.method, scores)
        context = self._before.with_text(node.choices[choice], owner=node.id)
        usage = UsageCount()
        for prompt, request in zip(self._prompts, self.requests, strict=True):
            usage.add_prompt(prompt.before(len(prompt.ids) - 1), request.cached_tokens)  # the last is only scored
        cached = self.requests[0].cached_tokens
        event = Selected(node.id, choice, scores, self._score_from, cached, usage.nodes(), elapsed_s)
        return Outcome(event, node.choices[choice], context)

    def _scores(self) -> tuple[ChoiceScore, ...]:
        count = len(self.node.choices)
        alone = [tuple(request.score_logprobs) for request in self.requests[count:]] or [()] * count
        return tuple(
            ChoiceScore(tuple(prompt.ids[self._score_from :].tolist()), tuple(request.score_logprobs), unconditional)
            for prompt, request, unconditional in zip(self._prompts, self.requests, alone, strict=False)
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


def _score(name: str, ids: Int32Array, score_from: int, node: Select, workplace: Workplace) -> Request:
    return Request(
        id=f"{workplace.tree_id}/{name}",
        kind="score",
        prompt_ids=ids,
        params=SamplingParams(),
        score_from=score_from,
        group=_group(node, workplace),
    )


def _group(node: Generate | Select, workplace: Workplace) -> str:
    return f"{workplace.tree_id}/{node.parent}"


def _completion(request: Request, scored: tuple[TokenLogprob | None, ...] | None, token_text: TokenText) -> Completion:
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
        logprobs=output_logprobs(request, token_text),
        prompt_logprobs=scored,
    )
