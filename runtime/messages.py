"""What the tokenizer, the scheduler and the detokenizer say to each other, in one process or in three.

Requests go from the trees of programs to the scheduler as `NewRequest`. What it has generated goes to the detokenizer
as `StepOutput`, and from there, with its text, back to the trees. Everything is a msgspec struct and travels as
msgpack: nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.constrained.grammar import Grammar

from .choice_tree import TreeShape
from .errors import QueueFullError, RequestError
from .program import FinishReason, TokenLogprob, TopLogprob
from .sampling_params import SamplingParams

RequestKind = Literal["generate", "score"]

LONGEST_NAME = 256
"""Most characters of a program's name."""

MOST_TIMEOUT_S = 1e7
"""The longest time limit of a request, some four months: a longer one is as good as none."""


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of one program are treated.

    Attributes:
        priority: requests of a higher priority go first; 0 is the usual one.
        cache_salt: prefixes are shared only among programs with the same salt.
        timeout_s: a request that has not ended so long after it came fails; None uses the engine's own limit.
        program: name of the program, the same for every run of it; None for calls of no program: nothing is expected
            to continue them.

    Raises:
        RequestError: the priority is no whole number of 32 bits, the time is not above 0 and at most 1e7 s, or the
            name is no text of up to 256 characters.
    """

    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int) or not -(1 << 31) <= self.priority < 1 << 31:
            raise RequestError(f"priority must be a whole number of 32 bits, not {self.priority!r}")
        if self.timeout_s is not None and not 0 < self.timeout_s <= MOST_TIMEOUT_S:
            raise RequestError(
                f"timeout_s must be more than 0 and at most {MOST_TIMEOUT_S:g} s, or None, not {self.timeout_s!r}"
            )
        if self.program is not None and (not isinstance(self.program, str) or len(self.program) > LONGEST_NAME):
            raise RequestError(f"program must be a name of at most {LONGEST_NAME} characters, not {self.program!r}")

    def of_program(self, name: str | None) -> SessionOptions:
        """These options for a program of this name, as much of it as may be; None leaves them as they are."""
        return self if name is None else msgspec.structs.replace(self, program=name[:LONGEST_NAME])


USUAL_OPTIONS = SessionOptions()


class ProgramPlace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a request stands in its program.

    Attributes:
        id, name: of the program; every run has an id of its own.
        continued: its text may be continued, so its prefix is kept when it has ended.
        later_tokens: most tokens of the answers of calls that are known to come after it.
    """

    id: str
    name: str
    continued: bool = False
    later_tokens: int = 0


class NewRequest(msgspec.Struct, frozen=True, kw_only=True, tag="new", omit_defaults=True):
    """A request to generate after a prompt, or to score texts.

    Attributes:
        id: unique among active requests.
        prompt_ids: the token ids as the bytes of int32; of a score request, those of its tree.
        params: with `seed` set.
        grammar: what the output must match.
        tree: of a score request: what its tokens are and what they score.
        group: siblings share it.
        stream: output is reported as it comes, and not only at the end.
        options: of the session.
        program: where it stands in a program; None for a call of none.
    """

    id: str
    kind: RequestKind
    prompt_ids: bytes
    params: SamplingParams
    grammar: Grammar | None = None
    tree: TreeShape | None = None
    group: str | None = None
    stream: bool = False
    options: SessionOptions = USUAL_OPTIONS
    program: ProgramPlace | None = None


class DropPrefixes(msgspec.Struct, frozen=True, tag="drop_prefixes"):
    """Nothing continues the text of these requests of a program any more: their prefixes need not be kept."""

    program: str
    requests: tuple[str, ...]


class EndProgram(msgspec.Struct, frozen=True, tag="end_program"):
    """No request of this program comes any more, and nothing is kept for it."""

    program: str


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """End a request at the next step. Nothing happens where none of this id is active."""

    id: str


class Question(msgspec.Struct, frozen=True, tag="question"):
    """Something to be answered by the scheduler with an `Answer` of the same id.

    `flush_cache` drops every prefix that no running request uses; `cache_tree` describes up to `limit` nodes of the
    radix cache, the most used first.
    """

    id: int
    what: Literal["stats", "flush_cache", "cache_tree"]
    limit: int = 0


FromTree = NewRequest | AbortRequest | DropPrefixes | EndProgram
ToScheduler = FromTree | Question


class RequestFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why a request failed. `kind` names the class of the error; `retry_after_s` says when to try again, if ever."""

    kind: str
    message: str
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: Exception) -> RequestFailure:
        """An error as it travels: with whatever is no text spelled out. One that is not Palmette's is a defect."""
        kind, message = type(error).__name__, str(error)
        if not isinstance(error, PalmetteError):
            kind, message = "EngineError", f"{kind}: {message}"
        retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else None
        return cls(kind, message.encode(errors="backslashreplace").decode(), retry_after_s)


class RequestEnd(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a request came to.

    Attributes:
        finish_reason, matched: why it ended (None for scores); the stop string or token id that ended it.
        text: all of the output; the detokenizer fills it in where the scheduler has not looked at the text.
        kept_ids: the tokens whose text is wholly in `text`.
        tail: the text of a token that a stop string cut.
        output_tokens, forced_tokens, cached_tokens: tokens generated, how many of them the grammar forced, and prompt
            tokens found in the radix cache.
        logprobs: one an output token, where asked for.
        score_logprobs, score_top: of the scored tokens of the prompt, or of a tree in the order of its scores, and the
            likeliest beside each.
        failure: why it failed or was aborted.
        queue_s: time before it first ran; None where it never did.
        elapsed_s: time from its arrival to its end.
        first_token_s: time from its arrival to the first token that was sampled; None where none was.
        first_step, last_step: the steps in which it ran; 0 where it never did.
        batch_size: requests in a step, itself counted: the mean from its first step to its last.
        forced_ranges: the tokens of output that the grammar forced, as (begin, end) in order.
    """

    finish_reason: FinishReason | None = None
    matched: str | int | None = None
    text: str | None = None
    kept_ids: tuple[int, ...] = ()
    tail: str = ""
    output_tokens: int = 0
    forced_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    score_logprobs: tuple[float, ...] = ()
    score_top: tuple[tuple[TopLogprob, ...], ...] = ()
    failure: RequestFailure | None = None
    queue_s: float | None = None
    elapsed_s: float = 0.0
    first_token_s: float | None = None
    first_step: int = 0
    last_step: int = 0
    batch_size: float = 0.0
    forced_ranges: tuple[tuple[int, int], ...] = ()


class RequestOutput(msgspec.Struct, frozen=True, array_like=True):
    """News of one request.

    Attributes:
        id: of the request.
        token_ids: of its text, since the last news.
        text: that text; None where the detokenizer is to make it from the token ids.
        logprobs: of the tokens since the last news, where they are streamed and asked for.
        end: what it came to, in its last news.
    """

    id: str
    token_ids: tuple[int, ...] = ()
    text: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    end: RequestEnd | None = None


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """The news of one step."""

    outputs: tuple[RequestOutput, ...]


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the scheduler at one moment.

    Attributes:
        steps, retractions: so far.
        compiling, waiting, running: requests that wait for their grammar, wait for room, and run.
        free_pages, evictable_pages, protected_pages, total_pages: of the KV pool; evictable and protected pages belong
            to the radix cache, and running requests own the rest.
        page_size: tokens a page.
        prompt_tokens, cached_tokens: of the prompts of requests that have begun to run: all of their tokens, and those
            found in the radix cache.
        output_tokens, forced_tokens: generated so far, and how many of them a grammar forced.
        finished, failed, aborted: requests that ended so.
        working_s, device_s: time with work to do, and how much of it the device computed.
    """

    steps: int = 0
    retractions: int = 0
    compiling: int = 0
    waiting: int = 0
    running: int = 0
    free_pages: int = 0
    evictable_pages: int = 0
    protected_pages: int = 0
    total_pages: int = 0
    page_size: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    working_s: float = 0.0
    device_s: float = 0.0

    @property
    def scheduler_overhead_fraction(self) -> float:
        """The part of the working time in which the device computed nothing."""
        return max(0.0, 1 - self.device_s / self.working_s) if self.working_s else 0.0

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that came from the radix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class CacheNode(msgspec.Struct, frozen=True, array_like=True):
    """A node of the radix cache. `parent` is the place of its parent in the list, -1 for a child of the root.

    Attributes:
        tokens: length of its key.
        token_ids: the first tokens of its key, at most 16.
        locks: requests that use it now, itself or by what is below.
        last_access: order of use.
    """

    parent: int
    tokens: int
    token_ids: tuple[int, ...]
    locks: int
    last_access: int


class CacheTree(msgspec.Struct, frozen=True, tag="cache_tree"):
    """The radix cache, parents first; `left_out` nodes are not shown."""

    nodes: tuple[CacheNode, ...]
    left_out: int = 0


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer to a question; flush_cache gives the number of tokens dropped."""

    id: int
    stats: SchedulerStats | None = None
    tokens: int | None = None
    cache: CacheTree | None = None


FromScheduler = StepOutput | Answer
