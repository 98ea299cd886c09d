"""The web page at `/`: queues, batch, cache and speed as they are now, and the radix tree as a picture."""

from __future__ import annotations

import asyncio
import ipaddress
import time

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from palmette.runtime.messages import CacheTree, SchedulerStats
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService
from palmette.runtime.status_line import pages_used
from palmette.runtime.tokenizer import Tokenizer

from .errors import ApiError
from .page_files import add_file

PUBLIC_PATHS = frozenset(("/", "/page/key.js", "/page/page.js", "/page/page.css"))
"""The page itself, which holds nothing: it is answered without an API key and asks for one. `/page/state` needs it."""

MOST_NODES = 200
_FRESH_S = 0.5  # however many pages are open, the scheduler is asked at most twice a second


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the radix tree as the page draws it.

    Attributes:
        parent: the place of its parent in the list, -1 for a child of the root.
        tokens: length of its key.
        text: of its first tokens; None where texts are not shown.
        whole: `text` is all of it.
        locks: requests that use it now, itself or by what is below.
        last_access: order of use.
    """

    parent: int
    tokens: int
    text: str | None
    whole: bool
    locks: int
    last_access: int


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        time_s: of a clock that only goes forward; for rates.
        texts_shown: whether nodes have their texts: not where anyone on the network could read them.
        pages_used: of the KV pool, by running requests; they cannot be had until these end.
        left_out: nodes of the tree that are not listed.
    """

    model: str
    context_length: int
    time_s: float
    stats: SchedulerStats
    hit_rate: float
    overhead: float
    pages_used: int
    texts_shown: bool
    nodes: tuple[TreeNode, ...]
    left_out: int


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The page, its files, and what it shows as JSON; none of it where the settings turn it off."""
    router = APIRouter()
    if not settings.web_page:
        return router
    watch = _Watch(service, texts=is_private(settings))
    add_file(router, "/", "index.html", "text/html")
    add_file(router, "/page/key.js", "key.js", "text/javascript")
    add_file(router, "/page/page.js", "page.js", "text/javascript")
    add_file(router, "/page/page.css", "page.css", "text/css")

    @router.get("/page/state", include_in_schema=False)
    async def state(request: Request) -> Response:
        if settings.api_key is None:
            _refuse_rebound(request)
        return Response(await watch.state(), media_type="application/json", headers={"cache-control": "no-store"})

    return router


def is_private(settings: ServerSettings) -> bool:
    """Whether only this machine, or whoever has the key, can ask."""
    return settings.api_key is not None or _is_loopback(settings.host)


class _Watch:
    """Asks the engine once for all pages that ask at the same moment."""

    def __init__(self, service: EngineService, *, texts: bool) -> None:
        self._service = service
        self._texts = texts
        self._asking: asyncio.Task[bytes] | None = None
        self._asked_s = -_FRESH_S

    async def state(self) -> bytes:
        """The state as JSON, at most half a second old."""
        now = time.monotonic()
        if self._asking is None or (self._asking.done() and now - self._asked_s >= _FRESH_S) or _failed(self._asking):
            self._asked_s = now
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bytes:
        stats, tree = await asyncio.gather(self._service.stats(), self._service.cache_tree(MOST_NODES))
        info = self._service.model_info
        state = PageState(
            model=info.name,
            context_length=info.context_length,
            time_s=time.monotonic(),
            stats=stats,
            hit_rate=stats.hit_rate,
            overhead=stats.scheduler_overhead_fraction,
            pages_used=pages_used(stats),
            texts_shown=self._texts,
            nodes=tree_nodes(tree, self._service.tokenizer if self._texts else None),
            left_out=tree.left_out,
        )
        return msgspec.json.encode(state)


def tree_nodes(tree: CacheTree, tokenizer: Tokenizer | None) -> tuple[TreeNode, ...]:
    """The nodes with the text of their first tokens; without a tokenizer, without text."""
    return tuple(
        TreeNode(
            parent=node.parent,
            tokens=node.tokens,
            text=None if tokenizer is None else tokens_text(node.token_ids, tokenizer),
            whole=len(node.token_ids) >= node.tokens,
            locks=node.locks,
            last_access=node.last_access,
        )
        for node in tree.nodes
    )


def tokens_text(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    """The text of tokens in a row; half characters at its ends are replacement characters."""
    text, run = "", b""
    for token_id in token_ids:
        known = tokenizer.token_bytes[token_id] if 0 <= token_id < len(tokenizer.token_bytes) else None
        if known is not None:
            run += known
        else:
            text, run = text + run.decode(errors="replace") + tokenizer.token_text(token_id), b""
    return text + run.decode(errors="replace")


def _failed(task: asyncio.Task[bytes]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _refuse_rebound(request: Request) -> None:
    """Refuse a page of another site whose name was made to lead here, and which a browser therefore lets read.

    Raises:
        ApiError: the request was sent to a name rather than to an address.
    """
    host = request.url.hostname or ""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if not _is_loopback(host):
            message = f"the page is shown under this machine's address or localhost, not as {host!r}; set an API key"
            raise ApiError(403, message, code="unknown_host") from None
