"""What the routes answer when all is well: examples, and the schemas that they stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .native import EXAMPLE as GENERATED

_NULLABLE = frozenset(
    (
        *("content", "logprobs", "stop_reason", "matched", "parent", "first_id", "last_id", "usage"),
        *("completed_at", "error", "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls"),
        *("previous_response_id", "user", "effort", "summary"),
    )
)
"""Members that may be null, whatever an example shows."""

_FREE = frozenset(
    ("metadata", "tool_choice", "text", "matched", "stop_reason", "sampling_defaults", "stats", "reasoning")
)
"""Members whose form differs from request to request."""

_OPTIONAL = frozenset(("answers", "logprobs", "prompt_logprobs", "token_strs", "first_id", "last_id", "completed_at"))
_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """An answer of a route."""

    description: str
    example: Any
    status: int = 200
    media_type: str = "application/json"
    is_list: bool = False

    @property
    def is_json(self) -> bool:
        return self.media_type == "application/json"

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What answers like the example are, as JSON Schema."""
        schema = schema_like(self.example)
        return {"anyOf": [schema, {"type": "array", "items": schema}]} if self.is_list else schema


def schema_like(value: Any, *, nullable: Collection[str] = _NULLABLE) -> dict[str, Any]:
    """The schema of values with at least the members of `value`, and of the same types."""
    if isinstance(value, Mapping):
        members = {name: _member(name, each, nullable) for name, each in value.items()}
        required = [name for name in value if name not in _OPTIONAL]
        return {"type": "object", "properties": members, "required": required}
    if isinstance(value, list):
        return {"type": "array", "items": schema_like(value[0])} if value else {"type": "array"}
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return {"type": name}
    return {}


def _member(name: str, value: Any, nullable: Collection[str]) -> dict[str, Any]:
    if name in _FREE:
        return {}
    schema = schema_like(value)
    if name in nullable and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


def _events(*events: str) -> str:
    return "".join(f"{event}\n\n" for event in events)


