"""Clients that go, abort or have no time, requests that cannot be, and grammars that cannot or nearly cannot."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
from benchmarks.chaos_client import Kind, StreamError, Visit, check, check_error
from benchmarks.chaos_good import conversation

OVER = 504
ABORTED = 499


async def hang_up(visit: Visit) -> str:
    """Read a little of a stream, and go."""
    few = visit.rng.randrange(4)
    body: dict[str, Any] = {"max_tokens": visit.scale.endless, "ignore_eos": True, "stream": True}
    path = visit.rng.choice(("/v1/chat/completions", "/v1/completions"))
    body |= {"prompt": visit.prompt()} if path == "/v1/completions" else {"messages": conversation(visit)}
    async with visit.stream(path, body | {"n": visit.rng.choice((1, 3))}) as messages:
        async for _ in messages:
            few -= 1
            if few < 0:
                break
    return "gone"


async def lose_patience(visit: Visit) -> str:
    """Go before there is an answer, at any moment."""
    body = {"prompt": [visit.prompt()] * 3, "max_tokens": visit.scale.endless, "ignore_eos": True}
    try:
        async with asyncio.timeout(visit.rng.choice((0.001, 0.02, 0.2, 1.0))):
            await visit.asked("/v1/completions", body)
    except TimeoutError:
        return "gone"
    return "ok"


async def abort_stream(visit: Visit) -> str:
    """A stream that another request ends: its client is told."""
    rid = f"stream-{visit.rng.getrandbits(60):x}"
    body = {"text": visit.prompt(), "stream": True, "rid": rid}
    body["sampling_params"] = {"max_tokens": visit.scale.endless, "ignore_eos": True}
    asked = False
    try:
        async with visit.stream("/generate", body) as messages:
            async for _ in messages:
                if not asked:
                    asked = True
                    check_error(await visit.post("/abort", {"rid": rid}), (200, 404))
    except StreamError as error:
        check(error.error["code"] == "aborted", str(error))
        return "aborted"
    return "ok"


async def abort_whole(visit: Visit) -> str:
    """An answer that another request ends before it is there."""
    rid = f"whole-{visit.rng.getrandbits(60):x}"
    body = {"text": visit.prompt(), "rid": rid, "n": 2}
    body["sampling_params"] = {"max_tokens": visit.scale.endless, "ignore_eos": True}
    asking = asyncio.create_task(visit.post("/generate", body))
    try:
        await asyncio.sleep(visit.rng.random() * 0.1)
        check_error(await visit.post("/abort", {"rid": rid}), (200, 404))
        if visit.rng.random() < 0.2:  # another of the same id cannot be while it is open
            check_error(await visit.post("/generate", body | {"sampling_params": {"max_tokens": 1}}), (200, 409))
        for _ in range(3):
            if (await visit.post("/abort", {"rid": rid})).status_code == 200:
                break
            await asyncio.sleep(0.05)
        return check_error(await asking, (200, 409, ABORTED))  # the other of its id may have come first
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def no_time(visit: Visit) -> str:
    """A time limit that is too short for most."""
    body = {"prompt": visit.prompt(), "max_tokens": visit.scale.endless, "ignore_eos": True}
    timeout = visit.rng.choice((0.001, 0.05, 0.3))
    return check_error(await visit.post("/v1/completions", body | {"timeout": timeout}), (200, OVER))


# -- requests that cannot be ------------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
TEXT = {"prompt": "Hello", "max_tokens": 4}
NATIVE = {"text": "Hello", "sampling_params": {"max_tokens": 4}}
NODE = {"type": "text", "id": 0, "parent": None, "text": "a"}

RAW: tuple[tuple[str, str, bytes, tuple[int, ...]], ...] = (
    ("POST", "/v1/chat/completions", b"", (415,)),  # nor a content type
    ("POST", "/v1/chat/completions", b"{", (400,)),
    ("POST", "/v1/chat/completions", b"[1, 2]", (400,)),
    ("POST", "/v1/completions", b"\xff\xfe{}", (400,)),
    ("POST", "/v1/completions", b'{"prompt": "\\ud800", "max_tokens": 2}', (400,)),
    ("POST", "/v1/completions", b'{"prompt": "a", "temperature": NaN}', (400,)),
    ("POST", "/v1/completions", b'{"prompt": "a", "temperature": 1e999}', (400,)),
    ("POST", "/generate", b'{"text": "\\ud800"}', (400,)),
    ("POST", "/generate", b"[" * 20_000, (400,)),
    ("POST", "/programs", b'{"nodes": [{"type": "text", "id": 0, "parent": null, "text": "\\ud800"}]}', (400,)),
    ("POST", "/programs", b"[" * 20_000, (400,)),
    ("POST", "/tokenize", b'{"prompt": 7}', (400,)),
    ("POST", "/detokenize", b'{"tokens": [99999999]}', (400,)),
    ("GET", "/no/such/place", b"", (404,)),
    ("GET", "/v1/models/none", b"", (404,)),
    ("GET", "/v1/chat/completions", b"", (405,)),
    ("GET", "/programs/program_none/events", b"", (404,)),
    ("GET", "/v1/responses/resp_none", b"", (404,)),
    ("POST", "/abort", b'{"rid": "nobody"}', (404,)),
    ("GET", "/health_generate?timeout_s=-1", b"", (400,)),
)
BODIES: tuple[tuple[str, dict[str, Any], tuple[int, ...]], ...] = (
    ("/v1/chat/completions", {**CHAT, "model": "unknown"}, (404,)),
    ("/v1/chat/completions", {**CHAT, "n": 10**9}, (400,)),
    ("/v1/chat/completions", {**CHAT, "n": -1}, (400,)),
    ("/v1/chat/completions", {**CHAT, "n": "2"}, (400,)),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, (400,)),
    ("/v1/chat/completions", {**CHAT, "temperature": -1}, (400,)),
    ("/v1/chat/completions", {**CHAT, "top_p": 2}, (400,)),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"x": 1}}, (400,)),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"99999999": 1}}, (400,)),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 999, "logprobs": True}, (400,)),
    ("/v1/chat/completions", {**CHAT, "stop": [""]}, (400,)),
    ("/v1/chat/completions", {**CHAT, "messages": []}, (400,)),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": "king", "content": "a"}]}, (400,)),
    ("/v1/chat/completions", {**CHAT, "messages": "Hello"}, (400,)),
    ("/v1/chat/completions", {**CHAT, "timeout": 0}, (400,)),
    ("/v1/chat/completions", {**CHAT, "no_such_field": 1}, (400,)),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, (400,)),
    ("/v1/chat/completions", {**CHAT, "tool_choice": {"type": "function", "function": {"name": "x"}}}, (400,)),
    ("/v1/completions", {**TEXT, "prompt": None}, (400,)),
    ("/v1/completions", {**TEXT, "prompt": [[2**40]]}, (400,)),
    ("/v1/completions", {**TEXT, "prompt": [[-1]]}, (400,)),
    ("/v1/completions", {**TEXT, "prompt": [10**8]}, (400,)),
    ("/v1/completions", {**TEXT, "n": 1000, "prompt": ["a"] * 1000}, (400,)),
    ("/v1/completions", {**TEXT, "suffix": "x"}, (400,)),
    ("/v1/completions", {**TEXT, "max_tokens": 10**30}, (400,)),
    ("/generate", {**NATIVE, "text": None}, (400,)),
    ("/generate", {**NATIVE, "input_ids": [1]}, (400,)),
    ("/generate", {"input_ids": [10**9]}, (400,)),
    ("/generate", {**NATIVE, "sampling_params": {"top_k": -5}}, (400,)),
    ("/generate", {**NATIVE, "sampling_params": {"min_tokens": 9, "max_tokens": 3}}, (400,)),
    ("/generate", {**NATIVE, "sampling_params": {"stop_token_ids": [10**9]}}, (200, 400)),
    ("/generate", {**NATIVE, "sampling_params": {"stop_regex": ["("]}}, (400,)),
    ("/generate", {**NATIVE, "priority": 2**40}, (400,)),
    ("/programs", {"nodes": [{**NODE, "parent": 5}]}, (400,)),
    ("/programs", {"nodes": [NODE, NODE]}, (400,)),
    ("/programs", {"nodes": [{**NODE, "id": -1}]}, (400,)),
    ("/programs", {"nodes": [{**NODE, "id": 2**70}]}, (400,)),
    ("/programs", {"nodes": [{"type": "banana", "id": 0}]}, (400,)),
    ("/programs", {"timeout_s": -1}, (400,)),
    ("/programs", {"idle_timeout_s": 1e9}, (400,)),
    ("/programs/program_none/extend", {"nodes": []}, (404,)),
    ("/channels", {"priority": 2**40}, (400,)),
    ("/v1/responses", {"input": 5}, (400,)),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_none"}, (404,)),
)


async def bad_bytes(visit: Visit) -> str:
    """A body that is none, or a place that there is not."""
    method, path, body, allowed = visit.rng.choice(RAW)
    headers = {"content-type": "application/json"} if body else {}
    return check_error(await visit.http.request(method, path, content=body, headers=headers), allowed)


async def bad_body(visit: Visit) -> str:
    """A field that cannot be."""
    path, body, allowed = visit.rng.choice(BODIES)
    return check_error(await visit.post(path, body), allowed)


async def too_long(visit: Visit) -> str:
    """A prompt that does not fit into the context."""
    text = "word " * visit.scale.context_length
    path, body = visit.rng.choice((("/v1/completions", {**TEXT, "prompt": text}), ("/generate", {"text": text})))
    response = await visit.post(path, body)
    check_error(response, (400,))
    check(response.json()["error"]["code"] == "context_length_exceeded", response.text[:300])
    return "400"


async def bad_program(visit: Visit) -> str:
    """Nodes that cannot run end in events, and what waits for them too."""
    wrong = visit.rng.choice(
        (
            {"type": "generate", "params": {"max_tokens": 4}, "n": 10**6},
            {"type": "generate", "params": {"max_tokens": 4}, "grammar": {"kind": "regex", "source": "("}},
            {"type": "generate", "params": {"max_tokens": 4, "logit_bias": {"99999999": 1.0}}},
            {"type": "select", "choices": []},
            {"type": "reference", "source": 0, "unquoted": True},
        )
    )
    nodes = [NODE, {**wrong, "id": 1, "parent": 0}, {"type": "generate", "id": 2, "parent": 1, "params": {}}]
    response = await visit.post("/programs?stream=1", {"nodes": nodes})
    if response.status_code != 200:
        return check_error(response, (400,))
    check(response.text.count('"type":"failed"') == 2, f"{wrong} came to {response.text[:400]}")
    return "failed"


# -- grammars ---------------------------------------------------------------------------------------------------------


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1}
    return schema


def _product(terms: int) -> dict[str, Any]:
    ways = [
        [{"properties": {f"p{i}": {"const": value}}, "required": [f"p{i}"]} for value in range(4)] for i in range(terms)
    ]
    return {"type": "object", "allOf": [{"anyOf": each} for each in ways]}


BAD_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "("},
    {"regex": "a{5,2}"},
    {"regex": "(?P<x>a)\\1"},
    {"regex": r"[^\s\S]"},
    {"regex": "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace") + "["},
    {"json_schema": {"type": "nothing"}},
    {"json_schema": "{"},
    {"json_schema": False},
    {"json_schema": {"enum": []}},
    {"json_schema": {"type": "string", "minLength": 9, "maxLength": 2}},
    {"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    {"json_schema": {"$ref": "https://example.com/x"}},
    {"json_schema": {"$ref": "#/no"}},
    {"ebnf": 'root ::= root "a"'},
    {"ebnf": "root ::= missing"},
    {"ebnf": 'root ::= ("a" '},
    {"lark": "start: missing"},
    {"structural_tag": {"type": "nothing"}},
    {"choices": []},
    {"regex": "a", "ebnf": 'root ::= "a"'},
)
HARD_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "(a|b|ab)*c{1,3}"},
    {"regex": "(?:a?){300}a{3}"},
    {"regex": "((a{50}){50}){50}"},
    {"regex": "[a-z]{100000}"},
    {"regex": "(x+x+)+y"},
    {"regex": "(a|b)*a(a|b){14}c"},
    {"json_schema": _nested(40)},
    {"json_schema": _nested(600)},
    {"json_schema": _product(6)},
    {"json_schema": _product(12)},
    {"json_schema": {"type": "array", "uniqueItems": True, "items": {"enum": list(range(400))}, "minItems": 390}},
    {"json_schema": {"type": "object", "minProperties": 5000}},
    {"ebnf": 'root ::= root root | "a" | ""'},
    {"ebnf": 'root ::= ("a" | "b" root "c"){0,2000}'},
)


async def bad_grammar(visit: Visit) -> str:
    """One that is no grammar, or that no answer matches: 400, before a token is generated."""
    body = {**NATIVE, **visit.rng.choice(BAD_GRAMMARS)}
    return check_error(await visit.post("/generate", body), (400,))


async def hard_grammar(visit: Visit) -> str:
    """One that is large or grows: an answer, a refusal or the end of its time, and nobody else notices."""
    body = {"text": visit.prompt(), "sampling_params": {"max_tokens": visit.scale.document}, "timeout_s": 20.0}
    if visit.rng.random() < 0.3:
        try:
            async with asyncio.timeout(visit.rng.random()):
                return check_error(await visit.post("/generate", body | _fresh(visit.rng)), (200, 400, OVER))
        except TimeoutError:
            return "gone"
    return check_error(await visit.post("/generate", body | visit.rng.choice(HARD_GRAMMARS)), (200, 400, OVER))


def _fresh(rng: random.Random) -> dict[str, Any]:
    """One that no cache has."""
    return {"json_schema": {"type": "array", "items": _nested(rng.randrange(30)), "maxItems": rng.randrange(1, 999)}}


async def half_a_request(visit: Visit) -> str:
    """A connection on which a request begins and does not end."""
    url = visit.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n" + b'{"prompt": "')
        await writer.drain()
        await asyncio.sleep(visit.rng.random())
        if visit.rng.random() < 0.3:
            writer.write(b"\x00\xff not JSON" * 500)
            await writer.drain()
            await reader.read(100)
    finally:
        writer.transport.abort()
    return "gone"


async def no_http(visit: Visit) -> str:
    """Bytes that are no HTTP."""
    url = visit.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(
            visit.rng.choice((b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 50 + b"x y z\r\n\r\n"))
        )
        writer.write_eof()
        answer = await reader.read(2000)
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
    finally:
        writer.transport.abort()
    check(not answer or answer.startswith(b"HTTP/1.1 400"), f"{answer[:100]!r}")
    return "400" if answer else "gone"


ABUSE: dict[str, tuple[Kind, float]] = {
    "hang up": (hang_up, 8),
    "lose patience": (lose_patience, 5),
    "abort a stream": (abort_stream, 3),
    "abort a whole": (abort_whole, 3),
    "no time": (no_time, 3),
    "bad bytes": (bad_bytes, 3),
    "bad body": (bad_body, 6),
    "bad program": (bad_program, 2),
    "too long": (too_long, 1),
    "bad grammar": (bad_grammar, 3),
    "hard grammar": (hard_grammar, 2),
    "half a request": (half_a_request, 1),
    "no HTTP": (no_http, 1),
}
