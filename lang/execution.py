"""One run of a program: its tree, its session on a backend, and the one lock under which both change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import RequestAbortedError
from palmette.runtime.program import Event, Fork, Generate, Node

from .backend import Backend, HasMeter, Session, Speculates
from .chat_template import ChatTemplate, chat_template
from .errors import DeadlineExceededError, ProgramError
from .source_line import SourceLine, calling_line
from .tool import Tool
from .trace import RunTrace, trace_of
from .tree import NodeRecord, ProgramTree
from .tree_view import TreeView, view_of

Value = TypeVar("Value")


class Execution:
    """A program that is running, or has run.

    Nodes are collected and sent to the backend only when somebody waits, or the program ends: a run of appends between
    two waits is one extend message. The program's thread and every reader wait on `changed`; the backend's thread
    reports events under the same lock.

    Args:
        defaults: sampling options of generations that do not give their own; they win over the model's own.
        timeout_s: the run is stopped after this many seconds; None lets it take any time.
        num_api_spec_tokens: one answer of a service may hold those of several generations, in up to so many tokens.

    Attributes:
        changed: the lock of everything here and in the program's branches, notified at every change.
        tree: the request tree.
        streaming: generations ask for their text as it comes.
        ended: the program's function has returned or raised.
        value: what the function returned.
        failure: the exception that ended the function, or stopped the run.
        meter: counts what the run uses, where the backend counts that for each run.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        defaults: Mapping[str, Any],
        streaming: bool,
        timeout_s: float | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.tree = ProgramTree()
        self.name = name
        self.defaults = {**backend.model_info.sampling_defaults, **defaults}
        self.streaming = streaming
        self.ended = False
        self.value: Any = None
        self.failure: BaseException | None = None
        self.meter: object = None
        self._num_api_spec_tokens = num_api_spec_tokens
        self._backend = backend
        self._templates: dict[tuple[Tool[..., Any], ...], ChatTemplate] = {}
        self._pending: list[Node] = []
        self._sending = threading.Lock()  # held while a message is sent, so that messages keep the order of their nodes
        self._session: Session | None = None
        self._closed = False
        self._threads: set[int] = set()
        self._loop_thread: int | None = None
        self._timer = None if timeout_s is None else threading.Timer(timeout_s, self._expire, (timeout_s,))
        self._listeners: set[Callable[[], None]] = set()

    def template(self, tools: tuple[Tool[..., Any], ...]) -> ChatTemplate:
        """The model's chat template for a conversation with these tools, looked up when its first role is opened."""
        if tools not in self._templates:
            specs = tuple(tool.spec_json for tool in tools)
            self._templates[tools] = chat_template(self._backend.model_info, specs)
        return self._templates[tools]

    @property
    def on_program_thread(self) -> bool:
        """Whether the caller is the running program itself: what it waits for must already be in the tree.

        Only a streaming run is watched from outside; in any other, every thread was started by the program.
        """
        return not self.ended and (not self.streaming or threading.get_ident() in self._threads)

    @contextlib.contextmanager
    def as_program(self) -> Iterator[None]:
        """The calling thread is one of the program's while the block runs."""
        thread = threading.get_ident()
        if thread in self._threads:
            yield
            return
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)

    def view(self) -> TreeView:
        with self.changed:
            return view_of(self.name, self.tree)

    def trace(self) -> RunTrace:
        with self.changed:
            return trace_of(self.name, self.tree, self._backend.model_info.name)

    # -- the program's life -----------------------------------------------------------------------------------------

    def start(self, *, on_loop: bool = False) -> None:
        """Open the session; the calling thread is the program's. `on_loop`: it runs an event loop and must not wait.

        Raises:
            PalmetteError: the run was stopped before it began.
        """
        self._threads.add(threading.get_ident())
        if on_loop:
            self._loop_thread = threading.get_ident()
        session = self._backend.open(self._on_event, program=self.name)
        if self._num_api_spec_tokens is not None and isinstance(session, Speculates):
            session.speculate(self._num_api_spec_tokens)
        self.meter = session.meter if isinstance(session, HasMeter) else None
        with self.changed:
            self._session = session
            if self.failure is not None:
                raise self.failure
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def returned(self, value: Any) -> None:
        """The function has returned; its last nodes are sent."""
        with self.changed:
            self.ended = True
            self.value = value
            self._notify()
        self.flush()

    def is_complete(self) -> bool | None:
        """True once every node is done; None before, for `wait`. The caller holds the lock."""
        return True if self.tree.unfinished == 0 else None

    def complete(self) -> None:
        """Every node is done: close the session."""
        self._close(RequestAbortedError(f"the program {self.name} has ended"))

    def fail(self, failure: BaseException) -> None:
        """The function has raised, or the run was stopped: abort what still runs."""
        with self.changed:
            self.ended = True
            self.failure = self.failure or failure
            self._notify()
        reason = f"the program {self.name} ended by {type(failure).__name__}: {failure}"
        self._close(RequestAbortedError(reason))

    def cancel(self) -> None:
        """Abort what still runs; the program's next step raises. Nothing happens to a program that has ended."""
        self._stop(RequestAbortedError(f"the program {self.name} was cancelled"))

    def _expire(self, timeout_s: float) -> None:
        self._stop(DeadlineExceededError(f"the program {self.name} did not end within timeout_s={timeout_s:g} seconds"))

    def _stop(self, reason: PalmetteError) -> None:
        """Abort what still runs, unless the program has ended."""
        with self.changed:
            if self.ended and self.tree.unfinished == 0:
                return
            self.failure = self.failure or reason
            self._notify()
        self._close(reason)

    def first_error(self) -> BaseException | None:
        """The exception that ended the function, else the error of the node that failed first."""
        if self.failure is not None:
            return self.failure
        return None if self.tree.first_failed is None else self.tree.error_of(self.tree.first_failed)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def add(self, make: Callable[[int], Node], *, branch: int, line: SourceLine, name: str | None) -> Node:
        """Add the node that `make` builds for the next id. The caller holds `changed`."""
        if self._closed:
            raise self._refusal(line)
        node = make(self.tree.next_id)
        self.tree.add(NodeRecord(node, branch, line, name))
        self._pending.append(node)
        self._notify()
        return node

    def open_branches(self, fork: Fork) -> tuple[int, ...]:
        return self.tree.open_branches(fork)

    def stream_pending(self) -> None:
        """Let the generations that are not sent yet report their text as it comes. The caller holds `changed`."""
        self._pending = [
            msgspec.structs.replace(node, stream=True) if isinstance(node, Generate) else node for node in self._pending
        ]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, poll: Callable[[], Value | None]) -> Value:
        """What `poll` returns once it is not None. It is called under the lock, now and after every change."""
        while True:
            with self.changed:
                value = poll()
                if value is not None:
                    return value
                self.about_to_wait()
                self.check_may_wait("write await s.get(name) for a value, or await s.ready() before this line")
                if not self._pending:
                    self.changed.wait()
            self.flush()

    def about_to_wait(self) -> None:
        """Called before every wait for what is not there yet; where there is nothing to wait for it raises."""

    def check_may_wait(self, instead: str) -> None:
        """Raise ProgramError if the caller is an async program, which must not wait; `instead` is what it can do."""
        if self._loop_thread == threading.get_ident() and not self.ended:
            raise ProgramError(
                f"an async program must not wait here, as that would stop its event loop; {instead}",
                line=calling_line(),
            )

    def wait_for_nodes(self, node_ids: Iterable[int]) -> None:
        """Wait until all of these nodes are done, well or not."""
        self.wait(self.all_done(node_ids))

    def settled(self, node_ids: Iterable[int]) -> Callable[[], bool | None]:
        """As `all_done`, asked by who reads none of their values."""
        return self.all_done(node_ids)

    def branch_threads(self, count: int) -> Executor:
        """Up to `count` threads for the code of branches."""
        return ThreadPoolExecutor(count, thread_name_prefix="palmette-branch")

    def all_done(self, node_ids: Iterable[int]) -> Callable[[], bool | None]:
        """A question for `wait`: whether all of these nodes are done, well or not."""
        waiting = list(node_ids)

        def poll() -> bool | None:
            while waiting and self.tree.records[waiting[-1]].done:
                waiting.pop()
            return None if waiting else True

        return poll

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at every change, under the lock: it must be quick."""
        with self.changed:
            self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        with self.changed:
            self._listeners.discard(listener)

    def flush(self) -> None:
        """Send the nodes that are not sent yet, as one message."""
        if not self._pending:
            return
        with self._sending:
            with self.changed:
                nodes, self._pending = self._pending, []
                session = self._session
            if nodes and session is not None:
                self._send(session, nodes)

    def check_invariants(self) -> None:
        """The tree is sound, and what is not sent yet is its newest nodes. The caller holds `changed`."""
        self.tree.check_invariants()
        newest = self.tree.records[self.tree.next_id - len(self._pending) :]
        assert [record.node.id for record in newest] == [node.id for node in self._pending]

    def _send(self, session: Session, nodes: list[Node]) -> None:
        try:
            session.extend(nodes)
        except Exception as error:  # whatever a backend may raise belongs to the nodes that it did not take
            with self.changed:
                for node in nodes:
                    self.tree.fail(node.id, error)
                self._notify()

    def _on_event(self, event: Event) -> None:
        with self.changed:
            self.tree.apply(event)
            self._notify()

    def _notify(self) -> None:
        self.changed.notify_all()
        for listener in tuple(self._listeners):
            listener()

    def _refusal(self, line: SourceLine) -> Exception:
        """What is raised where something is appended after the end."""
        if isinstance(self.failure, DeadlineExceededError):
            return DeadlineExceededError(str(self.failure), line=line)
        return ProgramError(f"the program {self.name} has ended; nothing can be appended to it", line=line)

    def _close(self, reason: PalmetteError) -> None:
        """Close the session, without the lock, as the backend may be reporting; then end what has no result."""
        with self.changed:
            self._closed = True
            self._pending = []
            session, self._session = self._session, None
        if self._timer is not None:
            self._timer.cancel()
        if session is not None:
            session.close()
        with self.changed:
            self.tree.fail_unfinished(reason)
            self._notify()
