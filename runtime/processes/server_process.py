"""The server's process: ``python -m palmette.runtime.processes.server_process``, started by supervisor.py.

Request trees of all programs and their tokenizer, HTTP for clients, and a socket for the programs of the parent. It
loads no tensors.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial

import msgspec
import zmq

from palmette.constrained.collector import UNCOLLECTED
from palmette.runtime.messages import Answer, StepOutput, ToScheduler
from palmette.runtime.program import ModelInfo
from palmette.runtime.server.app import create_app
from palmette.runtime.server.chat_prompt import template_renderer
from palmette.runtime.server.program_store import ProgramStore
from palmette.runtime.server.serving import HttpServer, listen
from palmette.runtime.status_line import report_status
from palmette.runtime.tokenizer import Tokenizer

from .child import Child, run_child
from .engine_client import EngineClient
from .heap import settle_heap
from .parent_programs import ParentPrograms
from .private_folder import remove_private_folder, socket_path
from .process_messages import FromServer, ModelLoaded, Ready, Stop, ToServer
from .sockets import Receiver, Sender

logger = logging.getLogger("palmette.server")


class ServerProcess:
    """Everything that runs on the server's loop."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._settings = child.settings
        self._loop = asyncio.get_running_loop()
        folder = self._settings.folder
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        decoder: msgspec.msgpack.Decoder[list[ToServer]] = msgspec.msgpack.Decoder(list[ToServer])
        self._context = context
        self._receiver = Receiver(context, socket_path(folder, "server"), decoder)
        self._scheduler: Sender[ToScheduler] = Sender(context, socket_path(folder, "scheduler"))
        self._parent: Sender[FromServer] = Sender(context, socket_path(folder, "parent"))
        self._model: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._joined = asyncio.Event()
        self._client: EngineClient | None = None
        self._programs: ParentPrograms | None = None
        self._stopping = asyncio.Event()
        self._failure: Exception | None = None
        self._stop = Stop(reason="the server ended by itself")

    async def run(self) -> None:
        """Serve until the parent or SIGTERM asks for the end."""
        server = self._settings.server
        listener = listen(server.host, server.port)
        self._loop.add_signal_handler(signal.SIGTERM, self._terminated)
        self._child.on_stop(self._hand_over_stop)
        self._loop.add_reader(self._receiver.fileno(), self._receive)
        self._receive()  # what came before is not told of
        tokenizer = await asyncio.to_thread(_prepared_tokenizer, self._settings.engine.model or "")
        info = await self._model
        self._client = client = EngineClient(self._scheduler, tokenizer, info, seed=self._settings.engine.seed)
        self._programs = ParentPrograms(client, self._parent)
        await self._joined.wait()
        app = create_app(client, server)
        http = HttpServer(app, server)
        serving = await http.begin(listener)
        settle_heap()
        self._child.report(Ready(info, listener.getsockname()[1]))
        status = asyncio.create_task(report_status(client.stats, server.status_interval_s))
        await self._wait_for_the_end(http, serving, app.state.programs)
        if self._failure is not None:
            raise self._failure
        status.cancel()
        self._context.destroy(linger=500)

    async def _wait_for_the_end(self, http: HttpServer, serving: asyncio.Task[None], programs: ProgramStore) -> None:
        assert self._client is not None
        if self._failure is None:
            await self._until_stopped(serving, None)
        stop = self._stop
        http.drain(stop.drain_s)
        programs.drain()  # streams of programs and channels that are idle would else last until the time is over
        if stop.reason is None:  # a second request for the end comes from somebody who does not want to wait
            await self._until_stopped(asyncio.create_task(self._until_idle(serving)), stop.drain_s)
        reason = self._stop.reason or "the server is shutting down"
        self._client.fail(reason)
        programs.close(reason)  # after the failures, which its streams are to tell
        await serving

    async def _until_idle(self, serving: asyncio.Task[None]) -> None:
        """Wait for what clients and the parent's programs have open."""
        assert self._programs is not None
        await asyncio.shield(serving)
        await self._programs.wait_until_idle()

    async def _until_stopped(self, task: asyncio.Task[None], timeout_s: float | None) -> None:
        """Wait until somebody asks for the end, `task` is done, or the time is over."""
        self._stopping.clear()
        asked = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([asked, task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    # -- what comes in ----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            self._take_messages()
        except Exception as error:  # what was lost would leave somebody waiting
            logger.exception("the server failed")
            self._failure = error
            self._take_stop(Stop(reason=f"the server failed: {type(error).__name__}: {error}"))

    def _take_messages(self) -> None:
        for message in self._receiver.take():
            if isinstance(message, ModelLoaded):
                self._model.set_result(message.model_info)
            elif self._client is None or self._programs is None:
                self._joined.set()  # an empty step, which the scheduler sends through the detokenizer
            elif isinstance(message, StepOutput | Answer):
                self._joined.set()
                self._client.take(message)
            else:
                self._programs.take(message)

    def _hand_over_stop(self, stop: Stop) -> None:
        self._loop.call_soon_threadsafe(self._take_stop, stop)

    def _take_stop(self, stop: Stop) -> None:
        self._stop = stop
        self._stopping.set()

    def _terminated(self) -> None:
        if self._child.is_orphan:
            self._child.orphaned()
            os._exit(1)
        self._take_stop(Stop(self._settings.server.drain_timeout_s))


def _prepared_tokenizer(model: str) -> Tokenizer:
    """The model's tokenizer; what renders its chat template is imported too, while the scheduler loads the model."""
    with UNCOLLECTED:
        tokenizer = Tokenizer.load(model)
        if tokenizer.chat_template is not None:
            template_renderer()
    return tokenizer


def main(child: Child) -> None:
    """Serve, on uvloop where it is installed."""
    child.orphaned = partial(remove_private_folder, child.settings.folder)  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(child))


async def _run(child: Child) -> None:
    await ServerProcess(child).run()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


if __name__ == "__main__":
    run_child("server", main)
