"""The sockets of an engine's processes: nothing is lost, order is kept, and no other user gets at them."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from palmette.runtime.errors import EngineError
from palmette.runtime.processes.private_folder import make_private_folder, remove_private_folder, socket_path
from palmette.runtime.processes.sockets import LONGEST_PATH, Receiver, Sender, encode
from palmette.runtime.program import Text

Context = zmq.Context[zmq.Socket[bytes]]


class First(msgspec.Struct, frozen=True, tag="first"):
    """A message."""

    number: int


class Second(msgspec.Struct, frozen=True, tag="second"):
    """Another."""

    text: str


Either = First | Second


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder."""
    made = make_private_folder()
    yield made
    remove_private_folder(made)
    assert not made.exists()


@pytest.fixture
def context() -> Iterator[Context]:
    """A ZMQ context."""
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def receiver_of(context: Context, path: Path) -> Receiver[Either]:
    """A receiver of the messages above."""
    decoder: msgspec.msgpack.Decoder[list[Either]] = msgspec.msgpack.Decoder(list[Either])
    return Receiver(context, path, decoder)


def take(receiver: Receiver[Either], count: int) -> list[Either]:
    """The next messages, at least `count` of them."""
    found: list[Either] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        receiver.wait(1.0)
        found += receiver.take()
    return found


def test_every_message_comes_in_order(context: Context, folder: Path) -> None:
    """Tens of thousands sent before the receiver looks, by frames of one and of many."""
    receiver = receiver_of(context, folder / "a")
    sender: Sender[Either] = Sender(context, folder / "a")
    for number in range(0, 60_000, 3):
        sender.send(First(number))
        sender.send_encoded([encode(Second(str(number + 1))), encode(First(number + 2))])
    found = take(receiver, 60_000)
    assert found == [Second(str(i)) if i % 3 == 1 else First(i) for i in range(60_000)]
    assert receiver.take() == []
    receiver.close()
    sender.close()


def test_a_sender_may_come_before_its_receiver(context: Context, folder: Path) -> None:
    """What was sent is kept until somebody is there."""
    sender: Sender[Either] = Sender(context, folder / "late")
    sender.send(First(1), Second("two"))
    time.sleep(0.05)
    receiver = receiver_of(context, folder / "late")
    assert take(receiver, 2) == [First(1), Second("two")]
    receiver.close()
    sender.close()


def test_a_wait_ends_by_a_wake(context: Context, folder: Path) -> None:
    """From another thread, before the wait or during it; a wake of a closed receiver is nothing."""
    receiver = receiver_of(context, folder / "w")
    for _ in range(100_000):
        receiver.wake()
    receiver.wait()
    timer = threading.Timer(0.05, receiver.wake)
    timer.start()
    receiver.wait()
    timer.join()
    started = time.monotonic()
    receiver.wait(0.05)
    assert time.monotonic() - started >= 0.04, "the wake was not taken back"
    receiver.close()
    receiver.close()
    receiver.wake()


def test_text_that_is_no_text_is_refused_when_it_is_encoded() -> None:
    """By the sender, which knows whose it is."""
    with pytest.raises(UnicodeEncodeError):
        encode(Text(0, None, "\ud800"))


def test_no_other_user_can_reach_the_sockets(context: Context, folder: Path) -> None:
    """The folder cannot be entered, whatever the modes of what is in it."""
    receiver = receiver_of(context, folder / "a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()
    assert stat.S_ISSOCK((folder / "a").stat().st_mode)
    receiver.close()


def test_the_folder_is_where_a_socket_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long paths, and runtime folders that others can write to, are passed over."""
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = make_private_folder()
    assert len(os.fsencode(socket_path(folder, "detokenizer"))) <= LONGEST_PATH
    remove_private_folder(folder)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        own = make_private_folder()
        assert own.parent == Path(short)
        os.chmod(short, 0o777)
        other = make_private_folder()
        assert other.parent != Path(short)
        remove_private_folder(other)


def test_no_folder_is_an_error_that_names_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what to set."""

    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(EngineError, match=r"/tmp: Permission denied.*set TMPDIR"):
        make_private_folder()
