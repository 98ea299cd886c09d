"""One program on the engine's side: nodes come in, requests go out, finished requests become events.

A node can start when the node before it on its branch is done, and a reference when its source is done too, so finished
generations release what follows them here, without asking the client. Text, forks and joins are done as soon as they
are reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from palmette.constrained.errors import PalmetteError

from .clock import Clock
from .context import Context
from .jobs import GenerateJob, Job, Workplace, job_of
from .program import Delta, Event, Failed, Generate, Node, Reference, Select, Text, referred_text
from .request import Request
from .tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")


@dataclass(slots=True)
class _Entry:
    """A node and where it stands.

    Attributes:
        children, references: the nodes that continue it, and the references to it.
        context: what follows the node, known once it is done.
        text: what a reference to it stands for, known then too; None for a node without text.
        started_s: when its job began.
    """

    node: Node
    children: list[_Entry] = field(default_factory=list)
    references: list[_Entry] = field(default_factory=list)
    context: Context | None = None
    text: str | None = None
    failed: tuple[str, str] | None = None
    job: Job | None = None
    started_s: float = 0.0

    @property
    def settled(self) -> bool:
        return self.context is not None or self.failed is not None

    @property
    def followers(self) -> list[_Entry]:
        """What may go on when the node is done."""
        return self.children + self.references


class RequestTree:
    """The request tree of one program.

    It holds no lock and does no work of its own: the engine's thread calls `extend`, `deliver` and `abort`.
    """

    def __init__(
        self,
        tree_id: str,
        tokenizer: Tokenizer,
        clock: Clock,
        *,
        submit: Callable[[Request], None],
        abort: Callable[[str], object],
        emit: Callable[[Event], None],
        draw_seed: Callable[[], int],
    ) -> None:
        self._workplace = Workplace(tree_id, tokenizer, draw_seed)
        self._clock = clock
        self._submit = submit
        self._abort = abort
        self._emit = emit
        self._root = _Entry(node=Text(-1, None, ""), context=Context())
        self._entries: dict[int, _Entry] = {}
        self._of_request: dict[str, _Entry] = {}

    def extend(self, nodes: Iterable[Node]) -> None:
        """Add nodes and start those that can run. Parents and sources come first; the session has checked the ids."""
        for node in nodes:
            entry = _Entry(node)
            self._entries[node.id] = entry
            self._parent(entry).children.append(entry)
            if isinstance(node, Reference):
                self._entries[node.source].references.append(entry)
            self._advance(entry)

    def deliver(self, request: Request, text: str, finished: bool) -> None:
        """Take news of one of this tree's requests: `text` to stream, and whether it has ended."""
        entry = self._of_request.get(request.id)
        job = entry.job if entry is not None else None
        if entry is None or job is None:
            return
        if text and isinstance(job, GenerateJob) and job.node.stream:
            self._emit(Delta(job.node.id, text, job.requests.index(request)))
        if finished:
            del self._of_request[request.id]
            job.unfinished -= 1
            if job.unfinished == 0:
                entry.job = None
                self._attempt(entry, lambda: self._complete(entry, job))
                self._advance(*entry.followers)

    def abort(self) -> None:
        """Abort every request that has not ended; nothing more is emitted for them."""
        for request_id in list(self._of_request):
            del self._of_request[request_id]
            self._abort(request_id)

    def fail_all(self, kind: str, message: str) -> None:
        """Fail every node that is not done."""
        self._of_request.clear()
        for entry in list(self._entries.values()):
            if not entry.settled:
                self._fail(entry, kind, message)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _parent(self, entry: _Entry) -> _Entry:
        return self._root if entry.node.parent is None else self._entries[entry.node.parent]

    def _awaited(self, entry: _Entry) -> list[_Entry]:
        """The nodes that must be done before this one."""
        if isinstance(entry.node, Reference):
            return [self._parent(entry), self._entries[entry.node.source]]
        return [self._parent(entry)]

    def _advance(self, *entries: _Entry) -> None:
        """Start these nodes, and what follows them, as far as what they wait for is known."""
        stack = list(reversed(entries))
        while stack:
            entry = stack.pop()
            if entry.settled:
                continue  # a reference that came here by its parent and by its source
            awaited = self._awaited(entry)
            failed = next((before.failed for before in awaited if before.failed is not None), None)
            if failed is not None:
                self._fail(entry, *failed)
            elif all(before.context is not None for before in awaited):
                self._attempt(entry, partial(self._begin, entry, awaited))
                if entry.context is not None:
                    stack.extend(reversed(entry.followers))

    def _begin(self, entry: _Entry, awaited: Sequence[_Entry]) -> None:
        node, before = entry.node, awaited[0].context
        assert before is not None
        if isinstance(node, Generate | Select):
            self._start(entry, job_of(node, before, self._workplace))
        elif isinstance(node, Text):
            entry.text = node.text
            entry.context = before.with_text(node.text, owner=node.id, template=node.template)
        elif isinstance(node, Reference):
            entry.text = referred_text(node, awaited[1].text)
            entry.context = before.with_text(entry.text, owner=node.id)
        else:
            entry.context = before

    def _attempt(self, entry: _Entry, step: Callable[[], None]) -> None:
        """Take a node one step on; an exception fails it, and never the engine."""
        try:
            step()
        except PalmetteError as error:
            self._fail(entry, type(error).__name__, str(error))
        except Exception as error:
            logger.exception("node %d failed", entry.node.id)
            self._fail(entry, "EngineError", f"{type(error).__name__}: {error}")

    def _fail(self, entry: _Entry, kind: str, message: str) -> None:
        """Fail the node and everything that waits for it."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            if entry.failed is None:
                entry.failed = (kind, message)
                entry.job = None
                if isinstance(entry.node, Generate | Select | Reference):
                    self._emit(Failed(entry.node.id, kind, message))
                stack.extend(reversed(entry.followers))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _start(self, entry: _Entry, job: Job) -> None:
        entry.job, entry.started_s = job, self._clock.now()
        for request in job.requests:
            try:
                self._submit(request)
            except Exception:
                self._abandon(entry)
                raise
            self._of_request[request.id] = entry

    def _abandon(self, entry: _Entry) -> None:
        """Abort the requests of a node."""
        for request_id in [name for name, owner in self._of_request.items() if owner is entry]:
            del self._of_request[request_id]
            self._abort(request_id)

    def _complete(self, entry: _Entry, job: Job) -> None:
        if job.error is not None:
            raise job.error
        outcome = job.outcome(self._clock.now() - entry.started_s)
        entry.text, entry.context = outcome.text, outcome.context
        self._emit(outcome.event)
