"""One HTTP request's program: opened, watched, and ended with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from starlette.requests import Request

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError
from palmette.runtime.messages import SessionOptions
from palmette.runtime.program import Event, Failed, Generated, Node, Selected
from palmette.runtime.service import EngineService, ServiceSession

from .errors import NO_RETRY, ApiError, ClientGoneError, failed, of_kind, refused
from .request_log import TokenCounts
from .sampling_fields import SamplingFields

WATCH_AFTER_S = 0.1
"""An answer that is there so soon needs no task that waits for its client to hang up, which costs much of the rest."""


class OpenExchanges:
    """The exchanges that are under way, by the ids that their clients may know them by."""

    def __init__(self) -> None:
        self._by_id: dict[str, Exchange] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def check_free(self, exchange_id: str) -> None:
        """Raise ApiError where an exchange of this id is open."""
        if exchange_id in self._by_id:
            message = f"a request with the rid {exchange_id!r} is being answered; give each an id of its own"
            raise ApiError(409, message, param="rid", code="request_id_in_use", headers=NO_RETRY)

    def add(self, exchange: Exchange) -> None:
        self._by_id[exchange.id] = exchange

    def remove(self, exchange: Exchange) -> None:
        self._by_id.pop(exchange.id, None)

    def abort(self, exchange_id: str) -> bool:
        """End the exchange of exactly this id, whose client gets an error; False where none of this id is open."""
        exchange = self._by_id.get(exchange_id)
        if exchange is not None:
            exchange.abort()
        return exchange is not None

    def abort_all(self) -> int:
        """End all of them; returns how many there were."""
        exchanges = list(self._by_id.values())
        for exchange in exchanges:
            exchange.abort()
        return len(exchanges)


class Exchange:
    """A program that runs for one HTTP request, and no longer than its client waits.

    A context manager; `close` is called at its end, or by the stream that it was handed to. When the client hangs up,
    or the time is over, the program is aborted at once and whoever waits for events is told.

    Attributes:
        request_id: of the HTTP request, as the log has it.
        counts: tokens of the generations that have ended; the request's line of log shows them.

    Args:
        exchange_id: by which the answer is known to its client, and can be aborted.
        rid: the same, as the client itself has chosen it.
        timeout_s: from now to the end of the answer; None waits for ever.
        fields: names of the request's fields, one of which an error may be about.
        grammar_param: the field that the grammar came in.
        explain: what an error means, by its kind and message, where the endpoint knows better than `of_kind`.

    Raises:
        ApiError: the engine takes no programs any more, or a request of this `rid` is open.
    """

    def __init__(
        self,
        service: EngineService,
        request: Request,
        exchange_id: str,
        *,
        rid: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        fields: Collection[str] = (),
        grammar_param: str | None = None,
        explain: Callable[[str, str], ApiError | None] | None = None,
    ) -> None:
        self.id = rid or exchange_id
        self.request_id: str = request.scope["state"]["request_id"]
        self.counts: TokenCounts = request.scope["state"].setdefault("tokens", TokenCounts())
        self._fields = fields
        self._grammar_param = grammar_param
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Event] = []
        self._problem: ApiError | ClientGoneError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._open_exchanges: OpenExchanges = request.app.state.exchanges
        self._open_exchanges.check_free(self.id)
        options = SessionOptions(priority=priority, cache_salt=cache_salt, timeout_s=timeout_s)
        try:
            self._session: ServiceSession = service.open(self._take, options)
        except EngineError as error:
            raise ApiError(503, str(error), code="engine_error") from error
        self._open_exchanges.add(self)
        self._request = request
        self._watch: asyncio.TimerHandle | asyncio.Task[None] | None
        self._watch = self._loop.call_later(WATCH_AFTER_S, self._begin_watch)
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._time_over, timeout_s)

    @classmethod
    def of(
        cls,
        service: EngineService,
        request: Request,
        exchange_id: str,
        body: SamplingFields,
        *,
        grammar_param: str | None = None,
        explain: Callable[[str, str], ApiError | None] | None = None,
    ) -> Self:
        """The program of a request in OpenAI's form. Arguments and errors are those of the class."""
        return cls(
            service,
            request,
            exchange_id,
            rid=body.rid,
            priority=body.priority or 0,
            cache_salt=body.namespace,
            timeout_s=body.timeout,
            fields=type(body).model_fields,
            grammar_param=grammar_param or ("stop_regex" if body.stop_regex else None),
            explain=explain,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes to the program.

        Raises:
            ApiError: the engine refuses them.
        """
        try:
            self._session.extend(nodes)
        except PalmetteError as error:
            explained = self._explain(type(error).__name__, str(error)) if self._explain is not None else None
            raise explained or refused(error, fields=self._fields, grammar_param=self._grammar_param) from error

    @property
    def open_exchanges(self) -> int:
        """How many exchanges are under way, this one included."""
        return len(self._open_exchanges)

    def waiting(self) -> list[Event]:
        """What came since the last call and has not been taken; often nothing."""
        events, self._waiting = self._waiting, []
        return events

    async def events(self) -> list[Event]:
        """What came since the last call; waits until there is something.

        Raises:
            ApiError: a node failed, the time was over or the request was aborted.
            ClientGoneError: the client hung up.
        """
        if not self._waiting and self._problem is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._problem is not None:
            raise self._problem
        return self.waiting()

    async def finish(self, count: int) -> dict[int, Generated]:
        """The ends of `count` generations, by their nodes.

        Raises:
            ApiError, ClientGoneError: see `events`.
        """
        ends: dict[int, Generated] = {}
        while len(ends) < count:
            ends.update((event.node, event) for event in await self.events() if isinstance(event, Generated))
        return ends

    def abort(self) -> None:
        """End the program; its client gets an error."""
        self._end(of_kind("RequestAbortedError", f"the request {self.id} was aborted"))

    def close(self) -> None:
        """End the program. Calling it twice is allowed."""
        self._session.close()
        # what was raised holds the frames that it passed, and these hold this exchange: it would stay with its prompt
        # until a collector looks for cycles, which is seldom
        self._problem = None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._open_exchanges.remove(self)

    def _take(self, event: Event) -> None:
        if isinstance(event, Failed):
            explained = self._explain(event.kind, event.message) if self._explain is not None else None
            self._end(explained or failed(event, fields=self._fields, grammar_param=self._grammar_param))
            return
        if isinstance(event, Generated | Selected):
            self.counts.add(event)
        self._waiting.append(event)
        self._wake()

    def _end(self, problem: ApiError | ClientGoneError) -> None:
        """Abort what runs, and tell whoever waits; the first problem stays."""
        if self._problem is None:
            self._problem = problem
            self._session.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _time_over(self, timeout_s: float) -> None:
        message = f"the request had not ended after {timeout_s:g} s; ask for fewer tokens, or allow a longer timeout"
        self._end(of_kind("RequestTimeoutError", message))

    def _begin_watch(self) -> None:
        self._watch = self._loop.create_task(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError())
