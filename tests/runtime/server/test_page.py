"""The web page: what it is told, and what a browser makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from tests.runtime.server.chromium import Chromium, find_chromium

from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError
from palmette.runtime.in_process import InProcessService
from palmette.runtime.messages import CacheNode, CacheTree, SchedulerStats
from palmette.runtime.program import Generate, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server.app import create_app
from palmette.runtime.server.page import is_private, routes, tokens_text
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

EVIL = "<script>document.title = 'broken in'</script><img src=x onerror=\"document.title = 'broken in'\">"
KEY = "open-sesame"


class ScriptedService(InProcessService):
    """A real engine whose cache, counts and failures are said by the test."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked = 0
        self.tree: CacheTree | None = None
        self.counts: SchedulerStats | None = None
        self.failure: Exception | None = None

    async def stats(self) -> SchedulerStats:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.counts or await super().stats()

    async def cache_tree(self, limit: int) -> CacheTree:
        return self.tree or await super().cache_tree(limit)


@contextlib.contextmanager
def served(
    engine: Engine, settings: ServerSettings, change: Callable[[ScriptedService], None] = lambda service: None
) -> Iterator[tuple[str, ScriptedService]]:
    """The whole app on a real socket; gives its address and its service."""
    ready: list[tuple[uvicorn.Server, ScriptedService]] = []
    begun = threading.Event()

    async def serve() -> None:
        service = ScriptedService(engine)
        change(service)
        server = uvicorn.Server(uvicorn.Config(create_app(service, settings), port=0, log_config=None))
        ready.append((server, service))
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        begun.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert begun.wait(60)
    server, service = ready[0]
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", service
    finally:
        server.should_exit = True
        thread.join(60)


def cache_of(engine: Engine, *texts: str, locks: int = 0) -> CacheTree:
    """A tree of one branch with these texts, one below the other, the last of which `locks` requests use."""
    nodes = []
    for place, text in enumerate(texts):
        token_ids = tuple(engine.tokenizer.encode_text(text))
        used = locks if place == len(texts) - 1 else 0
        nodes.append(CacheNode(place - 1, len(token_ids), token_ids, used, place))
    return CacheTree(tuple(nodes))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: apt install chromium, or name one in CHROMIUM")
    with Chromium(program, tmp_path / "profile") as page:
        yield page


# -- what the page is told ------------------------------------------------------------------------------------------


def test_state(tiny_engine: Engine) -> None:
    """The state holds the counts and the tree, with the text of each node's first tokens."""
    tree = cache_of(tiny_engine, "The cat", " sat\n")

    with served(tiny_engine, ServerSettings(), lambda service: setattr(service, "tree", tree)) as (url, _):
        answer = httpx.get(f"{url}/page/state", timeout=60)
    state = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert state["stats"]["total_pages"] == tiny_engine.stats().total_pages
    assert state["context_length"] == tiny_engine.model_info.context_length
    assert [(node["parent"], node["text"], node["whole"]) for node in state["nodes"]] == [
        (-1, "The cat", True),
        (0, " sat\n", True),
    ]


def test_text_of_half_characters(tiny_engine: Engine) -> None:
    """Tokens that cut a character show as replacement characters; special tokens by name; unknown ids as nothing."""
    tokenizer = tiny_engine.tokenizer
    whole = tuple(tokenizer.encode_text("é😀"))
    assert tokens_text(whole, tokenizer) == "é😀"
    assert tokens_text(whole[:1], tokenizer) in ("é", "\ufffd")
    assert tokens_text((10**9, -1), tokenizer) == ""


def test_many_pages_ask_once(tiny_engine: Engine) -> None:
    """However many pages are open, the scheduler is asked for them all at once."""
    with served(tiny_engine, ServerSettings()) as (url, service):

        async def ask() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                answers = await asyncio.gather(*(client.get(f"{url}/page/state") for _ in range(40)))
            return [answer.status_code for answer in answers]

        assert set(asyncio.run(ask())) == {200}
        assert service.asked < 20


def test_a_failure_is_not_kept(tiny_engine: Engine) -> None:
    """When the engine fails the page is told, and asks anew the next time."""
    with served(tiny_engine, ServerSettings()) as (url, service):
        service.failure = EngineError("the engine failed")
        assert httpx.get(f"{url}/page/state", timeout=60).status_code >= 500
        service.failure = None
        assert httpx.get(f"{url}/page/state", timeout=60).status_code == 200


