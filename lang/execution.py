"""One run of a program: its tree, its session on a backend, and the one lock under which both change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from palmette.runtime.errors import RequestAbortedError
from palmette.runtime.program import Event, Fork, Generate, Node

from .backend import Backend, Session
from .chat_template import ChatTemplate, chat_template
from .errors import ProgramError
from .source_line import SourceLine
from .tree import NodeRecord, ProgramTree
from .tree_view import TreeView, view_of

Value = TypeVar("Value")


class Execution:
    """A program that is running, or has run.

    Nodes are collected and sent to the backend only when somebody waits, or the program ends: a run of appends between
    two waits is one extend message. The program's thread and every reader wait on `changed`; the backend's thread
    reports events under the same lock.

    Attributes:
        changed: the lock of everything here and in the program's branches, notified at every change.
        tree: the request tree.
        streaming: generations ask for their text as it comes.
        ended: the program's function has returned or raised.
        value: what the function returned.
        failure: the exception that ended the function, or stopped the run.
    """

    def __init__(self, backend: Backend, *, name: str, defaults: Mapping[str, Any], streaming: bool) -> None:
        self.changed = threading.Condition()
        self.tree = ProgramTree()
        self.name = name
        self.defaults = defaults
        self.streaming = streaming
        self.ended = False
        self.value: Any = None
        self.failure: BaseException | None = None
        self._backend = backend
        self._template: ChatTemplate | None = None
        self._pending: list[Node] = []
        self._sending = threading.Lock()  # held while a message is sent, so that messages keep the order of their nodes
        self._session: Session | None = None
        self._closed = False
        self._thread: int | None = None
        self._listeners: set[Callable[[], None]] = set()

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template, looked up when the first role is opened."""
        if self._template is None:
            self._template = chat_template(self._backend.model_info)
        return self._template

    @property
    def on_program_thread(self) -> bool:
        """Whether the caller is the running program itself: what it waits for must already be in the tree."""
        return not self.ended and self._thread == threading.get_ident()

    def view(self) -> TreeView:
        with self.changed:
            return view_of(self.name, self.tree)

    # -- the program's life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the session; the calling thread is the program's."""
        self._thread = threading.get_ident()
        self._session = self._backend.open(self._on_event)

    def finish(self, value: Any) -> None:
        """The function has returned: wait for every node, then close the session."""
        with self.changed:
            self.ended = True
            self.value = value
            self._notify()
        self.flush()
        self.wait(lambda: True if self.tree.unfinished == 0 else None)
        self._close(f"the program {self.name} has ended")

    def fail(self, failure: BaseException) -> None:
        """The function has raised, or the run was stopped: abort what still runs."""
        with self.changed:
            self.ended = True
            self.failure = self.failure or failure
            self._notify()
        self._close(f"the program {self.name} ended by {type(failure).__name__}: {failure}")

    def cancel(self) -> None:
        """Abort what still runs; the program's next step raises. Nothing happens to a program that has ended."""
        with self.changed:
            if self.ended and self.tree.unfinished == 0:
                return
            self.failure = self.failure or RequestAbortedError(f"the program {self.name} was cancelled")
            self._notify()
        self._close(f"the program {self.name} was cancelled")

    def first_error(self) -> BaseException | None:
        """The exception that ended the function, else the error of the node that failed first."""
        if self.failure is not None:
            return self.failure
        return None if self.tree.first_failed is None else self.tree.error_of(self.tree.first_failed)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def add(self, make: Callable[[int], Node], *, branch: int, line: SourceLine, name: str | None) -> Node:
        """Add the node that `make` builds for the next id. The caller holds `changed`."""
        if self._closed:
            raise ProgramError(f"the program {self.name} has ended; nothing can be appended to it", line=line)
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
                if not self._pending:
                    self.changed.wait()
            self.flush()

    def wait_for_nodes(self, node_ids: Iterable[int]) -> None:
        """Wait until all of these nodes are done, well or not."""
        waiting = list(node_ids)

        def poll() -> bool | None:
            while waiting and self.tree.records[waiting[-1]].done:
                waiting.pop()
            return None if waiting else True

        self.wait(poll)

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
            if nodes and self._session is not None:
                self._send(self._session, nodes)

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

    def _close(self, reason: str) -> None:
        """Close the session, without the lock, as the backend may be reporting; then end what has no result."""
        with self.changed:
            self._closed = True
            self._pending = []
            session, self._session = self._session, None
        if session is not None:
            session.close()
        with self.changed:
            self.tree.fail_unfinished(RequestAbortedError(reason))
            self._notify()
