"""An engine in processes of its own, as its parent holds it: a language backend with a server's address."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import EngineError
from palmette.runtime.messages import USUAL_OPTIONS, CacheTree, Question, SchedulerStats, SessionOptions
from palmette.runtime.model_path import find_model, model_name
from palmette.runtime.program import ModelInfo, Text
from palmette.runtime.server_settings import ServerSettings

from .engine_processes import Address, EngineProcesses
from .loading_line import LoadingLine
from .process_messages import DEFAULT_LOADER, ChildSettings
from .remote_session import EventSink, RemoteSession

if TYPE_CHECKING:
    from palmette.runtime.tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")

MAX_RESTARTS = 5
"""Most times that an engine is started anew within `RESTARTS_WITHIN_S`; then it stays down."""
RESTARTS_WITHIN_S = 600.0

_SHOW_EVERY_S = 0.1
_SHUT_DOWN = "the engine was shut down; launch another one"


class Runtime:
    """Runs programs in processes of its own, and serves HTTP. A language backend and a context manager.

    `palmette.runtime.launch` builds one. All methods are for any thread. Should its process end in any way, even by
    SIGKILL, the engine's end with it.
    """

    def __init__(self, settings: ChildSettings, *, restart: bool = False) -> None:
        """Start the processes and wait until they can work.

        Args:
            restart: start the engine anew when one of its processes dies, up to 5 times in 10 minutes. Programs and
                requests that were open have failed; new ones wait for the new engine.

        Raises:
            PalmetteError: what a process met in loading, as `launch(processes=False)` would have raised it.
        """
        self._settings = settings
        self._restart = restart
        self._starts: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._restarts = 0  # that are under way: then calls wait
        self._failure: EngineError | None = None  # for good
        self._closed = False
        self._processes = EngineProcesses(settings, self._failed)
        atexit.register(self.shutdown)
        try:
            self._address = self._wait_until_ready(self._processes)
        except BaseException:
            self.shutdown()
            raise

    @classmethod
    def start(
        cls,
        engine: EngineConfig,
        server: ServerSettings,
        *,
        restart: bool = False,
        loader: str = DEFAULT_LOADER,
        loader_options: Mapping[str, float] | None = None,
    ) -> Self:
        """Find the model, fetched first where it must be, and start an engine on it.

        Args:
            restart: see the class.
            loader, loader_options: what builds the scheduler in its process, as module:function, and its keyword
                arguments. Another one than the default runs something that is no model, to measure or test what is
                around it (palmette.bench.fake_model).

        Raises:
            ModelLoadError: there is no such model.
            PalmetteError: see the class.
        """
        path = find_model(engine.model, revision=engine.revision, offline=engine.offline)
        told = ChildSettings(
            engine=dataclasses.replace(engine, model=str(path.absolute()), revision=None),
            server=server,
            model_name=model_name(engine.model, path),
            loader=loader,
            loader_options=dict(loader_options or {}),
        )
        return cls(told, restart=restart)

    @property
    def model_info(self) -> ModelInfo:
        return self._address.model_info

    def token_owners(self, texts: Sequence[Text], *, start: bool) -> list[int]:
        """For each token of constant text that stands together, the id of the node in which it begins.

        The model's tokenizer is loaded in this process when it is first asked.

        Args:
            start: a prompt begins with it.
        """
        return _tokenizer(self._settings.engine.model or "").owners_of(texts, start=start)

    @property
    def url(self) -> str:
        """Where the server is, without a slash at the end: ``http://127.0.0.1:34567``."""
        server = self._settings.server
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
        return f"{server.scheme}://{f'[{host}]' if ':' in host else host}:{self._address.port}"

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the engine's processes: scheduler, detokenizer and server."""
        return self._processes.pids

    @property
    def is_healthy(self) -> bool:
        """Whether all processes run."""
        return not self._restarts and not self._closed and self._failure is None

    def open(
        self, events: EventSink, options: SessionOptions = USUAL_OPTIONS, *, program: str | None = None
    ) -> RemoteSession:
        """Open an empty request tree whose events go to `events`, called from a thread of the runtime's.

        Waits where the engine is being started anew.

        Raises:
            EngineError: the engine was shut down, or it failed.
        """
        return self._current().open(events, options.of_program(program))

    def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped."""
        return self._current().ask(lambda number: Question(number, "flush_cache")).tokens or 0

    def stats(self) -> SchedulerStats:
        """Counts of the scheduler at this moment: queues, running batch, pages, cache."""
        return self._current().ask(lambda number: Question(number, "stats")).stats or SchedulerStats()

    def cache_tree(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first."""
        return self._current().ask(lambda number: Question(number, "cache_tree", limit)).cache or CacheTree(())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the engine has ended; False where it still runs after `timeout_s`.

        Raises:
            EngineError: a process died, and the engine was not started anew.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_ended, timeout_s):
                return False
        if self._failure is not None and not self._closed:
            raise EngineError(str(self._failure))
        return True

    def shutdown(self, *, drain_s: float = 0.0) -> None:
        """End the engine and wait until its processes are gone. Calling it again is allowed.

        Args:
            drain_s: open requests and programs may go on for so long, while no new ones are taken; then they fail.
        """
        if os.getpid() != self._pid:
            return  # a fork of the process that launched it, whose it is not
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self.shutdown)
        self._processes.end(EngineError(_SHUT_DOWN), drain_s=drain_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # -- starts and restarts ----------------------------------------------------------------------------------------

    def _wait_until_ready(self, processes: EngineProcesses) -> Address:
        with LoadingLine(self._settings.model_name or "the model") as line:
            while (address := processes.wait(_SHOW_EVERY_S)) is None:
                line.show(processes.loading)
        return address

    def _current(self) -> EngineProcesses:
        """The processes to use; a new engine is waited for."""
        if os.getpid() != self._pid:
            raise EngineError("this engine belongs to the process that launched it, not to its forks; launch another")
        with self._changed:
            if not self._processes.is_own_thread:  # which must first end what was open
                self._changed.wait_for(lambda: not self._restarts or self._closed)
            if self._closed:
                raise EngineError(_SHUT_DOWN)
            return self._processes

    def _has_ended(self) -> bool:
        return self._closed or self._failure is not None

    def _failed(self, error: EngineError) -> None:
        """A process died. Called from a thread of the processes' own, before anybody else learns of it."""
        now = time.monotonic()
        too_often = len(self._starts) == MAX_RESTARTS and now - self._starts[0] < RESTARTS_WITHIN_S
        with self._changed:
            anew = self._restart and not self._closed and not too_often
            self._restarts += anew
            if not anew:
                self._failure = error
            self._changed.notify_all()
        if anew:
            self._starts.append(now)
            threading.Thread(target=self._start_anew, args=(error,), name="palmette-restart", daemon=True).start()
        elif self._restart and too_often:
            logger.error("the engine died %d times in a short time and is not started anew", MAX_RESTARTS)

    def _start_anew(self, error: EngineError) -> None:
        """Start the engine, which has ended with `error`, again at the same port."""
        self._processes.end(error)
        server = dataclasses.replace(self._settings.server, port=self._address.port)
        settings = msgspec.structs.replace(self._settings, server=server)
        with self._changed:
            if self._closed:
                return
            self._processes = processes = EngineProcesses(settings, self._failed)
        failure: EngineError | None = None
        try:
            self._address = self._wait_until_ready(processes)
        except PalmetteError as reason:
            logger.error("the engine could not be started anew: %s", reason)
            failure = EngineError(str(reason))
            processes.end(failure)
        with self._changed:
            self._restarts -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()


@functools.lru_cache(maxsize=4)
def _tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model's folder or file."""
    from palmette.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model)
