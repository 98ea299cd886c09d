"""`/programs` and `/channels`: trees of generations that grow while they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from palmette.constrained.errors import PalmetteError
from palmette.runtime.channel import ChannelMessage, ProgramOptions
from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.messages import LONGEST_NAME
from palmette.runtime.program import Node
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .errors import ApiError, bad_request, refused
from .event_log import EventLog, EventsLostError
from .event_stream import EventStream
from .held_programs import HeldProgram
from .json_route import json_body as sent_json
from .program_examples import MESSAGE_EXAMPLES, MORE_EXAMPLES, PROGRAM_EXAMPLES
from .program_store import ProgramStore, UnknownIdError
from .wire_schemas import event_responses, json_body

MAX_PROGRAMS = 16_384
"""Most programs that are open at once."""

MAX_SALT_LENGTH = 1024
MAX_TIMEOUT_S = 1e7

Body = TypeVar("Body")

_NUMBER = re.compile(r"^[1-9][0-9]{0,14}$")


class NewProgram(ProgramOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A program to open, with its first nodes."""

    nodes: tuple[Node, ...] = ()


class MoreNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes for a program: parents before children, sources before references."""

    nodes: tuple[Node, ...]


class _DirectRoute(APIRoute):
    """A route whose endpoint reads the request itself: FastAPI's reading of it costs as much as all the rest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            answer = await self.endpoint(request, **request.path_params)
            assert isinstance(answer, Response)
            return answer

        return handle


class OpenedId(msgspec.Struct, frozen=True):
    """What was opened."""

    id: str


_new_program = msgspec.json.Decoder(NewProgram)
_more_nodes = msgspec.json.Decoder(MoreNodes)
_options = msgspec.json.Decoder(ProgramOptions)
_messages = msgspec.json.Decoder(list[ChannelMessage])


class ProgramRouter(APIRouter):
    """The routes of programs and channels, and the store of those that are open."""

    def __init__(self, store: ProgramStore) -> None:
        super().__init__(tags=["programs"])
        self.store = store
        _add_programs(self, store)
        _add_channels(self, store)


def routes(service: EngineService, settings: ServerSettings) -> ProgramRouter:
    """The routes of this module."""
    return ProgramRouter(ProgramStore(service, most_programs=MAX_PROGRAMS, idle_timeout_s=settings.idle_timeout_s))


def _add_programs(router: APIRouter, store: ProgramStore) -> None:
    @router.post(
        "/programs",
        summary="Open a program",
        response_class=Response,
        openapi_extra=json_body(NewProgram, PROGRAM_EXAMPLES),
    )
    async def open_program(request: Request, stream: bool = False) -> Response:
        """Open a program, with its first nodes where they are known, and answer with its id.

        With `?stream=1`, or `Accept: text/event-stream`, the answer is the program's events; it ends when all nodes
        have their results, and the program with it. If the client goes, the program ends at once.
        """
        asked = _decoded(_new_program, await sent_json(request))
        _check(asked)
        with _Refusing():
            program = store.open_program(asked)
            try:
                program.extend(asked.nodes)
            except BaseException:
                program.drop("its first nodes were refused")
                raise
        if stream or "text/event-stream" in request.headers.get("accept", ""):
            return _whole_run(program)
        return _json(OpenedId(program.id), 201)

    @router.post(
        "/programs/{program_id}/extend",
        summary="Add nodes to a program",
        response_class=Response,
        openapi_extra=json_body(MoreNodes, MORE_EXAMPLES),
    )
    async def extend_program(request: Request, program_id: str) -> Response:
        """Add nodes. Each names the node whose text it continues; what can run begins at once."""
        asked = _decoded(_more_nodes, await sent_json(request))
        with _Refusing():
            store.program(program_id).extend(asked.nodes)
        return _json({})

    @router.get(
        "/programs/{program_id}/events",
        summary="Listen to a program",
        response_class=Response,
        responses=event_responses(),
    )
    async def program_events(request: Request, program_id: str, until_done: bool = False) -> Response:
        """The program's events, as server-sent events with ids.

        After a lost connection, `Last-Event-ID` goes on after that event, as long as what followed is kept. One
        listener at a time: a new one sends the one before away. The stream ends with the program, or, with
        `?until_done=1`, as soon as every node has its result.
        """
        with _Refusing():
            program = store.program(program_id)
        program.use()
        return _listening(request, program.log, lambda: until_done and not program.busy, program.use)

    @router.post("/programs/{program_id}/abort", summary="End what runs in a program", response_class=Response)
    async def abort_program(program_id: str) -> Response:
        """End what still runs: each of its nodes ends in a `failed` event. The program stays open."""
        with _Refusing():
            store.program(program_id).abort()
        return _json({})

    @router.delete("/programs/{program_id}", summary="End a program", response_class=Response)
    async def close_program(program_id: str) -> Response:
        """End the program at once, and forget it."""
        with _Refusing():
            store.program(program_id).drop("it was deleted")
        return _json({})


