"""The sockets between the processes of one engine: ZMQ PUSH and PULL over ipc, msgpack by msgspec, never a pickle.

A frame is a msgpack array of messages, so whatever is pending goes out as one. Queues have no limit of their own: a
limit would drop or block what may be neither, and what can be in flight is bounded by the requests that are open.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq

Message = TypeVar("Message", bound=msgspec.Struct)

LONGEST_PATH = 100
"""Most bytes of a socket's path: systems take 104 or 108, and ZMQ must end it."""

_LINGER_MS = 500
_WAKE = b"\0"

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """One message, to be joined with others by `join`.

    Raises:
        UnicodeEncodeError: it holds text that is not Unicode, a lone surrogate.
        OverflowError, TypeError: it holds a value that msgpack has not.
    """
    return _encoder.encode(message)


def join(messages: Sequence[bytes]) -> bytes:
    """The frame of messages that are encoded already."""
    return b"\xdd" + len(messages).to_bytes(4, "big") + b"".join(messages)


class Sender(Generic[Message]):
    """The sending end: connects to the one receiver of a path, which may come to be later. For one thread at a time."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(f"ipc://{path}")

    def send(self, *messages: Message) -> None:
        """Send messages as one frame. Never blocks.

        Raises:
            UnicodeEncodeError, OverflowError, TypeError: see `encode`.
        """
        self._socket.send(_encoder.encode(messages))

    def send_encoded(self, messages: Sequence[bytes]) -> None:
        """Send as one frame what `encode` gave."""
        self._socket.send(join(messages))

    def close(self) -> None:
        """Give what was sent half a second to leave."""
        self._socket.close()


class Receiver(Generic[Message]):
    """The receiving end, bound to its path: `take` and `wait` are for one thread, `wake` for any."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], path: Path, decoder: msgspec.msgpack.Decoder[list[Message]]
    ) -> None:
        """Bind to `path`.

        Args:
            decoder: of frames: `msgspec.msgpack.Decoder(list[...])` of the messages that may come.
        """
        self._decoder = decoder
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"ipc://{path}")
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_in, zmq.POLLIN)
        self._closing = threading.Lock()  # held by `wake`, so that it never writes to a pipe that is closed
        self._closed = False

    def take(self) -> list[Message]:
        """Everything that has come, without waiting.

        Raises:
            msgspec.DecodeError: a frame that none of our processes has sent.
        """
        messages: list[Message] = []
        with suppress(zmq.Again):
            while True:
                messages.extend(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        return messages

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when something has come, when `wake` was called since the last wait, or when the time is over."""
        for file, _ in self._poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)):
            if file == self._wake_in:
                with suppress(BlockingIOError):
                    while os.read(self._wake_in, 4096):
                        pass

    def wake(self) -> None:
        """Have the thread that waits, or the next that will, return."""
        with self._closing:
            if not self._closed:
                with suppress(BlockingIOError):  # as many wakes as the pipe holds are enough
                    os.write(self._wake_out, _WAKE)

    def fileno(self) -> int:
        """A file that becomes readable when frames come, once for any number: take all of them then."""
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        """Receive no more."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._socket.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
