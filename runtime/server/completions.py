"""/v1/completions: texts to go on with."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .answers import Exchange
from .asked_completion import AskedCompletion, CompletionStream
from .errors import bad_request
from .json_route import JsonRoute
from .openai_models import CompletionRequest
from .responding import json_response
from .served_model import ServedModel, new_id
from .streaming import stream
from .usage import usage

DEFAULT_MAX_TOKENS = 16
MAX_ANSWERS = 1024
"""Most answers of one request: prompts times n."""


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)
    model = ServedModel.of(service.model_info, settings)

    @router.post("/v1/completions", summary="Go on with a text")
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """The text that follows a prompt, or each of several; as server-sent events where `stream` is true."""
        model.check(body.model)
        body.check()
        asked = _asked(body, service)
        nodes, grammar_param = asked.nodes()
        answer_id = new_id("cmpl")
        exchange = Exchange.of(service, request, answer_id, body, grammar_param=grammar_param)
        head = {"id": answer_id, "object": "text_completion", "created": int(time.time()), "model": model.name}
        if body.stream:
            return await stream(exchange, CompletionStream(asked, exchange.counts, head), nodes)
        with exchange:
            exchange.extend(nodes)
            ends = await exchange.finish(len(asked.prompts))
        return json_response({**head, "choices": asked.choices(ends), "usage": usage(exchange.counts)})

    return router


def _asked(body: CompletionRequest, service: EngineService) -> AskedCompletion:
    """What a request asks for, checked.

    Raises:
        ApiError: there is no prompt, a token does not exist, a value is out of its range, or it asks for too much.
    """
    prompts = _prompts(body, service.model_info.vocab_size)
    if len(prompts) * body.answers > MAX_ANSWERS:
        message = f"{len(prompts)} prompts with n={body.answers} are {len(prompts) * body.answers} answers, but"
        raise bad_request(f"{message} at most {MAX_ANSWERS} are allowed; ask in several requests", param="n")
    params = body.params(
        service.model_info.sampling_defaults,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    return AskedCompletion(body, params, prompts, service.tokenizer)


def _prompts(body: CompletionRequest, vocab_size: int) -> Sequence[str | Sequence[int]]:
    given = body.prompt
    if isinstance(given, str):
        return [given]
    prompts: list[str | list[int]] = []
    ids = [part for part in given if isinstance(part, int)]
    if ids:
        prompts.append(ids)
    prompts += [part for part in given if not isinstance(part, int)]
    if not prompts:
        raise bad_request("prompt must hold at least one text or token id, not []", param="prompt")
    for place, prompt in enumerate(prompts):
        if not isinstance(prompt, str) and prompt and (largest := max(prompt)) >= vocab_size:
            message = f"prompt {place} holds token {largest}, but the model's tokens are 0 to {vocab_size - 1}"
            raise bad_request(message, param="prompt")
    return prompts
