"""The folder of an engine's sockets, tried by another user in earnest."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from palmette.runtime.processes.private_folder import make_private_folder, remove_private_folder

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a socket at which something receives."""
    folder = make_private_folder()
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.bind(f"ipc://{folder}/socket")
        yield folder
    remove_private_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("attempt", ["cd F", "ls F", "test -e F/socket", "touch F/x", "rm -f F/socket", "mv F F-away"])
def test_another_user_comes_to_nothing(folder: Path, attempt: str) -> None:
    """Neither enters it, nor sees or removes what is in it, nor takes it away."""
    command = attempt.replace("F", shlex.quote(str(folder)))
    tried = subprocess.run(
        ["/bin/sh", "-c", command],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=False,
    )
    assert tried.returncode != 0
    assert [each.name for each in folder.iterdir()] == ["socket"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_cannot_connect(folder: Path) -> None:
    """Not even where the socket itself would let everybody write."""
    os.chmod(folder / "socket", 0o777)
    with socket.socket(socket.AF_UNIX) as client:
        os.seteuid(NOBODY)
        try:
            code = client.connect_ex(str(folder / "socket"))
        finally:
            os.seteuid(0)
    assert code == errno.EACCES
