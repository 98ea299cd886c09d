"""The server under requests that nobody means: made up from its OpenAPI page, and worse ones by hand."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi import checks

from palmette.runtime.processes.runtime_client import Runtime

EXAMPLES = int(os.environ.get("PALMETTE_FUZZ_EXAMPLES", "6"))
"""Of each operation and kind; a longer run is for the hand, as in ``PALMETTE_FUZZ_EXAMPLES=300 pytest ...``."""

MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
CHECKS = (checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance)
TIMEOUT_S = 60.0
MOST_ANSWERS = 4
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http(quick_runtime: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=quick_runtime.url, timeout=TIMEOUT_S) as client:
        yield client


class Ids:
    """Things that exist, so that not every request asks for what does not."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._numbers = itertools.count(1)
        self._turn = itertools.count()
        response = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 2}).json()
        self._known = {"response_id": response["id"]}

    def put_into(self, case: schemathesis.Case[Any]) -> None:
        """Give every second case a program, a channel or a response that there is."""
        if next(self._turn) % 2 or case.method not in ("POST", "PUT", "GET") or not case.path_parameters:
            return
        for name in case.path_parameters:
            if name == "number":
                case.path_parameters[name] = str(next(self._numbers))
            elif name == "program_id":
                case.path_parameters[name] = self._http.post("/programs", json={"idle_timeout_s": 60}).json()["id"]
                case.query = {**(case.query or {}), "until_done": "true"} if case.method == "GET" else case.query
            elif name == "channel_id" and case.method != "GET":
                case.path_parameters[name] = self._http.post("/channels", json={"idle_timeout_s": 60}).json()["id"]
            elif name in self._known:
                case.path_parameters[name] = self._known[name]


def test_every_operation_answers_as_it_says(quick_runtime: Runtime, http: httpx.Client) -> None:
    """Whatever is sent, no answer is a failure of the server, and each has a status and a form that the page names."""
    ids, statuses = Ids(http), Counter[tuple[str, int]]()
    schema = schemathesis.openapi.from_url(f"{quick_runtime.url}/openapi.json")
    operations: Iterable[Any] = schema.get_all_operations()
    for found in operations:
        operation = found.ok()
        for mode in MODES:
            try:
                strategy = operation.as_strategy(generation_mode=mode)
                _ask(strategy, ids, statuses)
            except Unsatisfiable:  # nothing can be wrong with what takes nothing
                assert mode is schemathesis.GenerationMode.NEGATIVE
    assert http.get("/health_generate").status_code == 200
    if EXAMPLES > 20:
        print(sum(statuses.values()), dict(statuses))  # for whoever runs it by hand


def _ask(strategy: Any, ids: Ids, statuses: Counter[tuple[str, int]]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 20,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: schemathesis.Case[Any]) -> None:
        ids.put_into(case)
        body: Any = case.body
        if isinstance(body, dict) and type(body.get("n")) is int and body["n"] > MOST_ANSWERS:
            body["n"] = MOST_ANSWERS  # a thousand answers take their time
        answer = case.call(timeout=TIMEOUT_S)
        statuses[case.operation.label, answer.status_code] += 1
        too_short = case.operation.label == "GET /health_generate" and answer.status_code == 503
        assert answer.status_code < 500 or too_short, (answer.text, case.as_curl_command())
        case.validate_response(answer, checks=list(CHECKS))

    ask()


