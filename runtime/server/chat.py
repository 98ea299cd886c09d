"""/v1/chat/completions: conversations to answer."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .answers import Exchange
from .asked_chat import AskedChat, ChatModel, asked_chat
from .chat_run import ChatRun, ChatStream
from .json_route import JsonRoute
from .openai_models import ChatRequest
from .responding import json_response
from .served_model import ServedModel, new_id
from .streaming import stream
from .usage import usage

ASIDE_FROM = 64
"""Conversations of so many messages are rendered in a thread, so that the others' requests go on."""


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)
    model = ServedModel.of(service.model_info, settings)
    chat_model = ChatModel.of(service)

    @router.post("/v1/chat/completions", summary="Answer a conversation")
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """The assistant's next message, or several; as server-sent events where `stream` is true."""
        model.check(body.model)
        asked = await _asked(body, chat_model)
        answer_id = new_id("chatcmpl")
        exchange = Exchange.of(
            service, request, answer_id, body, grammar_param=asked.grammar_param, explain=asked.explain
        )
        run = ChatRun(asked, exchange)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        head = {"id": answer_id, "object": kind, "created": int(time.time()), "model": model.name}
        if body.stream:
            writer = ChatStream(run, exchange, head, with_usage=body.wants_usage)
            return await stream(exchange, writer, run.nodes)
        with exchange:
            exchange.extend(run.nodes)
            while not run.done:
                run.take(await exchange.events())
        choices = [answer.message() for answer in run.answers]
        return json_response({**head, "choices": choices, "usage": usage(exchange.counts)})

    return router


async def _asked(body: ChatRequest, model: ChatModel) -> AskedChat:
    if len(body.messages) < ASIDE_FROM:
        return asked_chat(body, model)
    return await asyncio.to_thread(asked_chat, body, model)
