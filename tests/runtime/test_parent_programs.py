"""The programs of a parent in its server's process, and as the parent holds them, on sockets to nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.messages import NewRequest, Question, RequestEnd, RequestOutput, SessionOptions, StepOutput
from palmette.runtime.processes.engine_client import EngineClient
from palmette.runtime.processes.parent_programs import ParentPrograms
from palmette.runtime.processes.process_messages import (
    CloseProgram,
    ExtendProgram,
    FromParent,
    OpenProgram,
    ProgramEvents,
    QuestionFailed,
)
from palmette.runtime.processes.remote_session import RemoteSession
from palmette.runtime.processes.sockets import join
from palmette.runtime.program import Event, Failed, Generate, Generated, ModelInfo, Node, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.tokenizer import Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=6)


class KeptFrames:
    """The sending end of a socket to nowhere."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, *messages: msgspec.Struct) -> None:
        self.sent += messages

    def send_encoded(self, messages: Sequence[bytes]) -> None:
        self.sent += msgspec.msgpack.decode(join(messages))


class Server:
    """What the server's process holds, without its sockets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.scheduler, self.parent = KeptFrames(), KeptFrames()
        info = ModelInfo(name="m", context_length=512, vocab_size=360)
        self.client = EngineClient(cast("Any", self.scheduler), tokenizer, info, seed=1)
        self.programs = ParentPrograms(self.client, cast("Any", self.parent))

    async def take(self, *messages: FromParent) -> None:
        for message in messages:
            self.programs.take(message)
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def finish(self, request_id: str) -> None:
        end = RequestEnd(finish_reason="length", text="x", output_tokens=1)
        self.client.take(StepOutput((RequestOutput(request_id, text="x", end=end),)))
        await self.turn()

    @property
    def asked(self) -> list[str]:
        return [message["id"] for message in self.scheduler.sent if message["type"] == "new"]

    @property
    def events(self) -> list[tuple[int, Event]]:
        news = [message for message in self.parent.sent if isinstance(message, dict) and message["type"] == "events"]
        told = [msgspec.convert(message, ProgramEvents) for message in news]
        return [(each.program, event) for each in told for event in each.events]


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model_folder)


def with_server(tokenizer: Tokenizer, work: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        await work(Server(tokenizer))

    asyncio.run(run())


def test_a_program_that_was_closed_may_still_be_extended(tokenizer: Tokenizer) -> None:
    """Two threads of the parent may close and extend one program in either order: nothing runs, and nothing is kept."""

    async def work(server: Server) -> None:
        await server.take(OpenProgram(3), ExtendProgram(3, (Generate(0, None, PARAMS),)))
        await server.take(CloseProgram(3), ExtendProgram(3, (Generate(1, None, PARAMS),)))
        assert server.asked == ["p0/0.0"]
        assert (server.programs._unfinished, server.programs._sessions) == ({}, {})
        await asyncio.wait_for(server.programs.wait_until_idle(), 60)
        assert server.client.open_sessions == 0

    with_server(tokenizer, work)


def test_the_end_of_the_engine_reaches_programs_and_questions(tokenizer: Tokenizer) -> None:
    """Everything that is open fails once, what comes after it is dropped, and what is asked for later is refused."""

    async def work(server: Server) -> None:
        nodes: tuple[Node, ...] = (Text(0, None, "x"), Generate(1, 0, PARAMS), Generate(2, 1, PARAMS))
        await server.take(OpenProgram(3), ExtendProgram(3, nodes), Question(9, "stats"))
        server.client.fail("it is gone")
        server.client.fail("it is gone twice")
        await server.finish("p0/1.0")
        await server.take(OpenProgram(4), ExtendProgram(4, (Generate(0, None, PARAMS),)), Question(10, "stats"))
        failed = [(program, event.node, event.message) for program, event in server.events if isinstance(event, Failed)]
        assert failed[:2] == [(3, 1, "it is gone"), (3, 2, "it is gone")]
        assert [(program, node) for program, node, _ in failed[2:]] == [(4, 0)]
        assert len(server.events) == 3
        questions = [message.id for message in server.parent.sent if isinstance(message, QuestionFailed)]
        assert questions == [9, 10]
        await asyncio.wait_for(server.programs.wait_until_idle(), 60)

    with_server(tokenizer, work)


def test_a_program_closed_by_its_own_event_stops_the_others_from_nothing(tokenizer: Tokenizer) -> None:
    """A server's handler may close its session from within the event that ends it, with text still in the news."""

    async def work(server: Server) -> None:
        session = server.client.open(lambda event: session.close())
        session.extend([Generate(0, None, PARAMS, stream=True), Generate(1, 0, PARAMS)])
        await server.take(OpenProgram(3), ExtendProgram(3, (Generate(0, None, PARAMS),)))
        await server.finish("p0/0.0")
        await server.finish("p1/0.0")
        assert [type(event) for _, event in server.events] == [Generated]
        assert server.asked == ["p0/0.0", "p1/0.0"]

    with_server(tokenizer, work)


class Ended:
    """An engine that has ended: it takes no messages."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_ended = False

    def send(self, message: FromParent) -> None:
        self.send_encoded(msgspec.msgpack.encode(message))

    def send_encoded(self, message: bytes) -> None:
        if self.has_ended:
            raise EngineError("the engine was shut down")
        self.sent.append(message)

    def forget(self, number: int) -> None:
        """Nothing is kept."""


def test_a_session_may_be_ended_after_its_engine() -> None:
    """Aborting and closing are no errors where nothing is left to end; no event comes after the close."""
    engine, events = Ended(), list[Event]()
    session = RemoteSession(1, events.append, engine)
    session.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS)])
    engine.has_ended = True
    session.fail("it is gone")
    session.fail("it is gone")
    assert [(event.node, type(event)) for event in events] == [(0, Failed), (1, Failed)]
    with pytest.raises(EngineError, match="shut down"):
        session.extend([Text(2, None, "x")])
    session.abort()
    session.close()
    session.close()
    session.abort()
    session.deliver(Generated(1, ()))
    assert len(events) == 2


@pytest.mark.parametrize(
    "options",
    [{"priority": 10**30}, {"priority": 1.5}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"timeout_s": 1e300}],
)
def test_options_that_no_queue_can_order_are_refused(options: dict[str, Any]) -> None:
    """A priority that is no number of seconds and a time that never comes would break queues that others wait in."""
    with pytest.raises(RequestError, match=next(iter(options))):
        SessionOptions(**options)


def test_a_prompt_of_a_million_tokens_is_one_message(tokenizer: Tokenizer) -> None:
    """Token ids travel as bytes: four million of them, and not a list of numbers."""
    request = NewRequest(id="r", kind="generate", prompt_ids=bytes(4_000_000), params=PARAMS)
    data = msgspec.msgpack.encode(request)
    assert len(data) < 4_000_200
    assert msgspec.msgpack.decode(data, type=NewRequest) == request
