"""/tokenize and /detokenize: text to token ids and back, as the engine does it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService
from palmette.runtime.tokenizer import Piece

from .chat_prompt import ChatPrompts
from .errors import bad_request, refused
from .json_route import JsonRoute
from .openai_models import ChatMessage, TokenIds
from .responding import json_response
from .sampling_fields import StrictModel
from .served_model import ServedModel
from .token_text import text_of
from .tool_choice import ToolError, function_tools
from .validation import register

ASIDE_FROM = 20_000
"""Texts of so many characters are encoded in a thread, so that the others' requests go on."""


class TokenizeRequest(StrictModel):
    """A text, or a conversation, as token ids."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"prompt": "A fan of leaves."}, {"messages": [{"role": "user", "content": "Hello"}]}]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool = Field(True, description="A text begins with what the tokenizer begins sequences with.")
    parse_special_tokens: bool = Field(False, description="Text that spells a special token is that token.")
    add_generation_prompt: bool = Field(True, description="A conversation ends with the prompt for an answer.")
    continue_final_message: bool = Field(False, description="A conversation ends within its last message.")
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = Field(False, description="The text of each token as well.")


class DetokenizeRequest(StrictModel):
    """Token ids as text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [504, 2253]}]})

    model: str | None = None
    tokens: TokenIds


register(TokenizeRequest, DetokenizeRequest)


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["tokens"], route_class=JsonRoute)
    model = ServedModel.of(service.model_info, settings)
    prompts = ChatPrompts.of(service.model_info)
    tokenizer = service.tokenizer

    @router.post("/tokenize", summary="Text to token ids")
    async def tokenize(request: Request, body: TokenizeRequest) -> Response:
        """Token ids of a text, or of a conversation under the model's chat template: those a request would get."""
        model.check(body.model)
        pieces = _pieces(body, prompts)
        starts = body.add_special_tokens if body.messages is None else True
        ids = await _aside(pieces, lambda: tokenizer.encode(pieces, start=starts).ids)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.info.context_length, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = [tokenizer.token_text(token_id) for token_id in ids]
        return json_response(answer)

    @router.post("/detokenize", summary="Token ids to text")
    async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
        """The text of token ids, with the names of special tokens."""
        model.check(body.model)
        if body.tokens and (largest := max(body.tokens)) >= model.info.vocab_size:
            message = f"tokens holds {largest}, but the model's tokens are 0 to {model.info.vocab_size - 1}"
            raise bad_request(message, param="tokens")
        return json_response({"prompt": text_of(tokenizer, body.tokens)})

    return router


def _pieces(body: TokenizeRequest, prompts: ChatPrompts) -> list[Piece]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either prompt, a text, or messages, a conversation", param="prompt")
    if body.prompt is not None:
        return [Piece(body.prompt, body.parse_special_tokens, 0)]
    assert body.messages is not None
    try:
        tools = function_tools(body.tools)
    except ToolError as error:
        raise refused(error) from None
    spans = prompts.render(
        body.messages,
        tools=tools,
        asks=body.add_generation_prompt and not body.continue_final_message,
        continues=body.continue_final_message,
        values=body.chat_template_kwargs,
    ).spans
    return [Piece(span.text, span.template, 0) for span in spans]


async def _aside(pieces: Sequence[Piece], encode: Any) -> list[int]:
    if sum(len(piece.text) for piece in pieces) < ASIDE_FROM:
        ids: list[int] = encode()
        return ids
    return list(await asyncio.to_thread(encode))
