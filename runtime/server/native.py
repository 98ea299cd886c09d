"""`/generate`: answers to one prompt or several, with Palmette's own names and in its own terms."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.runtime.errors import RequestError
from palmette.runtime.program import (
    Completion,
    Delta,
    Event,
    Generate,
    Generated,
    Node,
    Text,
    Timings,
    TokenLogprob,
    Tokens,
)
from palmette.runtime.sampling_params import SamplingParams, check_vocabulary
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .answers import Exchange
from .errors import bad_request, refused
from .json_route import JsonRoute
from .native_models import GRAMMAR_FIELDS, GenerateRequest
from .responding import json_response
from .streaming import DONE, server_sent, stream

MAX_ANSWERS_IN_ALL = 4096
"""Most answers of one request: prompts times `n`."""

_GRAMMARS: Mapping[str, Callable[[Any], Grammar]] = {
    "regex": Grammar.regex,
    "json_schema": Grammar.json_schema,
    "ebnf": Grammar.ebnf,
    "lark": Grammar.lark,
    "structural_tag": Grammar.structural_tag,
    "choices": Grammar.choices,
}
_SAMPLING_FIELDS = frozenset(SamplingParams.__struct_fields__)

Prompt = str | list[int]

EXAMPLE = {
    "rid": "gen-5f3a",
    "index": 0,
    "text": " Paris.",
    "token_ids": [7042, 30],
    "finish_reason": "stop",
    "matched": 2,
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 4, "forced_tokens": 0},
    "timings": {
        "elapsed_s": 0.021,
        "total_s": 0.023,
        "queue_s": 0.001,
        "first_token_s": 0.012,
        "first_step": 118,
        "last_step": 121,
        "batch_size": 6.5,
    },
}


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one prompt and all its answers."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    forced_tokens: int


class GenerateTimings(msgspec.Struct, frozen=True, kw_only=True):
    """`elapsed_s`: from when the prompt entered the engine; `total_s`: from when the request came.

    The others are of the first answer: how long it waited for a step, when its first token came, in which of the
    engine's steps it ran, and how many requests ran in them on average.
    """

    elapsed_s: float
    total_s: float
    queue_s: float | None = None
    first_token_s: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    batch_size: float | None = None


class GeneratedAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer; log-probabilities where they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    matched: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the prompt at place `index`. The fields of its first answer are its own; `answers` are all `n`."""

    rid: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    matched: str | int | None
    usage: Usage
    timings: GenerateTimings
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    answers: tuple[GeneratedAnswer, ...] | None = None


class GenerateDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of answer `answer` to the prompt at place `index`."""

    index: int
    answer: int
    delta: str
    logprobs: tuple[TokenLogprob, ...] = ()


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """`POST /generate`."""
    router = APIRouter(tags=["native"], route_class=JsonRoute)
    answers: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"example": EXAMPLE}, "text/event-stream": {}}}
    }

    @router.post("/generate", summary="Generate after prompts", response_class=Response, responses=answers)
    async def generate(request: Request, body: GenerateRequest) -> Response:
        """Generate after one prompt, or after each of several, which share what they can of the cache.

        A single prompt is answered by an object, a list of them by a list in the same order. With `stream`, each
        server-sent event holds a piece of text (`delta`) or, at the end of a prompt, its whole result; the last is
        `[DONE]`.
        """
        began_s = time.monotonic()
        rid = body.rid or f"gen-{random.getrandbits(64):016x}"
        nodes = _nodes(body, service)
        results = _Results(rid, len(nodes) // 2, began_s)
        exchange = _exchange(service, request, rid, body)
        if body.stream:
            return await stream(exchange, results, nodes)
        with exchange:
            exchange.extend(nodes)
            ends = await exchange.finish(len(nodes) // 2)
        found = [results.result(ends[node.id]) for node in nodes if node.id in ends]
        return json_response(found if _is_list(body) else found[0])

    return router


class _Results:
    """Writes the events of the engine as those of `/generate`. The generation after prompt i is node 2i + 1."""

    def __init__(self, rid: str, prompts: int, began_s: float) -> None:
        self._rid = rid
        self._left = prompts
        self._began_s = began_s

    @property
    def done(self) -> bool:
        return self._left == 0

    def write(self, events: Sequence[Event]) -> bytes:
        body = b"".join(map(self._written, events))
        return body + DONE if self.done else body

    def result(self, event: Generated) -> GenerateResult:
        """All that `/generate` says of a prompt."""
        answers = tuple(map(_answer, event.completions))
        first = event.completions[0]
        return GenerateResult(
            rid=self._rid,
            index=event.node // 2,
            **msgspec.structs.asdict(answers[0]),
            answers=answers if len(answers) > 1 else None,
            usage=Usage(
                prompt_tokens=first.prompt_tokens,
                cached_tokens=first.cached_tokens,
                completion_tokens=sum(answer.completion_tokens for answer in event.completions),
                forced_tokens=sum(answer.forced_tokens for answer in event.completions),
            ),
            timings=_timings(event.elapsed_s, time.monotonic() - self._began_s, first.timings),
        )

    def _written(self, event: Event) -> bytes:
        if isinstance(event, Generated):
            self._left -= 1
            return server_sent(msgspec.json.encode(self.result(event)))
        if isinstance(event, Delta):
            place = {"index": event.node // 2, "answer": event.index}
            return server_sent(msgspec.json.encode(GenerateDelta(**place, delta=event.text, logprobs=event.logprobs)))
        return b""


def _timings(elapsed_s: float, total_s: float, first: Timings | None) -> GenerateTimings:
    if first is None:
        return GenerateTimings(elapsed_s=elapsed_s, total_s=total_s)
    return GenerateTimings(
        elapsed_s=elapsed_s,
        total_s=total_s,
        queue_s=first.queue_s,
        first_token_s=first.first_token_s,
        first_step=first.first_step,
        last_step=first.last_step,
        batch_size=first.batch_size,
    )


def _answer(completion: Completion) -> GeneratedAnswer:
    return GeneratedAnswer(
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        matched=completion.matched,
        logprobs=completion.logprobs,
        prompt_logprobs=completion.prompt_logprobs,
    )


def _exchange(service: EngineService, request: Request, rid: str, body: GenerateRequest) -> Exchange:
    return Exchange(
        service,
        request,
        rid,
        priority=body.priority,
        cache_salt=body.cache_salt,
        timeout_s=body.timeout_s,
        fields=_SAMPLING_FIELDS,
        grammar_param=_grammar_field(body),
    )


def _is_list(body: GenerateRequest) -> bool:
    """Whether a list of prompts was asked for."""
    if body.text is not None:
        return isinstance(body.text, list)
    return bool(body.input_ids) and isinstance((body.input_ids or [0])[0], list)


def _prompts(body: GenerateRequest) -> list[Prompt]:
    """Raises ApiError where there is not exactly one kind of prompts, or there are too many."""
    given: Any = body.text if body.text is not None else body.input_ids
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("give the prompt either as text or as input_ids", param="text")
    prompts: list[Prompt] = given if _is_list(body) else [given]
    if len(prompts) * body.n > MAX_ANSWERS_IN_ALL:
        message = f"n: {len(prompts)} prompts with n={body.n} answers each are more than {MAX_ANSWERS_IN_ALL} in all"
        raise bad_request(message, param="n")
    return prompts


def _nodes(body: GenerateRequest, service: EngineService) -> list[Node]:
    """For each prompt the prompt and the generation after it.

    Raises:
        ApiError: the request contradicts itself, or a value is out of its range.
    """
    vocab_size = service.model_info.vocab_size
    params, grammar = _params(body, service), _grammar(body)
    nodes: list[Node] = []
    for place, prompt in enumerate(_prompts(body)):
        if isinstance(prompt, str):
            nodes.append(Text(2 * place, None, prompt, template=body.parse_special))
        else:
            nodes.append(Tokens(2 * place, None, _checked_ids(prompt, vocab_size)))
        nodes.append(Generate(2 * place + 1, 2 * place, params, grammar, body.n, body.stream))
    return nodes


def _checked_ids(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        message = f"input_ids: the model has no token {wrong}; its tokens are 0 to {vocab_size - 1}"
        raise bad_request(message, param="input_ids")
    return tuple(token_ids)


def _params(body: GenerateRequest, service: EngineService) -> SamplingParams:
    given = body.sampling_params.model_dump(exclude_unset=True)
    values: dict[str, Any] = dict(service.model_info.sampling_defaults)
    values |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        params = SamplingParams(**values)
        check_vocabulary(params, service.model_info.vocab_size)
    except RequestError as error:
        raise refused(error, fields=_SAMPLING_FIELDS) from error
    return params


def _grammar_field(body: GenerateRequest) -> str | None:
    return next((name for name in GRAMMAR_FIELDS if getattr(body, name) is not None), None)


def _grammar(body: GenerateRequest) -> Grammar | None:
    given = [name for name in GRAMMAR_FIELDS if getattr(body, name) is not None]
    if len(given) > 1:
        raise bad_request(f"an answer is held to one grammar; {' and '.join(given)} are given", param=given[1])
    if not given:
        return None
    try:
        return _GRAMMARS[given[0]](getattr(body, given[0]))
    except GrammarError as error:
        raise refused(error, grammar_param=given[0]) from error
