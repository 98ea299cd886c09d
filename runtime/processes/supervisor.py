"""Starts the processes of an engine, watches them, keeps the last lines of their logs, and ends them."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import palmette

from .process_messages import ChildSettings, FromChild, Stop

logger = logging.getLogger("palmette.engine")

LOG_LINES = 20
"""How many last lines of its log are told of a process that died."""

_LOOK_EVERY_S = 0.5
_LONGEST_LINE = 1 << 16
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to start: what it is called, its module, and what it reads first."""

    name: str
    module: str
    settings: ChildSettings


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """The end of a process: its exit code, negative for a signal, and the last lines of its log."""

    name: str
    code: int
    last_lines: tuple[str, ...]

    def __str__(self) -> str:
        how = f"with code {self.code}"
        if self.code < 0:
            with suppress(ValueError):
                how = f"by {signal.Signals(-self.code).name}"
        said = "".join(f"\n    {line}" for line in self.last_lines)
        return f"the {self.name} process ended {how}" + (f"; its last lines of log:{said}" if said else "")


@dataclass(eq=False, slots=True)
class _Process:
    """A started process, and what has come of its reports and its log but is not a whole line yet."""

    spec: ChildSpec
    popen: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    report: bytes = b""
    log: bytes = b""


class Supervisor:
    """The processes of one engine.

    A thread of its own starts them, since on Linux they end with the thread that did, and lives as long as they do. The
    callbacks are called from that thread and must be quick.

    Args:
        on_report: a process said something.
        on_end: a process has ended; called once for each, also for those that were asked to.
        on_log: a line that a process wrote.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        on_report: Callable[[str, FromChild], None],
        on_end: Callable[[ChildEnd], None],
        on_log: Callable[[str], None],
    ) -> None:
        self._specs = tuple(specs)
        self._on_report = on_report
        self._on_end = on_end
        self._on_log = on_log
        self._processes: dict[str, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe()
        self._commands: deque[Callable[[], None]] = deque()
        self._deadlines: list[tuple[float, Callable[[], None]]] = []
        self._ask_others_after: tuple[str, bytes] | None = None
        self._done = threading.Event()
        self._gate = threading.Lock()  # held to command, and to stop taking commands
        self._thread = threading.Thread(target=self._run, name="palmette-processes", daemon=True)

    def start(self) -> None:
        """Start the processes, all at once."""
        self._thread.start()

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids of those that were started, by name."""
        return {name: process.popen.pid for name, process in list(self._processes.items())}

    def end(self, stop: Stop, first: str) -> None:
        """Ask the process named `first` to end, then the others; kill what does not within 3 s and the drain time."""
        self._command(lambda: self._ask_to_end(stop, first))

    def kill(self) -> None:
        """End all at once."""
        self._command(self._kill)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every process has ended; False where the time was over before."""
        return threading.current_thread() is self._thread or self._done.wait(timeout_s)

    def _command(self, command: Callable[[], None]) -> None:
        with self._gate:
            if not self._done.is_set():
                self._commands.append(command)
                os.write(self._wake_out, b"\0")

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        try:
            for spec in self._specs:
                self._start(spec)
            while self._processes:
                self._turn()
        except BaseException as error:  # a thread that ends without telling would leave everybody waiting
            logger.exception("the engine's processes cannot be watched any more")
            self._give_up(error)
        finally:
            with self._gate:
                self._done.set()
                self._selector.close()
                os.close(self._wake_in)
                os.close(self._wake_out)

    def _give_up(self, error: BaseException) -> None:
        """Kill what runs, and say so."""
        for name, process in self._processes.items():
            process.popen.kill()
            code = process.popen.wait()
            self._on_end(ChildEnd(name, code, (*process.lines, f"(not watched any more: {error})")))

    def _start(self, spec: ChildSpec) -> None:
        try:
            popen = _popen(spec)
        except OSError as error:
            self._on_end(ChildEnd(spec.name, 127, (f"{sys.executable} cannot be started: {error}",)))
            return
        self._processes[spec.name] = process = _Process(spec, popen)
        for stream in (popen.stdout, popen.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, process)
        _write(popen, msgspec.json.encode(spec.settings))

    def _turn(self) -> None:
        """Wait for something to happen, and take it in."""
        until = min([time.monotonic() + _LOOK_EVERY_S, *(when for when, _ in self._deadlines)])
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            if key.fd == self._wake_in:
                os.read(self._wake_in, 4096)
            elif isinstance(key.data, _Process):
                self._read(key.data, key.fd)
        while self._commands:
            self._commands.popleft()()
        for process in list(self._processes.values()):
            if process.popen.poll() is not None:
                self._take_end(process)
        now = time.monotonic()
        due = [action for when, action in self._deadlines if when <= now]
        self._deadlines = [each for each in self._deadlines if each[0] > now]
        for action in due:
            action()

    def _read(self, process: _Process, fd: int) -> bool:
        """Take in what a process has written; False where there is no more now."""
        try:
            data = os.read(fd, _LONGEST_LINE)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(fd)
            with suppress(subprocess.TimeoutExpired):  # a process without reports has ended, or is about to
                process.popen.wait(0.2)
            return False
        if process.popen.stdout is not None and fd == process.popen.stdout.fileno():
            *lines, process.report = (process.report + data).split(b"\n")
            for line in lines:
                self._on_report(process.spec.name, msgspec.json.decode(line, type=FromChild))
        else:
            *lines, process.log = (process.log + data).split(b"\n")
            if len(process.log) > _LONGEST_LINE:
                lines.append(process.log)
                process.log = b""
            for line in lines:
                self._log(process, line)
        return True

    def _log(self, process: _Process, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        process.lines.append(text)
        self._on_log(text)

    def _take_end(self, process: _Process) -> None:
        """A process has ended: what it had still to say, and that it did."""
        for stream in (process.popen.stdout, process.popen.stderr):
            assert stream is not None
            while stream.fileno() in self._selector.get_map() and self._read(process, stream.fileno()):
                pass
        if process.log:
            self._log(process, process.log)
        for stream in (process.popen.stdout, process.popen.stderr, process.popen.stdin):
            assert stream is not None
            with suppress(KeyError, ValueError):
                self._selector.unregister(stream)
            with suppress(OSError):
                stream.close()
        del self._processes[process.spec.name]
        if self._ask_others_after is not None and self._ask_others_after[0] == process.spec.name:
            self._ask_all(self._ask_others_after[1])
        self._on_end(ChildEnd(process.spec.name, process.popen.returncode, tuple(process.lines)))

    # -- the end ----------------------------------------------------------------------------------------------------

    def _ask_to_end(self, stop: Stop, first: str) -> None:
        line = msgspec.json.encode(stop)
        if first in self._processes:
            _write(self._processes[first].popen, line)
            self._deadlines.append((time.monotonic() + stop.drain_s + _GRACE_S, lambda: self._kill(first)))
            self._ask_others_after = (first, line)
        else:
            self._ask_all(line)

    def _ask_all(self, line: bytes) -> None:
        for process in self._processes.values():
            _write(process.popen, line)
        self._deadlines.append((time.monotonic() + _GRACE_S, self._kill))

    def _kill(self, *names: str) -> None:
        """Kill the processes of these names; without any, all."""
        for name, process in self._processes.items():
            if not names or name in names:
                process.popen.kill()


def _popen(spec: ChildSpec) -> subprocess.Popen[bytes]:
    package = str(Path(palmette.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One computes, beside all others: its threads must not spin while they wait for each other.
    threads = {"OMP_WAIT_POLICY": "PASSIVE"} if spec.name == "scheduler" else {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        (sys.executable, "-P", "-m", spec.module),  # -P: a file of the current folder must not stand for a module
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**threads, **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # an interrupt of the user is the parent's to answer
    )


def _write(popen: subprocess.Popen[bytes], line: bytes) -> None:
    """Write a line to a process, unless it has ended."""
    assert popen.stdin is not None
    with suppress(OSError):
        popen.stdin.write(line + b"\n")
