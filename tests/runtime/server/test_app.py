"""What stands before every request: errors, ids, the key, limits, and clients that hang up."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from tests.native_server import ServedEngine, served

from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError
from palmette.runtime.in_process import InProcessService
from palmette.runtime.server_settings import ServerSettings

LONG = {"prompt": "The quick", "max_tokens": 500, "ignore_eos": True}
KEY = "secret-key-of-the-test"


@pytest.fixture(scope="module")
def server(tiny_engine: Engine) -> Iterator[ServedEngine]:
    with served(tiny_engine, ServerSettings(model_name="tiny", max_body_bytes=20_000)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tiny_engine: Engine) -> Iterator[str]:
    """The address of a server that asks for a key, takes one request at a time and lets one origin's pages in."""
    settings = ServerSettings(api_key=KEY, max_open_requests=1, cors_origins=("https://a.example",))
    with served(tiny_engine, settings) as server:
        yield server.url


@pytest.fixture
def http(server: ServedEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def wait_for(happens: Callable[[], bool]) -> None:
    """Wait until something is so; fail after a minute."""
    until = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def is_idle(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.running == stats.waiting == 0


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_every_error_is_openais_object(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    """Unknown paths, methods and models are answered by the error object."""
    response = http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'"text"', b"null", b"\xff\xfe", b"[" * 5000])
def test_bodies_that_are_no_objects_are_refused(http: httpx.Client, body: bytes) -> None:
    """What is not JSON, or not an object, gets 400 and a message."""
    response = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_bodies_must_be_sent_as_json(http: httpx.Client) -> None:
    """A body of another type gets 415: web pages of other origins can send those without asking."""
    response = http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_an_unknown_model_is_404_and_its_other_names_are_known(http: httpx.Client, tiny_engine: Engine) -> None:
    """The served name, the loaded name, its last part and none at all are accepted; others are refused by name."""
    loaded = tiny_engine.model_info.name
    for name in ("tiny", loaded, loaded.rpartition("/")[2], "default", None):
        assert http.post("/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1}).status_code == 200
    response = http.post("/v1/completions", json={"model": "gpt-5", "prompt": "a"})
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "model"
    assert "'gpt-5'" in response.json()["error"]["message"]


def test_openais_client_raises_its_own_errors(server: ServedEngine) -> None:
    """OpenAI's client knows the errors by their statuses."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model="tiny", prompt="a", temperature=-1)
        with pytest.raises(openai.NotFoundError, match="gpt-5"):
            client.completions.create(model="gpt-5", prompt="a")
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"


def test_a_request_that_takes_too_long_times_out(http: httpx.Client, tiny_engine: Engine) -> None:
    """With `timeout` a request ends in 504, which OpenAI's client is told not to repeat."""
    response = http.post("/v1/completions", json={**LONG, "timeout": 0.02})
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    wait_for(lambda: is_idle(tiny_engine))


# -- ids, key, limits -----------------------------------------------------------------------------------------------


def test_request_ids_go_in_and_out(http: httpx.Client) -> None:
    """A usable X-Request-Id comes back; else a new one is made, for errors too."""
    given = http.get("/v1/models", headers={"x-request-id": "mine-7"})
    assert given.headers["x-request-id"] == "mine-7"
    made = [http.get(path, headers={"x-request-id": "x" * 500}).headers["x-request-id"] for path in ("/v1/models", "/")]
    assert all(name.startswith("req-") for name in made)
    assert made[0] != made[1]


def test_the_key_is_asked_for(guarded: str) -> None:
    """Without the right key there is 401, and /health alone is open."""
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"authorization": "Bearer \xe9"}):
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        response = httpx.get(f"{guarded}/v1/models", headers=encoded, timeout=60)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert KEY not in response.text
    assert httpx.get(f"{guarded}/v1/models", headers={"authorization": f"Bearer {KEY}"}, timeout=60).status_code == 200
    assert httpx.get(f"{guarded}/health", timeout=60).status_code == 200


