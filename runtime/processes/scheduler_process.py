"""The scheduler's process: ``python -m palmette.runtime.processes.scheduler_process``, started by supervisor.py.

It owns one GPU: the model, its KV pool, the radix tree and the queues. With several GPUs there is one such process for
each rank: rank 0 receives requests and decides, and broadcasts what it took in, so that every rank plans the same
steps; only rank 0 sends results.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import zmq

from palmette.runtime.config import EngineConfig
from palmette.runtime.intake import Intake
from palmette.runtime.messages import Answer, FromScheduler, StepOutput, ToScheduler
from palmette.runtime.program import ModelInfo
from palmette.runtime.scheduler_loop import SchedulerLoop

from .child import Child, run_child
from .heap import settle_heap
from .private_folder import socket_path
from .process_messages import ModelLoaded, Ready
from .sockets import Receiver, Sender

if TYPE_CHECKING:
    from palmette.runtime.scheduler import Scheduler
    from palmette.runtime.tokenizer import Tokenizer


class Loaded(Protocol):
    """What a loader gives."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def overlap(self) -> bool: ...


class Loader(Protocol):
    """Builds a scheduler."""

    def __call__(self, config: EngineConfig, /, **options: float) -> Loaded: ...


class SocketInbox:
    """What the scheduler is asked for, from its socket."""

    def __init__(self, receiver: Receiver[ToScheduler]) -> None:
        self._receiver = receiver

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        """What has come; where nothing has, what comes until it is woken or `wait_s` seconds are over."""
        messages = self._receiver.take()
        if messages or wait_s == 0:
            return messages
        self._receiver.wait(wait_s)
        return self._receiver.take()

    def wake(self) -> None:
        """Have a `take` that waits return. For any thread."""
        self._receiver.wake()


def main(child: Child) -> None:
    """Load the model, then run the scheduler until the parent asks for the end."""
    settings = child.settings
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    decoder: msgspec.msgpack.Decoder[list[ToScheduler]] = msgspec.msgpack.Decoder(list[ToScheduler])
    receiver = Receiver(context, socket_path(settings.folder, "scheduler"), decoder)
    server: Sender[ModelLoaded | Answer] = Sender(context, socket_path(settings.folder, "server"))
    detokenizer: Sender[StepOutput] = Sender(context, socket_path(settings.folder, "detokenizer"))
    child.report_progress("loads the program")
    load = _loader(settings.loader)
    child.report_progress("loads the model")
    loaded = load(settings.engine, **settings.loader_options)
    info = msgspec.structs.replace(loaded.model_info, name=settings.model_name or loaded.model_info.name)
    inbox = SocketInbox(receiver)

    def send(message: FromScheduler) -> None:
        if isinstance(message, StepOutput):
            detokenizer.send(message)
        else:
            server.send(message)

    tokenizer = loaded.tokenizer
    intake = Intake(tokenizer.token_bytes, tokenizer.end_ids, inbox.wake, page_size=loaded.scheduler.page_size)
    loop = SchedulerLoop(loaded.scheduler, intake, inbox, send, overlap=loaded.overlap)
    child.on_stop(lambda _: loop.stop())
    server.send(ModelLoaded(info))
    detokenizer.send(StepOutput(()))  # the server waits for it: then all three are joined
    settle_heap()
    child.report(Ready())
    loop.run()
    loaded.scheduler.close()
    context.destroy(linger=200)


def _loader(name: str) -> Loader:
    """The function that builds a scheduler, of the name module:function."""
    module, _, function = name.partition(":")
    found: Loader = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    run_child("scheduler", main)