def _add_channels(router: APIRouter, store: ProgramStore) -> None:
    @router.post(
        "/channels",
        summary="Open a channel",
        response_class=Response,
        openapi_extra=json_body(ProgramOptions, [{"idle_timeout_s": 20, "name": "judge"}]),
    )
    async def open_channel(request: Request) -> Response:
        """Open a channel: many programs of one client, with one stream for all their events."""
        given = await sent_json(request) if await request.body() else b"{}"
        options = _decoded(_options, given)
        _check(options)
        with _Refusing():
            return _json(OpenedId(store.open_channel(options).id), 201)

    async def channel_messages(
        request: Request, channel_id: str, number: Annotated[str, Path(pattern=_NUMBER.pattern)]
    ) -> Response:
        """Open, extend, abort and close programs, which the client numbers itself, in the order of the list.

        What is refused becomes `failed` events. The client numbers these requests from 1 on; one that comes again, as
        the client cannot know whether it has arrived, is not taken twice.
        """
        if not _NUMBER.fullmatch(number):
            raise bad_request(f"the number of a request must be a whole number from 1 on, not {number!r}")
        messages = _decoded(_messages, await sent_json(request))
        with _Refusing():
            store.channel(channel_id).take(messages, int(number))
        return Response(b"{}", media_type="application/json")

    router.add_api_route(
        "/channels/{channel_id}/messages/{number}",
        channel_messages,
        methods=["PUT"],
        summary="Run many programs over a channel",
        response_class=Response,
        openapi_extra=json_body(list[ChannelMessage], MESSAGE_EXAMPLES),
        route_class_override=_DirectRoute,
    )

    @router.get(
        "/channels/{channel_id}/events",
        summary="Listen to a channel",
        response_class=Response,
        responses=event_responses(),
    )
    async def channel_events(request: Request, channel_id: str) -> Response:
        """Events of all the channel's programs: each server-sent event holds a list of [program, event].

        `Last-Event-ID` and listeners as for `/programs/{program_id}/events`.
        """
        with _Refusing():
            channel = store.channel(channel_id)
        channel.use()
        return _listening(request, channel.log, lambda: False, channel.use)

    @router.delete("/channels/{channel_id}", summary="End a channel", response_class=Response)
    async def close_channel(channel_id: str) -> Response:
        """End all programs of the channel at once, and forget it."""
        with _Refusing():
            store.channel(channel_id).drop("it was deleted")
        return _json({})


def _whole_run(program: HeldProgram) -> Response:
    """The events of a program that lives as long as this answer."""
    events = program.log.listen(None)
    program.end_when_done("all of it is done")
    opened = b"event: open\ndata: " + msgspec.json.encode(OpenedId(program.id)) + b"\n\n"
    return EventStream(events, first=opened, on_gone=lambda: program.drop("its client went"))


def _listening(request: Request, log: EventLog, until: Callable[[], bool], use: Callable[[], None]) -> Response:
    """The events of a log after the last that this client has had. Losing the client is a use: it may come back."""
    try:
        return EventStream(log.listen(_last_event_id(request), until=until), on_gone=use)
    except EventsLostError as error:
        message = f"{error}; close the program and run it again"
        raise ApiError(410, message, param="Last-Event-ID", code="events_lost") from error


def _last_event_id(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", given):
        message = f"Last-Event-ID must be the id of an event of this stream, a whole number, not {given!r}"
        raise bad_request(message, param="Last-Event-ID")
    return int(given)


class _Refusing:
    """Errors of the block as answers of HTTP."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnknownIdError):
            raise ApiError(404, str(error), code="unknown_program") from error
        if isinstance(error, EngineError):
            raise ApiError(503, str(error), code="engine_error") from error
        if isinstance(error, RequestError):
            raise bad_request(
                str(error), param="idle_timeout_s" if "idle_timeout_s" in str(error) else "nodes"
            ) from error
        if isinstance(error, PalmetteError):
            raise refused(error, grammar_param="nodes") from error


def _check(options: ProgramOptions) -> None:
    """Raise ApiError where an option is out of its range."""
    if not -(1 << 31) <= options.priority < 1 << 31:
        raise bad_request(f"priority must be a whole number of 32 bits, not {options.priority}", param="priority")
    if len(options.cache_salt) > MAX_SALT_LENGTH:
        message = f"cache_salt must have at most {MAX_SALT_LENGTH} characters, not {len(options.cache_salt)}"
        raise bad_request(message, param="cache_salt")
    if len(options.name) > LONGEST_NAME:
        raise bad_request(f"name must have at most {LONGEST_NAME} characters, not {len(options.name)}", param="name")
    if options.timeout_s is not None and not 0 < options.timeout_s <= MAX_TIMEOUT_S:
        message = f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g} s, not {options.timeout_s!r}"
        raise bad_request(message, param="timeout_s")


def _decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The body of a request.

    Raises:
        ApiError: it is not what it must be; the message names the node and the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        path = place.removesuffix("`").removeprefix("$").removeprefix(".")
        where = _node_named(path, body) if path else "the body"
        raise bad_request(f"{where}: {message[:1].lower()}{message[1:]}", param=path or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error


def _node_named(path: str, body: bytes) -> str:
    """A place in the body, with the id of the node that it is in."""
    found = re.match(r"(?:\[(\d+)\]\.)?nodes\[(\d+)\]", path)
    if found is None:
        return path
    try:
        value = msgspec.json.decode(body)
        nodes = (value if found[1] is None else value[int(found[1])])["nodes"]
        return f"{path} (node {nodes[int(found[2])]['id']!r})"
    except (msgspec.DecodeError, LookupError, TypeError):
        return path


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