def test_more_requests_than_allowed_get_503(guarded: str) -> None:
    """While as many requests are open as the server takes, others are told when to try again; then they go well."""
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        httpx.Client(base_url=guarded, headers=headers, timeout=60) as client,
        httpx.Client(base_url=guarded, headers=headers, timeout=60) as other,
    ):
        assert other.get("/v1/models").status_code == 200
        with client.stream("POST", "/v1/completions", json={**LONG, "n": 12, "stream": True}) as stream:
            pieces = stream.iter_bytes()
            next(pieces)  # kept, since an iterator that nobody holds closes its connection
            refused = other.get("/v1/models")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert other.get("/health").status_code == 200
        wait_for(lambda: other.get("/v1/models").status_code == 200)


def test_other_origins_are_let_in_only_where_they_are_named(guarded: str, http: httpx.Client) -> None:
    """There are no CORS headers by default, and none for origins that the settings do not name."""
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/models", headers=asked).headers
    allowed = httpx.options(f"{guarded}/v1/completions", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = httpx.options(f"{guarded}/v1/completions", headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_gets_413(http: httpx.Client, *, chunked: bool) -> None:
    """Bodies past the limit are refused, whether their length is stated or they come in chunks."""
    body = json.dumps({"prompt": "a" * 30_000}).encode()
    parts = (body[start : start + 1000] for start in range(0, len(body), 1000))
    headers = {"content-type": "application/json"}
    response = http.post("/v1/completions", content=parts if chunked else body, headers=headers)
    assert response.status_code == 413
    assert "20000 bytes" in response.json()["error"]["message"]


# -- lost clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_lost_client_ends_its_request(server: ServedEngine, tiny_engine: Engine, path: str, *, stream: bool) -> None:
    """When a client hangs up, streaming or not, its generation is aborted and nothing of it stays."""
    body = {**LONG, "stream": stream, "n": 4}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    data = json.dumps(body).encode()
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    before = tiny_engine.stats()
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        connection.sendall(head.encode() + data)
        wait_for(lambda: tiny_engine.stats().running > 0)
    wait_for(lambda: is_idle(tiny_engine))
    assert server.on_loop(lambda: len(server.app.state.exchanges)) == 0
    assert tiny_engine.stats().total_pages == before.total_pages


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/programs"])
def test_a_client_that_goes_within_its_request_is_no_failure(
    server: ServedEngine, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """A body that ends too early is logged as any lost client: 499, and no error."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    with (
        caplog.at_level("INFO", "palmette"),
        socket.create_connection((address.hostname, address.port)) as connection,
    ):
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{{"
        connection.sendall(head.encode())
        time.sleep(0.05)  # the request begins
        connection.close()
        wait_for(lambda: any(getattr(record, "palmette_fields", {}).get("route") == path for record in caplog.records))
    assert [(record.levelname, record.palmette_fields["status"]) for record in caplog.records] == [("INFO", 499)]  # type: ignore[attr-defined]  # of ours


def test_an_answer_can_be_aborted_by_its_id(server: ServedEngine, http: httpx.Client) -> None:
    """An abort by the id of an answer ends exactly that one; its client is told."""
    with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as stream:
        lines = stream.iter_lines()
        answer_id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert not server.on_loop(lambda: server.app.state.exchanges.abort(answer_id + "x"))
        assert server.on_loop(lambda: server.app.state.exchanges.abort(answer_id))
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate"])
def test_a_failure_of_the_server_is_told_by_the_id_of_the_request(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, *, stream: bool
) -> None:
    """A bug gets 500 and no word of what it was, an engine that is gone 503; both name the request."""
    body = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    body = {"/generate": {"text": "a"}, "/v1/responses": {"input": "a"}}.get(path, body)

    def ask() -> httpx.Response:
        return http.post(path, json={**body, "stream": stream}, headers={"x-request-id": "mine-7"})

    for error, status in ((KeyError("secret"), 500), (EngineError("the engine has failed"), 503)):

        def fails(*_: object, failure: Exception = error) -> None:
            raise failure

        monkeypatch.setattr(InProcessService, "open", fails)
        answer = ask()
        assert answer.status_code == status
        assert answer.headers["x-request-id"] == "mine-7"
        assert "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"
        if status == 500:
            assert "mine-7" in answer.json()["error"]["message"]


def test_the_openapi_page_describes_every_route(http: httpx.Client) -> None:
    """The page lists the routes with the models of their bodies, and its references resolve."""
    page = http.get("/openapi.json").json()
    for path, model in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest")):
        schema = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{model}"}
        assert page["components"]["schemas"][model]["examples"]
    assert "/v1/models" in page["paths"]
    assert "/tokenize" in page["paths"]
