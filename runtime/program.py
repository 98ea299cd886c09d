"""The wire form of a program: the nodes of its request tree, and the events that come back.

A program is a tree of nodes. Each node names its `parent`, the node whose text it continues (None at the root), so a
branch is the path from the root to a node and a fork is two nodes with one parent. Nodes are only ever added.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from palmette.constrained.grammar import Grammar

from .errors import RequestError
from .sampling_params import SamplingParams

SelectMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
FinishReason = Literal["stop", "length", "grammar", "abort"]


class Text(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Constant text. `template` text may spell special tokens; any other text never does."""

    id: int
    parent: int | None
    text: str
    template: bool = False


class Tokens(msgspec.Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    """Constant token ids, special ones too. Text before them is encoded by itself."""

    id: int
    parent: int | None
    token_ids: tuple[int, ...]


class Generate(msgspec.Struct, frozen=True, tag="generate", forbid_unknown_fields=True):
    """A generation; the branch goes on with the first of its `n` answers. `stream` asks for `Delta` events."""

    id: int
    parent: int | None
    params: SamplingParams
    grammar: Grammar | None = None
    n: int = 1
    stream: bool = False


class Select(msgspec.Struct, frozen=True, tag="select", forbid_unknown_fields=True):
    """The best of `choices` under `method`; its text is the choice."""

    id: int
    parent: int | None
    choices: tuple[str, ...]
    method: SelectMethod = "token_length_normalized"


class Fork(msgspec.Struct, frozen=True, tag="fork", forbid_unknown_fields=True):
    """`branches` branches will continue here. No text of its own."""

    id: int
    parent: int | None
    branches: int


class Join(msgspec.Struct, frozen=True, tag="join", forbid_unknown_fields=True):
    """The branches that end at `ends` are done with and their values gathered. No text of its own."""

    id: int
    parent: int | None
    ends: tuple[int, ...]


class Reference(msgspec.Struct, frozen=True, tag="reference", forbid_unknown_fields=True):
    """The answer of the node `source`, as constant text; of several answers, the first. `source` is of any branch.

    `unquoted` reads the answer as a JSON string and takes what the quotes hold.
    """

    id: int
    parent: int | None
    source: int
    unquoted: bool = False


Node = Text | Tokens | Generate | Select | Fork | Join | Reference


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a place. `text` where it was asked for."""

    token_id: int
    logprob: float
    text: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token's log-probability, and the likeliest tokens at its place. `text` where it was asked for."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    text: str | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an answer was made, by the backend's clock, and in which of the engine's steps.

    Attributes:
        start_s: it could begin: what it waits for was done. Seconds since its program was opened.
        end_s: it was done, on the same clock.
        queue_s: how long it then waited for its grammar, for room and for its turn, before a step first computed it.
        first_token_s: from `start_s` until its prompt was computed and its first token sampled; None where nothing was
            sampled, or the backend does not say.
        first_step, last_step: the engine's steps in which it ran, numbered from 1; None where the backend has none.
        batch_size: how many requests ran in a step, itself counted: the mean from its first step to its last.
    """

    start_s: float
    end_s: float
    queue_s: float = 0.0
    first_token_s: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    batch_size: float | None = None

    @property
    def elapsed_s(self) -> float:
        """From when it could begin to its end."""
        return self.end_s - self.start_s

    @property
    def decode_s(self) -> float | None:
        """From its first token to its end."""
        return None if self.first_token_s is None else max(0.0, self.elapsed_s - self.first_token_s)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a `Generate` node.

    Attributes:
        text: without the stop string or end token that ended it.
        token_ids: the tokens whose text is wholly in `text`.
        finish_reason: stop (stop string or end token), length (max_tokens or context), grammar (nothing may follow).
        matched: the stop string or token id that ended it.
        prompt_tokens, cached_tokens: the prompt's tokens, and how many of them were found in the radix cache.
        completion_tokens, forced_tokens: tokens generated, and how many of them the grammar forced.
        logprobs: one an output token, where asked for.
        prompt_logprobs: one a token of the prompt from `prompt_logprobs_from` on, where asked for; None for a first
            token, which nothing precedes.
        forced_ranges: the characters of `text` that the grammar forced, as (begin, end) in order.
        timings: when it was made; None where the backend does not say.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    matched: str | int | None = None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    forced_ranges: tuple[tuple[int, int], ...] = ()
    timings: Timings | None = None


class ChoiceScore(msgspec.Struct, frozen=True):
    """Log-probabilities of a choice's tokens after the tokens that all choices share with the prompt.

    `unconditional` are those of the choice alone, without the prompt; empty unless the method needs them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


class NodeUsage(msgspec.Struct, frozen=True):
    """Tokens of one node that a request has just computed, reused from the radix cache, or was forced to take."""

    node: int
    computed: int = 0
    reused: int = 0
    forced: int = 0


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """More of answer `index` of a streamed generation. The deltas of an answer join to its whole text.

    `logprobs`, where they were asked for, are those of the tokens since the last delta; text that is held back comes
    later than its tokens.
    """

    node: int
    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Generated(msgspec.Struct, frozen=True, tag="generated"):
    """A `Generate` node is done. `usage` is for every node on its path; `elapsed_s` counts from when it could start."""

    node: int
    completions: tuple[Completion, ...]
    usage: tuple[NodeUsage, ...] = ()
    elapsed_s: float = 0.0


class Selected(msgspec.Struct, frozen=True, tag="selected"):
    """A `Select` node is done: the index of the winner (the first of equals) and every choice's scores.

    `timings` are of all its requests together: until the first of them ran, and until the last of them ended.
    """

    node: int
    choice: int
    scores: tuple[ChoiceScore, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage: tuple[NodeUsage, ...] = ()
    elapsed_s: float = 0.0
    timings: Timings | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A node failed. `kind` names the class of the error (`RequestError`, `GrammarError`, ...).

    `retry_after_s`: the engine was too busy; the same may go well after so many seconds.
    """

    node: int
    kind: str
    message: str
    retry_after_s: float | None = None


Event = Delta | Generated | Selected | Failed


def referred_text(reference: Reference, text: str | None) -> str:
    """The text that a reference stands for, from the text of its source; None is a source without text.

    Raises:
        RequestError: the source has no text, or was to be a JSON string and is none.
    """
    if text is None:
        raise RequestError(
            f"node {reference.id} refers to node {reference.source}, a fork or a join, which has no text of its own"
        )
    if not reference.unquoted:
        return text
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, str):
        return value
    raise RequestError(
        f"node {reference.id} takes what the quotes hold in the answer of node {reference.source}, but that answer is"
        f" not one whole JSON string: it ends in {text[-80:]!r}; if it was cut off, a larger max_tokens lets it end"
    )


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of the model.

    Attributes:
        name: as it was asked for.
        context_length: most tokens of prompt and output together.
        vocab_size: number of logits.
        chat_template: the model's own Jinja source, or None.
        bos_token, eos_token: text of these special tokens, as chat templates use them; "" where there is none.
        special_tokens: text of every special token.
        sampling_defaults: the fields of `SamplingParams` that the model's own generation_config sets.
    """

    name: str
    context_length: int
    vocab_size: int
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    special_tokens: tuple[str, ...] = ()
    sampling_defaults: dict[str, float] = {}