# -- what no schema makes up ------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000
BODIES = {
    "nothing": b"",
    "half": b'{"prompt": "a"',
    "two": b'{"prompt": "a"} {"prompt": "b"}',
    "no JSON": b"prompt=a",
    "NaN": b'{"prompt": "a", "messages": [], "text": "a", "input": "a", "temperature": NaN}',
    "infinite": b'{"prompt": "a", "temperature": 1e999}',
    "huge number": b'{"prompt": "a", "max_tokens": %b}' % (b"9" * 5_000),
    "negative": b'{"prompt": "a", "max_tokens": -9223372036854775809}',
    "deep": DEEP,
    "deep schema": b'{"prompt": "a", "text": "a", "json_schema": ' + b'{"items": ' * 50_000 + b"{}" + b"}" * 50_001,
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a mark before": b'\xef\xbb\xbf{"prompt": "a"}',
    "half a character": b'{"prompt": "\\ud800", "text": "\\ud800", "input": "\\ud800", "max_tokens": 2}',
    "nul": b'{"prompt": "a\\u0000b", "text": "a\\u0000b", "input": "\\u0000", "max_tokens": 2}',
    "twice": b'{"prompt": "a", "prompt": 3, "text": "a", "text": 3, "nodes": [], "nodes": 3}',
    "a list": b"[]",
    "true": b"true",
    "many members": json.dumps({f"member{number}": number for number in range(20_000)}).encode(),
    "long name": json.dumps({"x" * 500_000: 1}).encode(),
}
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/tokenize", "/detokenize"),
    *("/abort", "/programs", "/programs/x/extend", "/channels", "/flush_cache"),
)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_bodies_of_every_kind(http: httpx.Client, body: bytes) -> None:
    """Each is answered, none by a failure of the server; what is refused is told in few words that can be read."""
    for path in PATHS:
        answer = http.post(path, content=body, headers=JSON)
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"], path
            assert len(error["message"]) < 2_000, (path, error["message"][:3_000])
            assert "Traceback" not in error["message"]


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "\xff"]
)
def test_bodies_of_other_types(http: httpx.Client, content_type: str) -> None:
    """A body that is not sent as JSON is never read as such: a browser sends it for any page without asking."""
    for path in PATHS:
        if path != "/flush_cache":  # which takes no body
            headers = {b"content-type": content_type.encode("latin-1")} if content_type else {}
            answer = http.request("POST", path, content=b'{"prompt": "a"}', headers=headers)
            assert answer.status_code in (400, 415), (path, answer.text)
            assert "error" in answer.json()


def test_pages_of_other_sites(http: httpx.Client) -> None:
    """A browser says where a request comes from: another site's pages make the server do nothing."""
    for path in PATHS:
        answer = http.post(path, content=b"{}", headers={**JSON, "sec-fetch-site": "cross-site"})
        assert answer.status_code == 403, path
        assert answer.json()["error"]["code"] == "cross_site"
    assert http.post("/flush_cache", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    assert http.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link


# -- what no client sends ---------------------------------------------------------------------------------------------

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
WIRES = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "nothing": b"",
    "half a head": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
    "long head": POST + b"x-long: " + b"a" * 300_000 + b"\r\n\r\n",
    "many heads": POST + b"x: y\r\n" * 20_000 + b"\r\n",
    "long address": b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a body": POST + b'content-length: 100\r\n\r\n{"prompt": ',
    "wrong length": POST + b"content-length: 12x\r\n\r\n{}",
    "negative length": POST + b"content-length: -1\r\n\r\n{}",
    "huge length": POST + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length and chunks": POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "half a chunk": POST + b'transfer-encoding: chunked\r\n\r\n20\r\n{"prompt"',
    "no chunk": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "huge chunk": POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}\r\n",
    "too much": POST + b"transfer-encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 20,
    "other coding": POST + b"transfer-encoding: gzip\r\n\r\n{}",
    "upgrade": b"GET /v1/models HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "no address": b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
    "climbing": b"GET /page/../../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    "nul": b"GET /v1/models/%00%ff HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_wires_of_every_kind(quick_runtime: Runtime, http: httpx.Client, wire: bytes) -> None:
    """The server answers or hangs up when the client has said all that it says, and others are served as before."""
    said = _said_to(quick_runtime.url, wire)
    assert not said or (said.startswith(b"HTTP/1.1 ") and said[9:10] in (b"2", b"3", b"4")), said[:500]
    assert b"root:" not in said
    assert http.get("/health").status_code == 200


def test_slow_bodies_hold_nobody_up(quick_runtime: Runtime, http: httpx.Client) -> None:
    """Clients that send their bodies a byte at a time, and those that never end them, leave room for the others."""
    address = urlsplit(quick_runtime.url)
    slow = [socket.create_connection((address.hostname, address.port)) for _ in range(50)]
    body = b'{"prompt": "a", "max_tokens": 3}'
    try:
        for connection in slow:
            connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body))
        for place in range(len(body)):
            slow[0].sendall(body[place : place + 1])
            if place % 8 == 0:
                assert http.post("/v1/completions", json={"prompt": "b", "max_tokens": 1}).status_code == 200
        slow[0].settimeout(TIMEOUT_S)
        assert slow[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
    finally:
        for connection in slow:
            connection.close()
    assert http.get("/server_info").json()["open"]["requests"] == 0


def _said_to(url: str, wire: bytes) -> bytes:
    """All that the server says to a client that says `wire` and nothing more."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_S) as connection:
        said = b""
        try:
            connection.sendall(wire)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                said += part
        except TimeoutError:
            raise
        except OSError:  # it hung up, which each call says in its own way
            pass
        return said