def test_the_page_needs_no_key_and_its_state_does(tiny_engine: Engine) -> None:
    """With an API key the page itself is open, for it holds nothing; what it shows is not."""
    with served(tiny_engine, ServerSettings(api_key=KEY)) as (url, _):
        for path in ("/", "/page/page.js", "/page/page.css"):
            assert httpx.get(url + path, timeout=60).status_code == 200
        refused = httpx.get(f"{url}/page/state", timeout=60)
        allowed = httpx.get(f"{url}/page/state", headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert allowed.status_code == 200


def test_headers(tiny_engine: Engine) -> None:
    """A browser may run this server's script and style only, and show the page in no frame."""
    with served(tiny_engine, ServerSettings()) as (url, _):
        answer = httpx.get(url, timeout=60)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_no_page_of_another_site_reads_it(tiny_engine: Engine) -> None:
    """A name that was made to lead to this machine is refused: its page could read prompts."""
    with served(tiny_engine, ServerSettings()) as (url, _):
        refused = httpx.get(f"{url}/page/state", headers={"host": "evil.example:80"}, timeout=60)
        allowed = [
            httpx.get(f"{url}/page/state", headers={"host": host}, timeout=60).status_code
            for host in ("localhost", "127.0.0.1:1234", "[::1]:8000", "192.168.1.5")
        ]
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "unknown_host")
    assert allowed == [200] * 4


@pytest.mark.parametrize(
    ("host", "key", "private"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("192.168.1.5", None, False),
        ("example.org", None, False),
        ("0.0.0.0", KEY, True),
    ],
)
def test_texts_are_shown_to_few(host: str, key: str | None, private: bool) -> None:
    """Texts are shown where only this machine asks, or whoever has the key."""
    assert is_private(ServerSettings(host=host, api_key=key)) is private


def test_open_to_the_network(tiny_engine: Engine) -> None:
    """A server that anyone may ask shows the tree without texts."""
    tree = cache_of(tiny_engine, "a secret")
    settings = ServerSettings(host="0.0.0.0")
    with served(tiny_engine, settings, lambda service: setattr(service, "tree", tree)) as (url, _):
        answer = httpx.get(f"{url}/page/state", timeout=60)
    assert answer.json()["nodes"][0]["text"] is None
    assert "secret" not in answer.text


def test_no_page() -> None:
    """`web_page=False` serves none of it."""

    class Nothing:
        pass

    service: EngineService = Nothing()  # type: ignore[assignment]  # it is not asked
    assert routes(service, ServerSettings(web_page=False)).routes == []


# -- in a browser ---------------------------------------------------------------------------------------------------


def test_page_shows_real_work(tiny_engine: Engine, browser: Chromium) -> None:
    """While requests run, the page shows them, their tokens, and a chart; the console stays empty."""
    with served(tiny_engine, ServerSettings()) as (url, _):
        browser.open(url)
        browser.wait("document.querySelector('#state').textContent === 'live'")
        assert browser.text("#model") == tiny_engine.model_info.name
        with working(tiny_engine):
            browser.wait("Number(document.querySelector('#running').textContent) > 0")
            browser.wait("parseFloat(document.querySelector('#output-rate').textContent) > 0")
            browser.wait("document.querySelector('#output-chart .line-a') !== null")
            browser.wait("document.querySelector('#device').textContent.endsWith('%')")
            browser.wait("document.querySelector('#pool .own').style.width !== '0%'")
        browser.wait("document.querySelector('#running').textContent === '0'")
    assert browser.problems == []


@contextlib.contextmanager
def working(engine: Engine) -> Iterator[None]:
    """Keep the engine busy: each generation that ends is followed by another."""
    stop = threading.Event()
    sessions = []

    def begin() -> None:
        node = iter(range(0, 1 << 30, 2))

        def extend() -> None:
            first = next(node)
            text = Text(id=first, parent=None, text="The quick brown fox")
            params = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True)
            session.extend([text, Generate(id=first + 1, parent=first, params=params)])

        def go_on(event: object) -> None:
            if not stop.is_set():
                extend()

        session = engine.open(go_on)
        sessions.append(session)
        extend()

    for _ in range(4):
        begin()
    try:
        yield
    finally:
        stop.set()
        for session in sessions:
            session.close()


