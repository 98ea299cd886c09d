"""The page of the API: what is on the OpenAPI page, and what a browser makes of it without any other site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.native_server import ServedEngine, served
from tests.runtime.server.chromium import Chromium, find_chromium

from palmette.runtime.engine import Engine
from palmette.runtime.server_settings import ServerSettings

KEY = "open-sesame"
JSON = "application/json"


@pytest.fixture(scope="module")
def guarded(tiny_engine: Engine) -> Iterator[ServedEngine]:
    """A server that asks for a key."""
    with served(tiny_engine, ServerSettings(model_name="tiny", api_key=KEY)) as server:
        yield server


@pytest.fixture(scope="module")
def page(tiny_server: ServedEngine) -> dict[str, Any]:
    """The OpenAPI page of a server without a key."""
    found: dict[str, Any] = httpx.get(f"{tiny_server.url}/openapi.json", timeout=60).json()
    return found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: apt install chromium, or name one in CHROMIUM")
    with Chromium(program, tmp_path / "profile") as found:
        yield found


def operations(page: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, found in page["paths"].items():
        for method, operation in found.items():
            yield f"{method.upper()} {path}", operation


# -- the OpenAPI page -------------------------------------------------------------------------------------------------


def test_every_route_is_described(page: dict[str, Any], tiny_server: ServedEngine) -> None:
    """What it does, an example of its body and of its answer, its errors, and a tag that is described too."""
    tags = {tag["name"] for tag in page["tags"] if tag["description"]}
    described = dict(operations(page))
    for name, operation in described.items():
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name
        good = [answer for status, answer in operation["responses"].items() if status < "300"]
        examples = [content["example"] for answer in good for content in answer["content"].values()]
        assert examples, name
        assert "500" in operation["responses"], name
        assert "422" not in operation["responses"], name
        if "requestBody" in operation:
            content = operation["requestBody"]["content"][JSON]
            schema = content["schema"]
            if "$ref" in schema:
                schema = page["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            assert content.get("examples") or schema.get("examples"), name
    served: list[Any] = tiny_server.app.routes
    routes = {
        f"{method} {route.path.replace(':path', '')}"
        for route in served
        if getattr(route, "include_in_schema", False)
        for method in route.methods - {"HEAD"}
    }
    assert routes == set(described)


def test_references_and_examples_are_right(page: dict[str, Any]) -> None:
    """Every reference leads somewhere, and every example is valid under the schema that it stands for."""
    schemas = page["components"]["schemas"]

    def check(example: Any, schema: Any) -> None:
        jsonschema.Draft202012Validator({**schema, "components": {"schemas": schemas}}).validate(example)

    for name in {
        found.rpartition("/")[2] for found in json.dumps(page).split('"') if found.startswith("#/components/")
    }:
        assert name in schemas
    for schema in schemas.values():
        for example in schema.get("examples", ()):
            check(example, schema)
    for _, operation in operations(page):
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        for holder in [*bodies, *operation["responses"].values()]:
            content = holder.get("content", {}).get(JSON, {})
            for example in [each["value"] for each in content.get("examples", {}).values()]:
                check(example, content["schema"])
            if "example" in content:
                check(content["example"], content["schema"])


def test_a_key_is_on_the_page(page: dict[str, Any], guarded: ServedEngine) -> None:
    """A server with a key says that it wants a bearer token, for all but its health."""
    assert "securitySchemes" not in page["components"]
    assert httpx.get(f"{guarded.url}/openapi.json", timeout=60).status_code == 401
    keyed = httpx.get(f"{guarded.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"}, timeout=60).json()
    assert keyed["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    without = {name for name, operation in operations(keyed) if "security" not in operation}
    assert without == {"GET /health"}
    assert "401" in keyed["paths"]["/generate"]["post"]["responses"]


# -- the page itself --------------------------------------------------------------------------------------------------


def test_the_page_names_no_other_site(tiny_server: ServedEngine) -> None:
    """Its files come from this server, and its policy lets nothing else in."""
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        answer = httpx.get(tiny_server.url + path, timeout=60)
        assert answer.status_code == 200
        assert "http" not in answer.text.replace("http://www.w3.org", "")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{tiny_server.url}/redoc", timeout=60).status_code == 404


def test_routes_are_found_and_called(tiny_server: ServedEngine, page: dict[str, Any], browser: Chromium) -> None:
    """Every route is there with fields, examples and a curl line; one can be looked for, and sent."""
    browser.open(f"{tiny_server.url}/docs")
    browser.wait("!document.querySelector('#page').hidden")
    assert browser.run("document.querySelectorAll('details.operation').length") == len(list(operations(page)))
    browser.run("document.querySelectorAll('details.operation').forEach(each => each.open = true)")
    browser.wait(
        "document.querySelectorAll('.operation .body').length === document.querySelectorAll('details.operation').length"
    )
    chat = "document.getElementById('POST /v1/chat/completions')"
    assert browser.run(f"{chat}.querySelector('pre.curl').textContent").startswith(
        f'curl -X POST {tiny_server.url}/v1/chat/completions \\\n  -H "Content-Type: application/json"'
    )
    names = browser.run(f"[...{chat}.querySelectorAll('.name')].map(each => each.textContent)")
    assert {"messages", "regex", "temperature"} <= set(names)
    browser.run(
        "document.querySelector('#filter').value = 'json_schema stream'; document.querySelector('#filter').oninput()"
    )
    shown = browser.run("[...document.querySelectorAll('details.operation:not([hidden])')].map(each => each.id)")
    assert "POST /generate" in shown
    assert "GET /health" not in shown
    completion = "document.getElementById('POST /v1/completions')"
    asked = json.dumps(json.dumps({"prompt": "it's", "max_tokens": 2}))
    browser.run(f"(b => {{ b.value = {asked}; b.oninput() }})({completion}.querySelector('textarea'))")
    assert "'\\''" in browser.run(f"{completion}.querySelector('pre.curl').textContent")
    browser.run(f"{completion}.querySelector('button.send').click()")
    browser.wait(f"{completion}.querySelector('pre.result').textContent.includes('text_completion')")
    browser.resize(360, 800)
    browser.wait("document.documentElement.scrollWidth <= 360")
    assert browser.problems == []


def test_the_key_is_asked_for(guarded: ServedEngine, browser: Chromium) -> None:
    """The page comes without a key, asks for it, and sends it along."""
    browser.open(f"{guarded.url}/docs")
    browser.wait("document.querySelector('#ask').open")
    browser.run(f"document.querySelector('#key').value = {json.dumps(KEY)}")
    browser.run("document.querySelector('#key-form button').click()")
    browser.wait("!document.querySelector('#page').hidden")
    models = "document.getElementById('GET /v1/models')"
    browser.run(f"{models}.open = true")
    browser.wait(f"{models}.querySelector('button.send') !== null")
    assert "$PALMETTE_API_KEY" in browser.run(f"{models}.querySelector('pre.curl').textContent")
    browser.run(f"{models}.querySelector('button.send').click()")
    browser.wait(f"{models}.querySelector('pre.result').textContent.includes('max_model_len')")
    assert all("401" in problem for problem in browser.problems)