_USAGE = {
    "prompt_tokens": 38,
    "completion_tokens": 3,
    "total_tokens": 41,
    "prompt_tokens_details": {"cached_tokens": 31},
    "completion_tokens_details": {"forced_tokens": 0},
}
_CHAT = {
    "id": "chatcmpl-8c1f2b9d7e6a4c3b5f0a1d2e",
    "object": "chat.completion",
    "created": 1796004577,
    "model": "SmolLM2-135M-Instruct",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Oak, elm, fig.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": _USAGE,
}
_CHAT_EVENTS = _events(
    'data: {"id": "chatcmpl-8c1f", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content":'
    ' "Oak"}, "logprobs": null, "finish_reason": null}]}',
    "data: [DONE]",
)
_COMPLETION = {
    "id": "cmpl-8c1f2b9d7e6a4c3b5f0a1d2e",
    "object": "text_completion",
    "created": 1796004577,
    "model": "SmolLM2-135M-Instruct",
    "choices": [{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
    "usage": _USAGE,
}
_COMPLETION_EVENTS = _events(
    'data: {"id": "cmpl-8c1f", "object": "text_completion", "choices": [{"index": 0, "text": " Paris", "logprobs":'
    ' null, "finish_reason": null}]}',
    "data: [DONE]",
)
_RESPONSE = {
    "id": "resp_b52e1823364e42a335df46e6",
    "object": "response",
    "created_at": 1796004577,
    "status": "completed",
    "background": False,
    "completed_at": 1796004578,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": 64,
    "metadata": {},
    "model": "SmolLM2-135M-Instruct",
    "output": [
        {
            "id": "msg_1e8ef215106c86159a11017a",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Oak, elm, fig.", "annotations": [], "logprobs": []}],
            "status": "completed",
        }
    ],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "usage": {
        "input_tokens": 38,
        "input_tokens_details": {"cached_tokens": 31, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
        "total_tokens": 41,
    },
}
_RESPONSE_EVENTS = _events(
    'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "sequence_number": 4, "delta":'
    ' "Oak"}',
    'event: response.completed\ndata: {"type": "response.completed", "sequence_number": 9, "response": {}}',
)
_INPUT_ITEMS = {
    "object": "list",
    "data": [{"id": "msg_2d06", "type": "message"}],
    "first_id": "msg_2d06",
    "last_id": "msg_2d06",
    "has_more": False,
}
_MODEL = {
    "id": "SmolLM2-135M-Instruct",
    "object": "model",
    "created": 1796004577,
    "owned_by": "palmette",
    "root": "SmolLM2-135M-Instruct",
    "parent": None,
    "max_model_len": 8192,
}
_INFO = {
    "version": "0.1.0",
    "protocol": 1,
    "model_name": "SmolLM2-135M-Instruct",
    "model": {
        "name": "SmolLM2-135M-Instruct",
        "context_length": 8192,
        "vocab_size": 49152,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "special_tokens": ["<|im_start|>", "<|im_end|>"],
        "sampling_defaults": {},
    },
    "settings": {"max_body_bytes": 33554432, "max_open_requests": 4096, "idle_timeout_s": 300.0},
    "stats": {"running": 1, "waiting": 0, "prompt_tokens": 59, "cached_tokens": 16, "hit_rate": 0.27},
    "open": {"requests": 1, "programs": 0, "channels": 0, "sessions": 1},
    "uptime_s": 17.25,
}
_PROGRAM_EVENTS = _events(
    'id: 1\ndata: {"type": "delta", "node": 1, "index": 0, "text": " Paris"}',
    'event: end\ndata: {"reason": "all of it is done"}',
)
_GENERATE_EVENTS = _events('data: {"index": 0, "answer": 0, "delta": " Paris"}', "data: [DONE]")
_DONE = (Answer("It is done.", {}),)

ANSWERS: Mapping[str, tuple[Answer, ...]] = {
    "POST /v1/chat/completions": (
        Answer("The message, or messages.", _CHAT),
        Answer("The message, or messages.", _CHAT_EVENTS, media_type=_STREAM),
    ),
    "POST /v1/completions": (
        Answer("The text, or texts.", _COMPLETION),
        Answer("The text, or texts.", _COMPLETION_EVENTS, media_type=_STREAM),
    ),
    "POST /v1/responses": (
        Answer("The response.", _RESPONSE),
        Answer("The response.", _RESPONSE_EVENTS, media_type=_STREAM),
    ),
    "GET /v1/responses/{response_id}": (Answer("The response.", _RESPONSE),),
    "DELETE /v1/responses/{response_id}": (
        Answer("It is forgotten.", {"id": _RESPONSE["id"], "object": "response", "deleted": True}),
    ),
    "GET /v1/responses/{response_id}/input_items": (Answer("The items.", _INPUT_ITEMS),),
    "POST /generate": (
        Answer("The result, or one for each prompt of a list.", GENERATED, is_list=True),
        Answer("The result, or one for each prompt of a list.", _GENERATE_EVENTS, media_type=_STREAM),
    ),
    "GET /v1/models": (Answer("The model.", {"object": "list", "data": [_MODEL]}),),
    "GET /v1/models/{name}": (Answer("The model.", _MODEL),),
    "POST /tokenize": (Answer("The tokens.", {"count": 2, "max_model_len": 8192, "tokens": [504, 2253]}),),
    "POST /detokenize": (Answer("The text.", {"prompt": "A fan of leaves."}),),
    "GET /health": (Answer("All is well.", {"status": "ok"}),),
    "GET /health_generate": (Answer("All is well.", {"status": "ok", "elapsed_s": 0.0027}),),
    "GET /server_info": (Answer("The server.", _INFO),),
    "GET /metrics": (Answer("The counts.", "palmette_up 1\n", media_type="text/plain; version=0.0.4; charset=utf-8"),),
    "POST /flush_cache": (Answer("Tokens that were dropped.", {"tokens": 4096}),),
    "POST /abort": (Answer("The request has ended.", {"rid": "my-request-7"}),),
    "POST /programs": (
        Answer("The program's events, where they were asked for.", _PROGRAM_EVENTS, media_type=_STREAM),
        Answer("The program is open.", {"id": "program_TwY9rrqoufZIRMG3"}, status=201),
    ),
    "POST /programs/{program_id}/extend": (Answer("The nodes are added.", {}),),
    "GET /programs/{program_id}/events": (Answer("The events.", _PROGRAM_EVENTS, media_type=_STREAM),),
    "POST /programs/{program_id}/abort": _DONE,
    "DELETE /programs/{program_id}": _DONE,
    "POST /channels": (Answer("The channel is open.", {"id": "channel_f88KCsRRWOdL_zSc"}, status=201),),
    "PUT /channels/{channel_id}/messages/{number}": (Answer("The messages are taken.", {}),),
    "GET /channels/{channel_id}/events": (
        Answer(
            "The events.",
            _events('id: 1\ndata: [[7, {"type": "delta", "node": 1, "index": 0, "text": " Paris"}]]'),
            media_type=_STREAM,
        ),
    ),
    "DELETE /channels/{channel_id}": _DONE,
}
"""By method and path; every route has its own."""