def test_tree_in_the_browser(tiny_engine: Engine, browser: Chromium) -> None:
    """The tree has a node for each of the cache's, coloured by use, with its text; hovering shows all of it."""
    tree = cache_of(tiny_engine, "The cat", " sat on a mat", locks=2)
    with served(tiny_engine, ServerSettings(), lambda service: setattr(service, "tree", tree)) as (url, service):
        browser.open(url)
        browser.wait("document.querySelectorAll('#tree .node').length === 2")
        assert browser.run("document.querySelectorAll('#tree .node.locked').length") == 1
        assert "sat on a mat" in browser.text("#tree .node.locked text")
        browser.hover("#tree .node.locked .dot")
        browser.wait("!document.querySelector('#tip').hidden")
        assert browser.text("#tip pre") == " sat on a mat"
        assert "in use by 2 requests" in browser.text("#tip")
        service.tree = cache_of(tiny_engine, "The cat")
        browser.wait("document.querySelectorAll('#tree .node').length === 1")
        assert browser.run("document.querySelectorAll('#tree .node.locked').length") == 0
    assert browser.problems == []


def test_text_is_never_markup(tiny_engine: Engine, browser: Chromium) -> None:
    """Text that spells elements is shown as text, in the picture and in the tip, and runs nothing."""
    tree = cache_of(tiny_engine, EVIL, "\u202egnp.exe\x00\n" + EVIL)
    with served(tiny_engine, ServerSettings(), lambda service: setattr(service, "tree", tree)) as (url, _):
        browser.open(url)
        browser.wait("document.querySelectorAll('#tree .node').length === 2")
        browser.hover("#tree .node:last-of-type .dot")
        browser.wait("!document.querySelector('#tip').hidden")
        assert EVIL in browser.text("#tip pre")
        assert browser.run("document.querySelectorAll('main script, main img, #tip script, #tip img').length") == 0
        assert browser.run("document.title") == "Palmette"
        assert "\u202e" not in browser.run("document.body.textContent")
    assert browser.problems == []


def test_key_is_asked_for(tiny_engine: Engine, browser: Chromium) -> None:
    """With an API key the page asks for it, says when it is wrong, and keeps the right one in this tab only."""

    def give(key: str) -> None:
        browser.wait("document.querySelector('#ask').open")
        browser.run(f"document.querySelector('#key').value = {json.dumps(key)}")
        browser.run("document.querySelector('#key-form button').click()")

    with served(tiny_engine, ServerSettings(api_key=KEY)) as (url, _):
        browser.open(url)
        give("wrong")
        browser.wait("document.querySelector('#ask-note').textContent.includes('does not take this key')")
        give(KEY)
        browser.wait("document.querySelector('#state').textContent === 'live'")
        browser.open(url + "/")
        browser.wait("document.querySelector('#state').textContent === 'live'")
        assert browser.run("[sessionStorage.length, localStorage.length]") == [1, 0]
        assert browser.run("document.querySelectorAll('nav a:not([hidden])').length") == 1  # metrics would need the key
    refusals = [problem for problem in browser.problems if "401" in problem]
    assert browser.problems == refusals  # which the browser itself writes


def test_lost_and_found(tiny_engine: Engine, browser: Chromium) -> None:
    """While the engine does not answer the page says so and shows what it last knew; then it goes on."""
    with served(tiny_engine, ServerSettings()) as (url, service):
        browser.open(url)
        browser.wait("document.querySelector('#state').textContent === 'live'")
        service.failure = EngineError("the engine failed")
        browser.wait("document.querySelector('#state').dataset.kind === 'lost'")
        assert browser.run("document.querySelector('#main').classList.contains('stale')")
        service.failure = None
        browser.wait("document.querySelector('#state').textContent === 'live'")


def test_light_dark_and_small(tiny_engine: Engine, browser: Chromium) -> None:
    """The page takes the system's colours, a button changes them, and nothing is wider than a phone."""
    with served(tiny_engine, ServerSettings()) as (url, _):
        browser.prefer(dark=True)
        browser.open(url)
        paper = "getComputedStyle(document.body).backgroundColor"
        dark = browser.run(paper)
        browser.run("document.querySelector('#theme').click()")
        assert browser.run(paper) != dark
        browser.resize(360, 800)
        browser.wait("document.documentElement.scrollWidth <= 360")
    assert browser.problems == []
