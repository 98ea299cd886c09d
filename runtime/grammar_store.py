"""Programs of grammars on disk, for the next engine that is asked for them."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import palmette.constrained
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits

from .stored_programs import FORMAT, text_bytes

logger = logging.getLogger("palmette.grammars")

MOST_BYTES = 256 << 20

_MAGIC = b"palmette program\n"
_DIGEST_BYTES = 32
_SUFFIX = ".program"
_PARTIAL = ".partial-"
_STALE_S = 3600.0


class GrammarStore:
    """A folder of files of packed programs, one a grammar, bounded in bytes: those read longest ago go first.

    Several threads and processes may share it: a file appears whole or not at all. One that is damaged, or that another
    version of Palmette wrote, is as good as none. Where the folder cannot be used, nothing is stored; that is logged
    once, and no request fails by it.

    Args:
        folder: made where it is missing, for this user alone.
        alphabet: of the vocabulary that the programs are for.
        limits: those they were made within.
        most_bytes: of all files together.
    """

    def __init__(self, folder: Path, *, alphabet: int, limits: CompileLimits, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._made_with = f"{FORMAT} {code_digest()} {alphabet:x} {limits!r}"
        self._most_bytes = most_bytes
        self._warned = False

    def get(self, grammar: Grammar) -> bytes | None:
        """The packed program of `grammar`, if they are there and whole."""
        key = self._key(grammar)
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)  # read just now: the last to go
        except OSError:
            return None
        data = content[len(_MAGIC) + _DIGEST_BYTES :]
        return data if content == _MAGIC + _digest(key, data) + data else None

    def put(self, grammar: Grammar, data: bytes) -> None:
        """Keep the packed program of `grammar`; what is larger than the whole folder may be is not kept."""
        if len(data) > self._most_bytes:
            return
        key = self._key(grammar)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._path(key), _MAGIC + _digest(key, data) + data)
            self._make_room()
        except OSError as error:
            if not self._warned:
                logger.warning("compiled grammars are not stored in %s: %s", self._folder, error)
            self._warned = True

    def _key(self, grammar: Grammar) -> bytes:
        text = "\0".join((self._made_with, *dataclasses.astuple(grammar)))
        return hashlib.blake2b(text_bytes(text), digest_size=_DIGEST_BYTES).digest()

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}{_SUFFIX}"

    def _write(self, path: Path, content: bytes) -> None:
        descriptor, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise

    def _make_room(self) -> None:
        """Remove what was used longest ago until the rest fits, and what a process that died has left half written."""
        now = time.time()
        files: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            with suppress(OSError):  # another process may have removed it
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_PARTIAL) and now - status.st_mtime > _STALE_S:
                    os.unlink(entry.path)
                elif entry.name.endswith(_SUFFIX):
                    files.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(size for _, size, _ in files) - self._most_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            with suppress(OSError):
                os.unlink(path)
            excess -= size


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=_DIGEST_BYTES).digest()


@cache
def code_digest() -> str:
    """A digest of the code that makes programs: what another version has made is not read."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in palmette.constrained.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
