"""The server's own process and all that is behind it, as clients see them: every surface once, and its end."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine_processes import LIMIT_S, fake_runtime, wait_until
from tests.wire import Listener

import palmette as pt
from palmette.bench.fake_model import TEXT
from palmette.runtime.errors import EngineError
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings

KEY = "sk-open-sesame"
ORIGIN = "https://notes.example.org"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def http(quick_runtime: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=quick_runtime.url, timeout=LIMIT_S) as client:
        yield client


def answered(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def events(http: httpx.Client, method: str, path: str, body: Any = None) -> list[Any]:
    """The data of each event of a stream, but its end mark."""
    with http.stream(method, path, json=body) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_text_comes_through_every_surface(http: httpx.Client) -> None:
    """Whole and streamed, the same words."""
    text = TEXT[:12]
    completion = {"prompt": "a", "max_tokens": 12}
    assert answered(http, "/v1/completions", completion)["choices"][0]["text"] == text
    streamed = events(http, "POST", "/v1/completions", {**completion, "stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text
    chat = {"messages": HI, "max_tokens": 12, "n": 2}
    assert [each["message"]["content"] for each in answered(http, "/v1/chat/completions", chat)["choices"]] == [
        text
    ] * 2
    streamed = events(http, "POST", "/v1/chat/completions", {**chat, "n": 1, "stream": True})
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed) == text
    response = answered(http, "/v1/responses", {"input": "Hi", "max_output_tokens": 12})
    assert response["output"][0]["content"][0]["text"] == text
    assert http.get(f"/v1/responses/{response['id']}").json() == response
    generate = {"text": ["a", "b"], "sampling_params": {"max_tokens": 12}}
    assert [each["text"] for each in answered(http, "/generate", generate)] == [text] * 2
    streamed = events(http, "POST", "/generate", {**generate, "text": "a", "stream": True})
    assert "".join(event.get("delta", "") for event in streamed) == text
    assert answered(http, "/v1/completions", {**completion, "regex": "[0-9]{3}"})["choices"][0]["text"].isdigit()


def test_a_program_grows_over_http(http: httpx.Client) -> None:
    """Opened, extended, listened to until it is done, and forgotten."""
    nodes: list[dict[str, Any]] = [
        {"type": "text", "id": 0, "parent": None, "text": "a"},
        {"type": "generate", "id": 1, "parent": 0, "params": {"max_tokens": 3}},
    ]
    program = answered(http, "/programs", {"nodes": nodes})["id"]
    more = [{**nodes[1], "id": 2, "parent": 1}]
    answered(http, f"/programs/{program}/extend", {"nodes": more})
    found = events(http, "GET", f"/programs/{program}/events?until_done=1")
    assert [event["node"] for event in found if event.get("type") == "generated"] == [1, 2]
    assert http.delete(f"/programs/{program}").status_code == 200
    assert http.get(f"/programs/{program}/events").status_code == 404


def test_tokens_models_and_numbers(http: httpx.Client) -> None:
    """The model goes by the name of its folder, and nothing tells where that lies."""
    ids = answered(http, "/tokenize", {"prompt": "Hi!"})["tokens"]
    assert answered(http, "/detokenize", {"tokens": ids}) == {"prompt": "Hi!"}
    card = http.get("/v1/models").json()["data"][0]
    assert card["id"] == card["root"] == "quick"
    for name in ("quick", "default", "/models/quick", None):
        answered(http, "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
    assert http.post("/v1/completions", json={"model": "other/quick", "prompt": "a"}).status_code == 404
    info = http.get("/server_info").json()
    assert info["model"]["name"] == info["model_name"] == "quick"
    assert info["open"].keys() == {"requests", "programs", "channels", "sessions"}
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/health_generate").json()["status"] == "ok"
    assert "palmette_up 1.0" in http.get("/metrics").text.splitlines()
    assert http.get("/page/state").json()["model"] == "quick"


def test_pages_are_guarded_and_origins_are_shut_out(http: httpx.Client) -> None:
    """Pages come with their policies; no other site is allowed anything by default."""
    for path in ("/", "/docs"):
        headers = http.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    assert http.options("/v1/completions", headers=asked).status_code == 405
    assert "access-control-allow-origin" not in http.get("/v1/models", headers={"origin": ORIGIN}).headers
    assert "server" not in http.get("/health").headers


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Runtime]:
    """An engine whose steps take their time and that does little at once."""
    with fake_runtime(
        tmp_path / "slow", step_s=0.02, engine={"max_queued_requests": 2, "max_running_requests": 1}
    ) as runtime:
        yield runtime


PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2000},
    "/v1/completions": {"prompt": "a", "max_tokens": 2000},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2000},
    "/generate": {"text": "a", "sampling_params": {"max_tokens": 2000}},
}


def test_a_full_queue_late_answers_and_ids(slow: Runtime) -> None:
    """503 with Retry-After, 504 at the end of the time, 409 for an id that is taken, and what an abort leaves."""
    with httpx.Client(base_url=slow.url, timeout=LIMIT_S) as http:
        for path, body in PATHS.items():
            late = http.post(path, json={**body, "timeout_s" if path == "/generate" else "timeout": 0.1})
            assert late.status_code == 504, late.text
            assert late.json()["error"]["code"] == "timeout"
        wait_until(lambda: slow.stats().running == 0, "an idle engine")
        aborted: list[httpx.Response] = []
        asking = []
        for place, (path, body) in enumerate(list(PATHS.items())[:3]):
            rid = {"rid": f"mine-{place}"}
            asking.append(
                threading.Thread(
                    target=lambda p=path, b={**body, **rid}: aborted.append(
                        httpx.post(slow.url + p, json=b, timeout=LIMIT_S)
                    )
                )
            )
            asking[-1].start()
            wait_until(lambda: http.get("/server_info").json()["open"]["requests"] == len(asking), "a request")
        wait_until(lambda: slow.stats().waiting == 2, "a full queue")
        for path, body in PATHS.items():
            for stream in ({}, {"stream": True}):
                full = http.post(path, json={**body, **stream})
                assert full.status_code == 503, full.text
                assert int(full.headers["retry-after"]) >= 1
                assert full.json()["error"]["code"] == "overloaded"
            taken = http.post(path, json={**body, "rid": "mine-0"})
            assert (taken.status_code, taken.json()["error"]["param"]) == (409, "rid")
        for place in range(3):
            assert http.post("/abort", json={"rid": f"mine-{place}"}).status_code == 200
        for thread in asking:
            thread.join(LIMIT_S)
        assert [answer.json()["error"]["code"] for answer in aborted] == ["aborted"] * 3


# -- TLS, a key, an origin, and the end --------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Runtime, Path]]:
    """A server with a certificate that it signed itself, a key, and an origin that may call it."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    settings = ServerSettings(
        api_key=KEY,
        cors_origins=(ORIGIN,),
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        drain_timeout_s=3_600,
        log_level="warning",
    )
    with fake_runtime(tmp_path / "guarded", server=settings) as runtime:
        yield runtime, certificate


