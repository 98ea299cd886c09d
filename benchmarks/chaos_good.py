"""Requests that are in order, of every kind: each is answered, and its answer is whole and valid."""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.chaos_client import Kind, Visit, check
from jsonschema import Draft202012Validator

SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "kinds": {"type": "array", "items": {"enum": ["oak", "ash", "elm"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"leaf": {"type": "boolean"}, "left": {"$ref": "#/$defs/tree"}},
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1, "maxItems": 4},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}, {"const": {"no": "date"}}]},
)
REGEXES = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(yes|no|perhaps)",
    r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8}){1,2}",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"[a-z]{1,8}@[a-z]{1,8}\.(org|net)",
)
SPECIAL = re.compile(r"<\|[a-z_]+\|>")
"""The text of a special token, which an answer does not show."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a day.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "day": {"enum": ["today", "tomorrow"]},
            },
            "required": ["city", "day"],
        },
    },
}


def conversation(visit: Visit) -> list[dict[str, str]]:
    """Messages whose beginning many share."""
    system, _, question = visit.prompt().partition("Question ")
    return [{"role": "system", "content": system}, {"role": "user", "content": f"Question {question}"}]


async def chat(visit: Visit) -> str:
    """A message, or several."""
    n = visit.rng.choice((1, 1, 2, 3))
    answer = await visit.asked(
        "/v1/chat/completions",
        {"messages": conversation(visit), "max_tokens": visit.scale.words, "n": n, "cache_salt": visit.salt()},
    )
    check([choice["index"] for choice in answer["choices"]] == list(range(n)), f"not {n} choices: {answer}")
    for choice in answer["choices"]:
        check(choice["finish_reason"] in ("stop", "length"), str(choice))
    check(answer["usage"]["completion_tokens"] <= n * visit.scale.words, str(answer["usage"]))
    return "ok"


async def chat_stream(visit: Visit) -> str:
    """A message in pieces: its text is that of its tokens, in whole."""
    body = {
        "messages": conversation(visit),
        "max_tokens": visit.scale.words,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "ignore_eos": True,
    }
    text, tokens, ends, usage, done = "", bytearray(), [], None, False
    async with visit.stream("/v1/chat/completions", body) as messages:
        async for message in messages:
            if message.data is None:
                done = True
                continue
            usage = message.data.get("usage") or usage
            for choice in message.data["choices"]:
                text += choice["delta"].get("content") or ""
                for token in (choice.get("logprobs") or {}).get("content") or ():
                    if not SPECIAL.fullmatch(token["token"]):  # no text of an answer
                        tokens += bytes(token["bytes"] or ())
                ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    check(done, "the stream ended without [DONE]")
    check(ends == ["length"], f"the stream ended with {ends}")
    check(usage is not None and usage["completion_tokens"] == visit.scale.words, f"usage {usage}")
    check(text == tokens.decode(errors="replace"), f"the text {text!r} is not that of its tokens {tokens!r}")
    return "ok"


async def completions(visit: Visit) -> str:
    """Several prompts, each with several answers."""
    prompts, n = [visit.prompt() for _ in range(visit.rng.choice((1, 2)))], visit.rng.choice((1, 2))
    body = {"prompt": prompts, "n": n, "max_tokens": visit.scale.words, "echo": True, "cache_salt": visit.salt()}
    answer = await visit.asked("/v1/completions", body)
    check(len(answer["choices"]) == n * len(prompts), f"{len(answer['choices'])} choices")
    for choice in answer["choices"]:
        check(choice["text"].startswith(prompts[choice["index"] // n]), f"{choice} does not begin with its prompt")
    return "ok"


async def generate_stream(visit: Visit) -> str:
    """The native endpoint: pieces join to the whole text, with stops of every kind."""
    options: dict[str, Any] = {"max_tokens": visit.scale.words}
    options.update(visit.rng.choice(({}, {"stop": ["fox", "\n"]}, {"stop_regex": ["[.!?]"]}, {"ignore_eos": True})))
    body = {
        "text": [visit.prompt(), visit.prompt()],
        "sampling_params": options,
        "n": 2,
        "stream": True,
        "cache_salt": visit.salt(),
    }
    pieces: dict[tuple[int, int], str] = {}
    results: dict[int, Any] = {}
    async with visit.stream("/generate", body) as messages:
        async for message in messages:
            if message.data is None:
                break
            if "delta" in message.data:
                place = (message.data["index"], message.data["answer"])
                pieces[place] = pieces.get(place, "") + message.data["delta"]
            else:
                results[message.data["index"]] = message.data
    check(results.keys() == {0, 1}, f"results of {sorted(results)}")
    for index, result in results.items():
        for number, answer in enumerate(result["answers"]):
            check(pieces.get((index, number), "") == answer["text"], f"pieces {pieces} of {answer}")
    return "ok"


async def schema(visit: Visit) -> str:
    """JSON that validates."""
    wanted = visit.rng.choice(SCHEMAS)
    body = {
        "messages": conversation(visit),
        "max_tokens": visit.scale.document,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}},
    }
    text = (await visit.asked("/v1/chat/completions", body))["choices"][0]["message"]["content"]
    try:
        Draft202012Validator(wanted).validate(json.loads(text))
    except Exception as error:
        check(False, f"{text!r} is not of {wanted}: {error}")
    return "ok"


async def regex(visit: Visit) -> str:
    """Text that matches, of patterns that were there before and of one that was not."""
    new = rf"[a-f]{{2}}{visit.rng.randrange(10**6)}(x|y){{1,3}}"
    pattern = visit.rng.choice((*REGEXES, new))
    answer = await visit.asked(
        "/v1/completions", {"prompt": visit.prompt(), "regex": pattern, "max_tokens": visit.scale.document}
    )
    text = answer["choices"][0]["text"]
    check(re.fullmatch(pattern, text) is not None, f"{text!r} does not match {pattern}")
    return "ok"


async def tools(visit: Visit) -> str:
    """A call of a function, streamed or whole, with valid arguments."""
    body = {
        "messages": conversation(visit),
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": visit.scale.document,
    }
    call = (await visit.asked("/v1/chat/completions", body))["choices"][0]["message"]["tool_calls"][0]["function"]
    check(call["name"] == "weather", f"calls {call}")
    Draft202012Validator(TOOL["function"]["parameters"]).validate(json.loads(call["arguments"]))
    return "ok"


async def responses(visit: Visit) -> str:
    """The newer form: kept, found again, gone on from and deleted."""
    first = await visit.asked("/v1/responses", {"input": visit.prompt(), "max_output_tokens": visit.scale.words})
    check(first["output"][0]["content"][0]["type"] == "output_text", str(first))
    following = {"input": "And then?", "previous_response_id": first["id"], "max_output_tokens": visit.scale.words}
    second = await visit.asked("/v1/responses", following)
    for answer in (first, second):
        deleted = await visit.http.delete(f"/v1/responses/{answer['id']}")
        check(deleted.status_code == 200, f"deleting was answered {deleted.status_code}: {deleted.text}")
    return "ok"


async def tokenize(visit: Visit) -> str:
    """Text to ids and back."""
    text = visit.prompt()
    ids = (await visit.asked("/tokenize", {"prompt": text, "add_special_tokens": False}))["tokens"]
    back = (await visit.asked("/detokenize", {"tokens": ids}))["prompt"]
    check(back == text, f"{text!r} came back as {back!r}")
    return "ok"


async def watch(visit: Visit) -> str:
    """What watches a server."""
    for path in ("/health", "/metrics", "/server_info", "/v1/models"):
        response = await visit.http.get(path)
        check(response.status_code == 200, f"{path} was answered {response.status_code}: {response.text[:400]}")
    return "ok"


GOOD: dict[str, tuple[Kind, float]] = {
    "chat": (chat, 10),
    "chat, streamed": (chat_stream, 10),
    "completions": (completions, 8),
    "generate, streamed": (generate_stream, 6),
    "json schema": (schema, 6),
    "regex": (regex, 6),
    "tools": (tools, 4),
    "responses": (responses, 3),
    "tokenize": (tokenize, 2),
    "watching": (watch, 2),
}
