"""The detokenizer's process: ``python -m palmette.runtime.processes.detokenizer_process``, started by supervisor.py.

Text of a step is made here while the scheduler plans the next one. It loads the tokenizer's vocabulary and no tensors.
"""

from __future__ import annotations

import threading

import msgspec
import zmq

from palmette.runtime.messages import StepOutput

from .child import Child, run_child
from .heap import settle_heap
from .private_folder import socket_path
from .process_messages import Ready
from .sockets import Receiver, Sender


def main(child: Child) -> None:
    """Fill in the text of every step's news until the parent asks for the end."""
    folder = child.settings.folder
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    decoder: msgspec.msgpack.Decoder[list[StepOutput]] = msgspec.msgpack.Decoder(list[StepOutput])
    receiver = Receiver(context, socket_path(folder, "detokenizer"), decoder)
    server: Sender[StepOutput] = Sender(context, socket_path(folder, "server"))
    child.report_progress("loads the tokenizer")
    from palmette.runtime.detokenizer import Detokenizer
    from palmette.runtime.tokenizer import Tokenizer

    detokenizer = Detokenizer(Tokenizer.load(child.settings.engine.model or "").token_bytes)
    stopped = threading.Event()

    def stop(_: object) -> None:
        stopped.set()
        receiver.wake()

    child.on_stop(stop)
    settle_heap()
    child.report(Ready())
    while not stopped.is_set():
        receiver.wait()
        if steps := receiver.take():
            server.send(*map(detokenizer.process, steps))
    context.destroy(linger=200)


if __name__ == "__main__":
    run_child("detokenizer", main)