def test_a_guarded_server_and_its_end(guarded: tuple[Runtime, Path]) -> None:
    """TLS and the key are asked for; then SIGTERM: a channel that is idle does not hold the server's end up."""
    runtime, certificate = guarded
    assert runtime.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=runtime.url, verify=context, timeout=LIMIT_S) as http:
        with pytest.raises(httpx.RequestError):
            httpx.get(runtime.url.replace("https", "http") + "/health")
        with pytest.raises(httpx.RequestError):
            httpx.get(runtime.url + "/health")  # whose certificate nobody known has signed
        assert http.get("/health").status_code == http.get("/docs").status_code == 200
        for path in ("/v1/models", "/openapi.json", "/metrics", "/page/state", "/server_info"):
            assert http.get(path).status_code == 401, path
        keyed = {"authorization": f"Bearer {KEY}"}
        assert http.get("/v1/models", headers=keyed).status_code == 200
        called = http.post(
            "/v1/completions",
            json={"prompt": "a", "max_tokens": 1},
            headers={**keyed, "origin": ORIGIN, "sec-fetch-site": "cross-site"},
        )
        assert called.status_code == 200
        assert called.headers["access-control-allow-origin"] == ORIGIN
        other = {**keyed, "origin": "https://evil.example.org", "sec-fetch-site": "cross-site"}
        assert http.post("/flush_cache", headers=other).status_code == 403
    with pt.HttpBackend(runtime.url, api_key=KEY, verify=str(certificate)) as backend:
        listener = Listener()
        session = backend.open(listener)
        session.extend([Text(0, None, "a"), Generate(1, 0, SamplingParams(max_tokens=3))])
        listener.wait([1])
        assert isinstance(listener.done[1], Generated)
        os.kill(runtime.pids["server"], signal.SIGTERM)  # the program is open, and has nothing to do
        with pytest.raises(EngineError, match="server process ended"):
            runtime.wait(LIMIT_S)
        with pytest.raises(EngineError, match="shutting down"):
            session.extend([Generate(2, 1, SamplingParams(max_tokens=3))])
