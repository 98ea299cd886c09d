"""The results of a batch in a file: a JSON object a line, written as items end, that a later batch goes on with."""

from __future__ import annotations

import json
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .batch_lines import HeldLines, check_cut_off, checked_result, digest_of, shown_arguments
from .errors import ResultsFileError
from .outcome import json_text


class ResultsFile:
    """Appends a line for every item that has ended, each in one piece. For any thread.

    One that is opened with `resume` knows what the file held before: items without an error are done, and their lines
    can be read again. A last line that was cut off by a kill is taken away before the first line is written. In memory
    are, for each line, where it begins, and for each that was there a digest of its item's arguments.

    While it is open, no other batch can open it.

    Attributes:
        path: where it is.

    Raises:
        ResultsFileError: the file has something in it and `resume` is False; it is no file of results; another batch
            has it open; or it cannot be read and written.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self._existed = path.exists()
        self._lock = threading.Lock()
        self._stream = _opened(path)
        try:
            _take_alone(self._stream, path)
            self._held = HeldLines() if self._size() == 0 else self._read(resume)
        except BaseException:
            self._stream.close()
            raise
        self._written = False

    def __del__(self) -> None:
        with suppress(Exception):  # it was not opened, or the interpreter is going
            self.close()

    def count_done(self, total: int | None) -> int:
        """How many items it held without an error when it was opened: of the first `total`, or of all."""
        return sum(total is None or place < total for place in self._held.digests)

    def holds(self, place: int, arguments: Any) -> bool:
        """Whether the file held a result of this item without an error when it was opened.

        Raises:
            ResultsFileError: it held one of other arguments.
        """
        known = self._held.digests.get(place)
        if known is None:
            return False
        if known != digest_of(json_text(arguments)):
            result, line = self._line_of(place)
            then, now = shown_arguments(result["args"]), shown_arguments(arguments)
            raise ResultsFileError(
                f"{self.path} line {line} is of item {place} with the arguments {then}, but item {place} now has {now};"
                " give the items that it was begun with, or write to another file"
            )
        return True

    def result_of(self, place: int) -> dict[str, Any]:
        """The object of an item's line, which the file `holds`."""
        with self._lock:
            return _object_at(self._stream, self._held.starts[place])

    def write(self, place: int, line: str) -> None:
        """Append the line of an item. Nothing happens once it is closed. Half of a surrogate pair is escaped.

        Raises:
            ResultsFileError: the line cannot be written; the file is as it was before.
        """
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._stream.closed:
                return
            start = self._held.end
            try:
                self._drop_cut_off()
                _append(self._stream, start, data)
            except OSError as error:
                raise ResultsFileError(f"{self.path} cannot be written: {error.strerror}") from error
            self._held.append(place, len(data))
            self._written = True

    def finish(self) -> None:
        """The batch has ended well: put the lines in the items' order, without those of runs that were run again.

        Where that cannot be written there is a warning: all results are there.
        """
        with self._lock:
            self._existed = True  # it stays, if it is empty
            if self._stream.closed:
                return
            try:
                self._drop_cut_off()
                if not self._held.in_order:
                    self._sort()
            except OSError as error:
                what = f"{self.path} holds all results, but cannot be put in order: {error.strerror}"
                warnings.warn(what, RuntimeWarning, stacklevel=2)

    def _drop_cut_off(self) -> None:
        """Take away what a kill left of a line."""
        if not self._written and self._size() > self._held.end:
            self._stream.truncate(self._held.end)

    def _sort(self) -> None:
        target = self.path.resolve()
        fresh = target.with_name(f".{target.name}.sorted")
        try:
            with fresh.open("wb") as new:
                for place in sorted(self._held.starts):
                    new.write(_bytes_at(self._stream, self._held.starts[place]))
            shutil.copymode(target, fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
        self._stream.close()

    def close(self) -> None:
        """Write no more. A file that was made for this batch and holds nothing is taken away."""
        with self._lock:
            if self._stream.closed:
                return
            if not self._existed and not self._written and self._size() == 0:
                self.path.unlink(missing_ok=True)
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish where all went well. An interrupt is told how to go on."""
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt):
            how = f"run_batch(..., results_file={str(self.path)!r}, resume=True)"
            error.add_note(f"results so far: {self.kept}, in {self.path}; {how} goes on with them")
        self.close()

    @property
    def kept(self) -> int:
        """Items that the file has a line of."""
        return len(self._held.starts)

    def _size(self) -> int:
        return os.fstat(self._stream.fileno()).st_size

    def _read(self, resume: bool) -> HeldLines:
        if not resume:
            raise ResultsFileError(f"{self.path} is not empty; resume=True goes on with it, or write to another file")
        held = HeldLines()
        for number, line in enumerate(_lines(self._stream), start=1):
            if not line.endswith(b"\n"):
                check_cut_off(line, f"{self.path} line {number}")
                break
            held.add(checked_result(line, f"{self.path} line {number}"), len(line))
        return held

    def _line_of(self, place: int) -> tuple[dict[str, Any], int]:
        """The object of an item's line, and the number of that line."""
        start = self._held.starts[place]
        with self._lock:
            self._stream.seek(0)
            before = sum(chunk.count(b"\n") for chunk in _chunks(self._stream, start))
            return _object_at(self._stream, start), before + 1


def _opened(path: Path) -> FileIO:
    if path.exists() and not path.is_file():
        raise ResultsFileError(f"{path} is no ordinary file, which results can be read from again")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise ResultsFileError(f"{path} cannot be written: {error.strerror}") from error
    return FileIO(descriptor, "r+")


def _take_alone(stream: FileIO, path: Path) -> None:
    """Keep other batches from the file until it is closed, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ResultsFileError(f"another batch is writing {path}; wait for its end, or write to another file") from None
    except OSError:  # a file system without locks
        return


def _lines(stream: FileIO) -> Iterator[bytes]:
    """The lines of a file with their ends; the last may have none. Leaves `stream` open."""
    with open(os.dup(stream.fileno()), "rb") as reading:
        reading.seek(0)
        yield from reading


def _chunks(stream: FileIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := stream.read(min(size, 1 << 20))):
        size -= len(chunk)
        yield chunk


def _bytes_at(stream: FileIO, start: int) -> bytes:
    """The line that begins at an offset, with its end."""
    stream.seek(start)
    data = b""
    while b"\n" not in data and (more := stream.read(max(4096, len(data)))):
        data += more
    return data[: data.index(b"\n") + 1]


def _object_at(stream: FileIO, start: int) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(_bytes_at(stream, start))
    return result


def _append(stream: FileIO, start: int, data: bytes) -> None:
    """Write at an offset, the file's end. If it goes wrong, the file ends there again."""
    stream.seek(start)
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[stream.write(rest) :]
    except OSError:
        with suppress(OSError):
            stream.truncate(start)
        raise
