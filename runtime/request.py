"""One request: its tokens, what it holds, how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from palmette.constrained.errors import PalmetteError
from palmette.constrained.grammar import Grammar

from .batch import Float32Array, Int32Array
from .detokenizer import OutputText, UnreadText
from .errors import EngineError, RequestAbortedError, RequestError
from .int32_buffer import Int32Buffer
from .messages import ProgramPlace, RequestKind
from .program import FinishReason, TokenLogprob
from .radix_node import RadixNode
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from palmette.constrained import Matcher

    from .program_table import Program
    from .step_builder import Line, Row

Status = Literal["waiting_grammar", "waiting", "running", "finished", "aborted", "failed"]

_NEXT: dict[Status, tuple[Status, ...]] = {
    "waiting_grammar": ("waiting", "aborted", "failed"),
    "waiting": ("running", "finished", "aborted", "failed"),  # finished: its grammar forces the whole answer
    "running": ("waiting", "finished", "aborted", "failed"),  # waiting: retracted
    "finished": (),
    "aborted": (),
    "failed": (),
}
"""The legal steps of a request's status."""

_ACTIVE = frozenset(status for status, following in _NEXT.items() if following)


@dataclass(slots=True)
class PageTable:
    """The pages of one request's context. `KVMemory` alone changes it.

    Attributes:
        pages: in order; the last may be partly filled.
        tree_pages: the first so many belong to the radix cache, the rest to the request.
        handle: the lock on those of the radix cache.
    """

    pages: Int32Buffer = field(default_factory=Int32Buffer)
    tree_pages: int = 0
    handle: RadixNode | None = None

    @property
    def own_pages(self) -> Int32Array:
        return self.pages.view[self.tree_pages :]


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """A request to generate after a prompt; a `ScoreRequest` scores texts instead.

    Prefill, decode and forced text are all the same: `token_ids` from `num_computed` on are still to be computed, and
    when a step computes the last of them, the next one is sampled. A part of the prompt may be scored on the way.

    Attributes:
        given: what errors call its tokens.
        has_limbs: its tokens need not follow one another: `lines` says which do.
        id: unique among active requests.
        kind: what is asked for.
        prompt_ids: [N] int32.
        params: how to sample and when to end.
        grammar: what the output must match.
        end_ids: the model's end-of-sequence tokens.
        group: siblings share it; they are admitted together where they fit.
        text: the output's text so far, with its stop strings.
        stream: its output is reported as it comes.
        priority: requests of a higher priority go first; ageing.py says how far.
        namespace: prefixes of the radix cache are shared only within one.
        place: where it stands in a program; None for a call of none.
        timeout_s: it fails when it has not ended so long after its arrival; None takes the engine's limit.

        status: changed by `move_to` alone.
        arrival: order of arrival, kept through retractions.
        program: that it belongs to; what `ProgramTable` knows of it.
        expected_room: tokens that it was expected to take beyond those in the cache, when it began to run.
        turn_s: when its turn begins to count: its arrival, or its program's.
        deadline_s: when it fails if it has not ended, by the scheduler's clock; None never.
        passed_s: when a request whose turn came later first began before this one; None never.
        aged: that is so long ago that it may not happen again.
        waits_for: while it waits and is aged: who computes, or computed, the prefix that it let others go first for.
        end: tokens that must be computed before the next one is sampled or the scores are complete: all that are known.
            `append` alone changes it.
        asks_scores: log-probabilities of tokens that are known already may be wanted: of the prompt, or forced.
        score_from: log-probabilities of prompt_ids[score_from:] are wanted, from 1 on; N for none.
        max_output: most tokens of output: max_tokens, or less where the context is shorter.
        stop_ids: tokens that end the output.
        slot: index in the runner's per-request buffers while running.
        num_computed: the one committed length: keys and values of so many tokens are in the page table.
        flying: its row of the step that was launched last, until that step is processed.
        prefill_end: while running: the tokens that were known on admission.
        setup_due: the runner's sampling state for this request must be loaded with its next row.
        matcher: where the output stands in its grammar, once that is compiled.
        steered: the next token must be drawn under `Matcher.mask_within`, so that an ending still fits.
        page_table: the pages it holds.

        reported, reported_logprobs: tokens of its text, and of its log-probabilities, that were reported.
        forced: how many output tokens the grammar forced.
        forced_ranges: which of them, as (begin, end) in order.
        logprobs: one an output token, where asked for; those of forced tokens come with the step that computes them.
        score_logprobs: of prompt_ids[score_from:], as far as known.
        score_top: the likeliest tokens there beside them, in parts of any length, as (ids [n, k], logprobs [n, k]).
        finish_reason, matched: why it ended (None for scores); the stop string or token id that ended it.
        error: why it failed or was aborted.
        cached_tokens: prompt tokens found in the radix cache when it first ran.
        computed_tokens: tokens computed for it, those computed again after a retraction included.
        retractions: how often it gave its pages back and waited again.
        arrived_s, started_s, first_token_s, ended_s: the scheduler's clock at arrival, first admission, the first
            token that was sampled, and end.
        first_step, last_step: the steps in which it ran; 0 where it never did.
        rows_before, rows_at_end: rows of all steps before its first, and up to its last.
    """

    given: ClassVar[str] = "the prompt"
    has_limbs: ClassVar[bool] = False

    id: str
    kind: RequestKind = "generate"
    prompt_ids: Int32Array
    params: SamplingParams
    grammar: Grammar | None = None
    end_ids: AbstractSet[int] = frozenset()
    group: str | None = None
    text: OutputText | UnreadText = field(default_factory=lambda: OutputText((), ()))
    stream: bool = True
    priority: int = 0
    namespace: str = ""
    timeout_s: float | None = None
    place: ProgramPlace | None = None

    status: Status = field(init=False)
    arrival: int = field(default=-1, init=False)
    program: Program | None = field(default=None, init=False)
    expected_room: int = field(default=0, init=False)
    turn_s: float = field(default=0.0, init=False)
    deadline_s: float | None = field(default=None, init=False)
    passed_s: float | None = field(default=None, init=False)
    aged: bool = field(default=False, init=False)
    waits_for: Request | None = field(default=None, init=False)
    score_from: int = field(init=False)
    max_output: int = field(init=False)
    slot: int = field(default=-1, init=False)
    num_computed: int = field(default=0, init=False)
    flying: Row | None = field(default=None, init=False)
    reported: int = field(default=0, init=False)
    reported_logprobs: int = field(default=0, init=False)
    prefill_end: int = field(default=0, init=False)
    setup_due: bool = field(default=False, init=False)
    matcher: Matcher | None = field(default=None, init=False)
    steered: bool = field(default=False, init=False)
    page_table: PageTable = field(default_factory=PageTable, init=False)

    forced: int = field(default=0, init=False)
    forced_ranges: list[tuple[int, int]] = field(default_factory=list, init=False)
    logprobs: list[TokenLogprob] = field(default_factory=list, init=False)
    score_logprobs: list[float] = field(default_factory=list, init=False)
    score_top: list[tuple[Int32Array, Float32Array]] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    matched: str | int | None = field(default=None, init=False)
    error: PalmetteError | None = field(default=None, init=False)
    cached_tokens: int = field(default=0, init=False)
    computed_tokens: int = field(default=0, init=False)
    retractions: int = field(default=0, init=False)
    arrived_s: float = field(default=0.0, init=False)
    started_s: float | None = field(default=None, init=False)
    first_token_s: float | None = field(default=None, init=False)
    ended_s: float | None = field(default=None, init=False)
    first_step: int = field(default=0, init=False)
    last_step: int = field(default=0, init=False)
    rows_before: int = field(default=0, init=False)
    rows_at_end: int = field(default=0, init=False)
    stop_ids: AbstractSet[int] = field(init=False)
    end: int = field(init=False)
    asks_scores: bool = field(init=False)
    _tokens: Int32Buffer = field(init=False)
    _prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.status = "waiting" if self.grammar is None else "waiting_grammar"
        self.max_output = self.params.max_tokens
        stops = frozenset(self.params.stop_token_ids)
        self.stop_ids = stops if self.params.ignore_eos else stops | self.end_ids
        self._tokens = Int32Buffer(self.prompt_ids)
        self._prompt_length = len(self.prompt_ids)
        self.end = self._prompt_length
        asked = self.params.prompt_logprobs is not None
        self.asks_scores = asked or self.params.logprobs is not None or self.kind == "score"
        self.score_from = max(1, self.params.prompt_logprobs_from) if asked else self._prompt_length

    # -- tokens -----------------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> Int32Array:
        """Prompt and output, forced tokens included."""
        return self._tokens.view

    @property
    def output_ids(self) -> Int32Array:
        """The output, with the token that ended it."""
        return self._tokens.view[self._prompt_length :]

    def output_after(self, place: int, stop: int | None = None) -> list[int]:
        """The tokens of output from `place` on, or up to `stop`."""
        first = self._prompt_length
        return self._tokens.between(first + place, self.end if stop is None else first + stop)

    @property
    def num_output(self) -> int:
        return self.end - self._prompt_length

    @property
    def tokens_left(self) -> int:
        """How many more tokens of output there may be."""
        return self.max_output + self._prompt_length - self.end

    @property
    def remaining(self) -> int:
        """Tokens still to compute."""
        return self.end - self.num_computed

    # -- what the next step computes --------------------------------------------------------------------------------

    @property
    def next_start(self) -> int:
        """Where the next row begins: behind what is computed or being computed."""
        return self.num_computed if self.flying is None else self.flying.stop

    @property
    def sample_due(self) -> bool:
        """Whether a step in flight samples the next token."""
        return self.flying is not None and self.flying.is_sampled and self.flying.stop == self.end

    @property
    def next_tokens(self) -> int:
        """Most tokens that the next row may have; none where what is in flight surely ends the request."""
        if not self.sample_due:
            return self.end - self.next_start
        return 1 if self.tokens_left > 1 else 0

    def drop_flight(self) -> None:
        """What is in flight for it counts no more."""
        if self.flying is not None:
            self.flying.dropped = True
            self.flying = None

    def went_ahead(self) -> None:
        """Its grammar has forced tokens that the row in flight does not know: what that row samples is not taken."""
        self.setup_due = self.params.has_penalties  # the sampler will have counted it
        if self.params.logprobs is not None:  # a forced token is scored by the row that computes the one before it
            self.drop_flight()

    @property
    def goes_on(self) -> bool:
        """Whether it is a later call of a program that has begun."""
        return self.program is not None and self.program.begun

    @property
    def prefilling(self) -> bool:
        """Whether tokens that were known on admission are still to be computed."""
        return self.num_computed < self.prefill_end

    @property
    def longest_prefix(self) -> int:
        """Most tokens that may come from the radix cache: what predicts the next result is computed."""
        unscored = self.unscored
        return unscored.start - 1 if unscored else self.end - 1

    @property
    def unscored(self) -> range:
        """Places whose log-probabilities are wanted and not known yet: of the prompt, or else of forced output."""
        in_prompt = range(self.score_from + len(self.score_logprobs), self._prompt_length)
        if in_prompt or self.params.logprobs is None:
            return in_prompt
        return range(self._prompt_length + len(self.logprobs), self.end)

    def scored_by(self, start: int, stop: int) -> range:
        """Which of `unscored` the tokens from `start` to `stop` tell."""
        unscored = self.unscored
        return range(max(start + 1, unscored.start), min(stop + 1, unscored.stop)) if unscored else unscored

    def scoring(self, scored: range) -> tuple[Int32Array, Int32Array]:
        """For places of `unscored`: the tokens that tell them, by index, and the ids that they score."""
        return np.arange(scored.start - 1, scored.stop - 1, dtype=np.int32), self.token_ids[scored.start : scored.stop]

    def are_output(self, scored: range) -> bool:
        """Whether places of `unscored` are of forced output, not of the prompt."""
        return scored.start >= self._prompt_length

    # -- how its tokens follow each other ---------------------------------------------------------------------------

    @property
    def path_end(self) -> int:
        """So many of its tokens, from the first on, follow one another: the radix cache may keep those."""
        return self.end

    @property
    def context_needed(self) -> int:
        """Tokens of the longest context that it surely comes to."""
        return self._prompt_length + 1

    def too_long_for(self, context_length: int) -> str:
        """What to tell its client where that context is too long."""
        return (
            f"the prompt has {self._prompt_length} tokens, but at most {context_length - 1} fit this model's context of"
            f" {context_length} tokens together with one token of output; shorten the prompt"
        )

    @property
    def largest_token(self) -> int:
        """The largest id among its tokens and those that it scores."""
        return int(self.prompt_ids.max())

    def pages_for(self, tokens: int, page_size: int) -> int:
        """Pages that hold its first `tokens` tokens."""
        return -(-tokens // page_size)

    def tokens_within(self, pages: int, page_size: int) -> int:
        """Most tokens, from the first on, that so many pages hold."""
        return pages * page_size

    def lines(self, row: Row) -> Sequence[Line]:
        """The parts of a row whose tokens follow one another."""
        return (row,)

    # -- output -----------------------------------------------------------------------------------------------------

    def append(self, token_id: int) -> None:
        """Add a token of output."""
        self._tokens.append(token_id)
        self.end += 1

    def draw_again(self) -> None:
        """Have the next step sample the token that was just sampled once more: it was not taken."""
        self.drop_flight()
        self.num_computed -= 1
        self.setup_due = self.params.has_penalties  # the sampler has counted the token already

    @property
    def mean_batch_size(self) -> float:
        """Requests in a step, itself counted: the mean from its first step to its last; 0 where it never ran."""
        steps = self.last_step + 1 - self.first_step
        return (self.rows_at_end - self.rows_before) / steps if self.last_step else 0.0

    # -- status -----------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self.status in _ACTIVE

    def move_to(self, status: Status) -> None:
        """Change the status by one legal step.

        Raises:
            EngineError: the step is not legal.
        """
        if status not in _NEXT[self.status]:
            raise EngineError(f"request {self.id} cannot go from {self.status} to {status}")
        self.status = status

    def finish(self, reason: FinishReason | None, matched: str | int | None = None) -> None:
        self.move_to("finished")
        self.finish_reason, self.matched = reason, matched

    def fail(self, error: PalmetteError) -> None:
        self.move_to("failed")
        self.error = error

    def abort(self) -> None:
        self.move_to("aborted")
        self.finish_reason = "abort"
        self.error = RequestAbortedError(f"request {self.id} was aborted")


def check_request(request: Request, *, context_length: int, pool_tokens: int, vocab_size: int | None = None) -> None:
    """Refuse a request that cannot run however long it waits.

    Args:
        vocab_size: number of the model's tokens, which may be fewer than its tokenizer's; None does not check.

    Raises:
        RequestError: the message names the numbers.
    """
    length = len(request.prompt_ids)
    if length == 0:
        raise RequestError("the prompt is empty; a prompt needs at least one token")
    if vocab_size is not None and (largest := request.largest_token) >= vocab_size:
        raise RequestError(
            f"{request.given} has token {largest} of the tokenizer, but the model knows tokens 0 to {vocab_size - 1}"
            " only: leave that special token out"
        )
    if request.params.prompt_logprobs is not None and request.params.prompt_logprobs_from >= length:
        raise RequestError(
            f"prompt_logprobs_from={request.params.prompt_logprobs_from} is past the prompt of {length} tokens; it may"
            f" be 0 to {length - 1}"
        )
    if request.context_needed > context_length:
        raise RequestError(request.too_long_for(context_length))
    if request.end > pool_tokens:
        raise RequestError(
            f"{request.given} has {length} tokens, but the KV pool holds {pool_tokens}; shorten the prompt or start the"
            " engine with a larger max_total_tokens"
        )
