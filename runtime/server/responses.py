"""/v1/responses: text, structured outputs and function calls as typed items.

A request is carried out as the chat completion that it amounts to, so both endpoints give the same answers. Responses
are kept in memory, the last of them, unless `store` is false; `previous_response_id` goes on from one of these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palmette.runtime.program import Event
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .answers import Exchange
from .asked_chat import AskedChat, ChatModel, asked_chat
from .chat import ASIDE_FROM
from .chat_run import ChatRun
from .errors import ApiError
from .json_route import JsonRoute
from .responding import json_bytes, json_response
from .response_store import ResponseStore, StoredResponse
from .responses_input import chat_request, renamed
from .responses_models import InputItem, ResponsesRequest
from .responses_output import ResponseOutput, new_item_id
from .served_model import ServedModel
from .streaming import stream


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)
    model = ServedModel.of(service.model_info, settings)
    responder = Responder(service, model.name)
    store = responder.store

    @router.post("/v1/responses", summary="Answer items")
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        """The answer to a text or to items; as typed server-sent events where `stream` is true."""
        model.check(body.model)
        answer = await responder.answer(request, body)
        if body.stream:
            return await stream(answer.exchange, answer, answer.run.nodes)
        with answer.exchange:
            answer.exchange.extend(answer.run.nodes)
            while not answer.done:
                answer.take(await answer.exchange.events())
        return json_response(answer.response)

    @router.get("/v1/responses/{response_id}", summary="Fetch a response")
    async def get_response(response_id: str) -> Response:
        """A stored response."""
        return json_response(store.get(response_id).response)

    @router.get("/v1/responses/{response_id}/input_items", summary="Fetch the input of a response")
    async def list_input_items(response_id: str) -> Response:
        """What a stored response answered, the last item first, with what it went on from."""
        items = store.get(response_id).items[::-1]
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return json_response({"object": "list", "data": items, **ends, "has_more": False})

    @router.delete("/v1/responses/{response_id}", summary="Forget a response")
    async def delete_response(response_id: str) -> Response:
        """Remove a stored response."""
        store.remove(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return router


class Responder:
    """Makes the programs that answer requests."""

    def __init__(self, service: EngineService, model_name: str) -> None:
        self.store = ResponseStore()
        self._service = service
        self._model_name = model_name
        self._model = ChatModel.of(service)

    async def answer(self, request: Request, body: ResponsesRequest) -> ResponseAnswer:
        """The answer to a request, not yet begun.

        Raises:
            ApiError: the request cannot be carried out.
        """
        body.check()
        previous = body.previous_response_id
        earlier = self.store.get(previous, param="previous_response_id").conversation if previous is not None else []
        asked = await self._asked(body, earlier)
        response_id = new_item_id("resp")
        param = "text.format" if asked.grammar_param == "response_format" else asked.grammar_param
        exchange = Exchange.of(self._service, request, response_id, body, grammar_param=param, explain=asked.explain)
        stored = StoredResponse(new_response(body, asked, response_id, self._model_name), [*earlier, *_items(body)])
        return ResponseAnswer(body, asked, exchange, stored, self.store)

    async def _asked(self, body: ResponsesRequest, earlier: Sequence[Mapping[str, Any]]) -> AskedChat:
        chat, conversation = chat_request(body, [InputItem.model_validate(item) for item in earlier])
        try:
            if len(chat.messages) < ASIDE_FROM:
                return asked_chat(chat, self._model)
            return await asyncio.to_thread(asked_chat, chat, self._model)
        except ApiError as error:
            raise renamed(error, conversation) from None


class ResponseAnswer:
    """One response as it comes about: an object, and a writer of the events that tell of it."""

    def __init__(
        self,
        body: ResponsesRequest,
        asked: AskedChat,
        exchange: Exchange,
        stored: StoredResponse,
        store: ResponseStore,
    ) -> None:
        self.exchange = exchange
        self.response = stored.response
        self.run = ChatRun(asked, exchange)
        self._asked = asked
        self._stored = stored
        self._store = store if body.is_stored else None
        self._output = ResponseOutput(self._emit, with_logprobs=body.wants_logprobs)
        self._streams = bool(body.stream)
        self._sequence = 0
        self._events: list[bytes] = []

    @property
    def done(self) -> bool:
        return self.run.done

    def take(self, events: Sequence[Event]) -> None:
        """Take news of the engine."""
        self.run.take(events)
        if not self._streams and not self.done:
            return
        for chunk in self.run.answers[0].chunks():
            self._output.take(chunk["delta"], chunk["logprobs"])
            if chunk["finish_reason"] is not None:
                self._finish(chunk["finish_reason"])

    def write(self, events: Sequence[Event]) -> bytes:
        """The typed events that these events come to."""
        if self._sequence == 0:
            self._emit("response.created", {"response": self.response})
            self._emit("response.in_progress", {"response": self.response})
        self.take(events)
        return self._written()

    def failed(self, error: ApiError) -> bytes:
        """What a stream ends with that cannot go on."""
        self.response |= {
            "status": "failed",
            "error": {"code": error.code or error.kind, "message": error.message},
            "output": self._output.items,
        }
        self._emit("response.failed", {"response": self.response})
        return self._written()

    def _finish(self, reason: str) -> None:
        is_complete = reason != "length"
        self._output.finish(is_complete=is_complete)
        status = "completed" if is_complete else "incomplete"
        self.response |= {
            "status": status,
            "completed_at": int(time.time()) if is_complete else None,
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "output": self._output.items,
            "usage": self._usage(),
        }
        self._emit(f"response.{status}", {"response": self.response})
        if self._store is not None:
            self._store.put(self._stored)

    def _usage(self) -> dict[str, Any]:
        counts = self.exchange.counts
        reasoning = self._output.reasoning
        reasoning_tokens = len(self._asked.tokenizer.encode_text(reasoning)) if reasoning else 0
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens, "forced_tokens": counts.forced},
            "total_tokens": counts.prompt + counts.output,
        }

    def _emit(self, kind: str, fields: Mapping[str, Any]) -> None:
        if not self._streams:
            return
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), json_bytes(event)))

    def _written(self) -> bytes:
        written = b"".join(self._events)
        self._events.clear()
        return written


def new_response(body: ResponsesRequest, asked: AskedChat, response_id: str, model_name: str) -> dict[str, Any]:
    """The response before there is an answer."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
    reasoning = body.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": asked.params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": asked.params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _items(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items with ids, as they are stored."""
    if isinstance(body.input, str):
        part = {"type": "input_text", "text": body.input}
        return [{"id": new_item_id("msg"), "type": "message", "role": "user", "content": [part]}]
    items = (item.model_dump(exclude_none=True) for item in body.input)
    return [{"type": "message", **item, "id": item.get("id") or new_item_id("item")} for item in items]
