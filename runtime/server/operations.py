"""How the server is watched and operated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError
from palmette.runtime.messages import SchedulerStats, SessionOptions
from palmette.runtime.metrics import Metrics
from palmette.runtime.program import Delta, Event, Failed, Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .answers import OpenExchanges
from .errors import ApiError
from .json_route import JsonRoute
from .native_models import AbortBody
from .program_store import ProgramStore
from .responding import json_response

PROTOCOL = 1
"""Version of the native protocol: a client of another one is told so."""

STATS_TIMEOUT_S = 10.0
"""So long the scheduler may take to give its counts: a step on a slow device takes its time."""

_PUBLIC_SETTINGS = (
    "max_body_bytes",
    "max_open_requests",
    "idle_timeout_s",
    "drain_timeout_s",
    "cors_origins",
)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
Answer = TypeVar("Answer")
_Seconds = Annotated[float, Query(gt=0, le=300)]


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["operations"], route_class=JsonRoute)
    _add_health(router, service)
    _add_numbers(router, service, settings)
    _add_actions(router, service)
    return router


def _add_health(router: APIRouter, service: EngineService) -> None:
    probe = _Probe(service)

    @router.get("/health", summary="Is it well?", response_class=Response, responses=_HEALTH)
    async def health() -> Response:
        """Whether the server and its scheduler answer. Costs nothing; needs no API key."""
        await _stats(service)
        return json_response({"status": "ok"})

    @router.get("/health_generate", summary="Does it generate?", response_class=Response, responses=_HEALTH)
    async def health_generate(timeout_s: _Seconds = 20.0) -> Response:
        """Whether the whole engine works: it generates one token. 503 where it has none after `timeout_s`."""
        elapsed_s = await probe.run(timeout_s)
        return json_response({"status": "ok", "elapsed_s": elapsed_s})


def _add_numbers(router: APIRouter, service: EngineService, settings: ServerSettings) -> None:
    began_s = time.monotonic()

    @router.get("/server_info", summary="Model, settings and counts", response_class=Response)
    async def server_info(request: Request) -> Response:
        """The model, the settings that clients may know, what is open, the scheduler's counts and the version."""
        return json_response(
            {
                "version": version("palmette"),
                "protocol": PROTOCOL,
                "model_name": settings.model_name or service.model_info.name,
                "model": service.model_info,
                "settings": {name: getattr(settings, name) for name in _PUBLIC_SETTINGS},
                "stats": _with_ratios(await _stats(service)),
                "open": _what_is_open(request, service),
                "uptime_s": time.monotonic() - began_s,
            }
        )

    @router.get(
        "/metrics", summary="Counts for Prometheus", response_class=Response, responses={200: {"content": {_TEXT: {}}}}
    )
    async def metrics(request: Request) -> Response:
        """Counts for Prometheus. `palmette_up` is 0 where the scheduler does not answer."""
        counted: Metrics = request.app.state.metrics
        try:
            stats = await _stats(service)
        except ApiError:
            stats = None
        return Response(counted.render(stats), media_type=_TEXT)


def _add_actions(router: APIRouter, service: EngineService) -> None:
    @router.post("/flush_cache", summary="Empty the cache", response_class=Response)
    async def flush_cache() -> Response:
        """Drop every prefix that no running request uses; answers with the number of tokens dropped."""
        return json_response({"tokens": await _answer(service.flush_cache)})

    @router.post("/abort", summary="End a request", response_class=Response)
    async def abort(request: Request, body: AbortBody) -> Response:
        """End the request of exactly this id; its client gets an error. 404 where none of this id is open."""
        exchanges: OpenExchanges = request.app.state.exchanges
        if not exchanges.abort(body.rid):
            message = f"no request with the rid {body.rid!r} is being answered; it may have ended"
            raise ApiError(404, message, param="rid", code="unknown_request")
        return json_response({"rid": body.rid})


class _Probe:
    """Has the engine generate one token; who asks while that runs waits for the same one."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._running: asyncio.Task[float] | None = None

    async def run(self, timeout_s: float) -> float:
        """How long it took.

        Raises:
            ApiError: 503, the engine failed or took longer than `timeout_s`.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._generate())
            self._running.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._running)
        except TimeoutError as error:
            raise _unhealthy(f"the engine generated no token within {timeout_s:g} s") from error
        except PalmetteError as error:
            raise _unhealthy(f"the engine could not generate a token: {error}") from error

    async def _generate(self) -> float:
        began_s = time.monotonic()
        ended: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

        def take(event: Event) -> None:
            if not isinstance(event, Delta) and not ended.done():
                ended.set_result(event)

        session = self._service.open(take, SessionOptions(priority=1 << 20, cache_salt="health", timeout_s=300.0))
        try:
            params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
            session.extend([Text(0, None, "Are you well?"), Generate(1, 0, params)])
            event = await ended
        finally:
            session.close()
        if isinstance(event, Failed):
            raise EngineError(f"{event.kind}: {event.message}")
        assert isinstance(event, Generated)
        return time.monotonic() - began_s


async def _stats(service: EngineService) -> SchedulerStats:
    return await _answer(service.stats)


async def _answer(question: Callable[[], Awaitable[Answer]]) -> Answer:
    """The scheduler's answer.

    Raises:
        ApiError: 503, it gives none.
    """
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await question()
    except TimeoutError as error:
        raise _unhealthy(f"the scheduler did not answer within {STATS_TIMEOUT_S:g} s") from error
    except EngineError as error:
        raise _unhealthy(str(error)) from error


def _what_is_open(request: Request, service: EngineService) -> dict[str, int]:
    """Generations that are being answered, programs of `/programs` and channels, and all sessions of the engine."""
    exchanges: OpenExchanges = request.app.state.exchanges
    programs: ProgramStore = request.app.state.programs
    return {
        "requests": len(exchanges),
        "programs": programs.open_programs,
        "channels": programs.open_channels,
        "sessions": service.open_sessions,
    }


def _with_ratios(stats: SchedulerStats) -> dict[str, Any]:
    ratios = {"hit_rate": stats.hit_rate, "scheduler_overhead_fraction": stats.scheduler_overhead_fraction}
    return {**msgspec.structs.asdict(stats), **ratios}


def _unhealthy(message: str) -> ApiError:
    return ApiError(503, message, code="engine_error")


_HEALTH: dict[int | str, dict[str, Any]] = {503: {"description": "The engine does not answer."}}
