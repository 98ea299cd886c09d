"""A folder for the sockets of one engine that no other user can enter."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from palmette.runtime.errors import EngineError

from .sockets import LONGEST_PATH

_LONGEST_NAME = len("/palmette-12345678/detokenizer")


def make_private_folder() -> Path:
    """A new folder of mode 0700: in $XDG_RUNTIME_DIR where that is this user's, else where temporary files go.

    Raises:
        EngineError: none can be made there.
    """
    tried: list[str] = []
    for place in _places():
        if len(os.fsencode(place)) + _LONGEST_NAME > LONGEST_PATH:
            tried.append(f"{place}: too long for the path of a socket")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="palmette-", dir=place))
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
    raise EngineError(
        f"no folder for sockets can be made ({'; '.join(tried)}); set TMPDIR to a folder that this user can write to"
    )


def remove_private_folder(folder: Path) -> None:
    """Remove it with the sockets in it. Nothing happens where it is gone."""
    shutil.rmtree(folder, ignore_errors=True)


def _places() -> list[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [runtime] if runtime and _is_own(runtime) else []
    return [*places, tempfile.gettempdir(), "/tmp"]


def _is_own(place: str) -> bool:
    """Whether a folder is this user's and no other user can write to it."""
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return False
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not shared


def socket_path(folder: Path | str, name: str) -> Path:
    """The path of the socket at which the process `name` receives."""
    return Path(folder) / name
