"""One program on the engine's side: nodes come in, requests go out, finished requests become events.

A node can start when the node before it on its branch is done, and a reference when its source is done too, so finished
generations release what follows them here, without asking the client. Text, forks and joins are done as soon as they
are reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import msgspec

from palmette.constrained.errors import PalmetteError

from .answer_timings import Beginning
from .clock import Clock
from .context import Context
from .jobs import GenerateJob, Job, Workplace, job_of
from .messages import (
    AbortRequest,
    DropPrefixes,
    EndProgram,
    FromTree,
    NewRequest,
    ProgramPlace,
    RequestFailure,
    RequestOutput,
)
from .program import Event, Failed, Fork, Generate, Join, Node, Reference, Select, Text, Tokens, referred_text
from .stops import is_compiled

logger = logging.getLogger("palmette.engine")

MOST_EXPECTED = 4096
"""Most tokens of an answer that are counted on, however large its max_tokens."""

LONG_TEXT = 1 << 16
"""Constant text of so many characters (16 ms of encoding) is not made into tokens where others wait for it."""

RunAside = Callable[[Callable[[], Job], Callable[[Future[Job]], None]], None]
"""Runs a function in another thread, and then what is to be done with its result in the tree's own."""


@dataclass(slots=True)
class _Entry:
    """A node and where it stands.

    Attributes:
        children, references: the nodes that continue it, and the references to it.
        context: what follows the node, known once it is done.
        text: what a reference to it stands for, known then too; None for a node without text.
        started_s: when its job began; None before.
        kept: the request whose prefix is kept for what continues the node on its branch; of a fork, for what comes
            after the join.
        joined: a join has ended the branch here: nothing continues it.
        fork: that the node comes after, and no join has ended.
    """

    node: Node
    children: list[_Entry] = field(default_factory=list)
    references: list[_Entry] = field(default_factory=list)
    context: Context | None = None
    text: str | None = None
    failed: RequestFailure | None = None
    job: Job | None = None
    started_s: float | None = None
    kept: str | None = None
    joined: bool = False
    fork: _Entry | None = None

    @property
    def settled(self) -> bool:
        return self.context is not None or self.failed is not None

    @property
    def followers(self) -> list[_Entry]:
        """What may go on when the node is done."""
        return self.children + self.references


class RequestTree:
    """The request tree of one program.

    It holds no lock and does no work of its own: its methods are for one thread. Whoever takes its events may call them
    from within one, so what is known of the tree is looked up again after each.
    """

    def __init__(
        self,
        workplace: Workplace,
        clock: Clock,
        *,
        send: Callable[[FromTree], None],
        emit: Callable[[Event], None],
        run_aside: RunAside | None = None,
    ) -> None:
        """Begin an empty tree.

        Args:
            workplace: what its requests are made with.
            send: takes requests to the scheduler, which answers through `deliver`.
            emit: takes events to the client.
            run_aside: makes long prompts into tokens elsewhere; None does it at once.
        """
        self._workplace = workplace
        self._clock = clock
        self._opened_s = clock.now()
        self._send = send
        self._emit = emit
        self._run_aside = run_aside
        self._root = _Entry(node=Text(-1, None, ""), context=Context())
        self._entries: dict[int, _Entry] = {}
        self._of_request: dict[str, _Entry] = {}
        self._program = workplace.options.program
        self._later_tokens = 0  # of the answers of nodes that wait for others
        self._forgotten = False

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes and start those that can run. Parents and sources come first; the session has checked the ids."""
        for node in nodes:  # first, so that all requests tell of all calls after them
            self._count_later(node, 1)
        for node in nodes:
            entry = _Entry(node)
            self._entries[node.id] = entry
            self._parent(entry).children.append(entry)
            if isinstance(node, Reference):
                self._entries[node.source].references.append(entry)
            self._advance(entry)

    def deliver(self, output: RequestOutput) -> None:
        """Take news of one of this tree's requests: what to stream, and what it came to."""
        entry = self._of_request.get(output.id)
        job = entry.job if entry is not None else None
        if entry is None or job is None:
            return
        if isinstance(job, GenerateJob) and job.node.stream and (delta := job.delta(output)) is not None:
            self._emit(delta)
        if output.end is not None and output.id in self._of_request:  # the delta may have ended the program
            del self._of_request[output.id]
            job.take_end(output.id, output.end)
            if output.end.failure is not None:
                self._abort_requests(job)
            if job.unfinished == 0:
                entry.job = None
                self._attempt(entry, lambda: self._complete(entry, job))
                self._advance(*entry.followers)

    def abort(self) -> None:
        """Abort every request that has not ended; nothing more is emitted for them."""
        self._forgotten = True
        self._emit = nobody  # who took the events holds this tree: without it, both are freed with their last reference
        for request_id in list(self._of_request):
            self._send(AbortRequest(request_id))
        self._of_request.clear()
        if self._program is not None:
            self._send(EndProgram(self._workplace.tree_id))

    def abort_all(self, failure: RequestFailure) -> None:
        """Abort every request that has not ended, and fail every node that is not done."""
        for request_id in list(self._of_request):
            self._send(AbortRequest(request_id))
        for entry in self._entries.values():
            if entry.job is not None:
                self._drop(entry.job.requests[0].id)  # it may have ended just now
        self.fail_all(failure)

    def fail_all(self, failure: RequestFailure) -> None:
        """Fail every node that is not done."""
        self._of_request.clear()
        for entry in list(self._entries.values()):
            if not entry.settled:
                self._fail(entry, failure)

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
        while stack and not self._forgotten:
            entry = stack.pop()
            if entry.settled or entry.started_s is not None:
                continue  # a reference that came here by its parent and by its source, or a node that an event added
            awaited = self._awaited(entry)
            failed = next((before.failed for before in awaited if before.failed is not None), None)
            if failed is not None:
                self._fail(entry, failed)
            elif all(before.context is not None for before in awaited):
                self._attempt(entry, partial(self._begin, entry, awaited))
                if entry.context is not None:
                    stack.extend(reversed(entry.followers))

    def _begin(self, entry: _Entry, awaited: Sequence[_Entry]) -> None:
        node, before = entry.node, awaited[0].context
        assert before is not None
        if isinstance(node, Generate | Select):
            self._make_job(entry, node, before)
        elif isinstance(node, Tokens):
            entry.context = before.with_tokens(node.token_ids, self._workplace.tokenizer, owner=node.id)
        elif isinstance(node, Text):
            entry.text = node.text
            entry.context = before.with_text(node.text, owner=node.id, template=node.template)
        elif isinstance(node, Reference):
            entry.text = referred_text(node, awaited[1].text)
            entry.context = before.with_text(entry.text, owner=node.id)
        else:
            entry.context = before
        if entry.context is not None and self._program is not None:
            self._hand_down(entry)

    def _attempt(self, entry: _Entry, step: Callable[[], None]) -> None:
        """Take a node one step on; an exception fails it, and never the engine."""
        try:
            step()
        except PalmetteError as error:
            self._fail(entry, RequestFailure.of(error))
        except Exception as error:
            logger.exception("node %d failed", entry.node.id)
            self._fail(entry, RequestFailure.of(error))

    def _fail(self, entry: _Entry, failure: RequestFailure) -> None:
        """Fail the node and everything that waits for it."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            if entry.failed is None:
                if entry.started_s is None:
                    self._count_later(entry.node, -1)
                entry.failed = failure
                entry.job = None
                if isinstance(entry.node, Generate | Select | Reference):
                    self._emit(Failed(entry.node.id, failure.kind, failure.message, failure.retry_after_s))
                stack.extend(reversed(entry.followers))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _make_job(self, entry: _Entry, node: Generate | Select, before: Context) -> None:
        """Make the node's requests and send them; elsewhere, where it takes long to make them."""
        entry.started_s = self._clock.now()
        self._count_later(node, -1)
        make = partial(job_of, node, before, self._workplace)
        stops = node.params.stop_regex if isinstance(node, Generate) else ()
        if self._run_aside is not None and (_text_to_encode(node, before) > LONG_TEXT or not is_compiled(stops)):
            self._run_aside(make, partial(self._job_made, entry))
        else:
            self._start(entry, make())

    def _job_made(self, entry: _Entry, made: Future[Job]) -> None:
        if entry.settled or self._forgotten:
            return
        self._attempt(entry, lambda: self._start(entry, made.result()))
        self._advance(*entry.followers)

    def _start(self, entry: _Entry, job: Job) -> None:
        entry.job = job
        now_s = self._clock.now()
        started_s = now_s if entry.started_s is None else entry.started_s
        job.beginning = Beginning(started_s - self._opened_s, now_s - self._opened_s)
        try:
            for request in job.requests:
                self._send(self._placed(request, continued=request is job.requests[0]))
                self._of_request[request.id] = entry
        except Exception:
            self._abort_requests(job)
            for request in job.requests:
                self._of_request.pop(request.id, None)
            raise

    def _abort_requests(self, job: Job) -> None:
        """End what still runs of a job that has failed."""
        for request in job.requests:
            if request.id in self._of_request:
                self._send(AbortRequest(request.id))

    def _complete(self, entry: _Entry, job: Job) -> None:
        if job.failure is not None:
            self._drop(job.requests[0].id)  # which may have ended well before another failed
            self._fail(entry, job.failure)
            return
        assert entry.started_s is not None
        outcome = job.outcome(self._clock.now() - entry.started_s)
        entry.text, entry.context = outcome.text, outcome.context
        if self._program is not None:
            first = job.ends[0]  # where a grammar forced all of it, it never ran, and nothing new is kept
            self._hand_down(entry, job.requests[0].id if first is not None and first.first_step else None)
        self._emit(outcome.event)

    # -- what is kept for the program -------------------------------------------------------------------------------

    def _placed(self, request: NewRequest, *, continued: bool) -> NewRequest:
        """The request with its place in the program, if this is one."""
        if self._program is None:
            return request
        place = ProgramPlace(
            id=self._workplace.tree_id,
            name=self._program,
            continued=continued,
            later_tokens=self._later_tokens,
        )
        return msgspec.structs.replace(request, program=place)

    def _hand_down(self, entry: _Entry, request_id: str | None = None) -> None:
        """Settle what is kept for the continuation of a node that is done.

        That is the prefix of its own request, or else what was kept for the node itself.
        """
        before = self._parent(entry)
        fork = before if isinstance(before.node, Fork) else before.fork
        if isinstance(entry.node, Join):
            self._end_branches(entry.node.ends, fork)
            entry.fork = None if fork is None else fork.fork
            inherited = before.kept or (None if fork is None else fork.kept)  # the trunk may have gone on meanwhile
        else:
            entry.fork = fork
            inherited = None if before is fork else before.kept  # what is kept for the trunk is none of a branch's
        entry.kept = request_id or inherited
        if request_id is not None:
            self._drop(inherited)
        if entry.joined:
            self._drop(entry.kept)

    def _end_branches(self, ends: Iterable[int], fork: _Entry | None) -> None:
        """Nothing continues these nodes any more. A branch that nothing was added to ends at the fork itself."""
        for end in ends:
            branch = self._entries.get(end)
            if branch is not None and branch is not fork:
                branch.joined = True
                self._drop(branch.kept)

    def _drop(self, request_id: str | None) -> None:
        if request_id is not None and self._program is not None:
            self._send(DropPrefixes(self._workplace.tree_id, (request_id,)))

    def _count_later(self, node: Node, sign: int) -> None:
        """Count a node among those that wait for others, or no longer."""
        if isinstance(node, Generate):
            self._later_tokens += sign * node.n * min(node.params.max_tokens, MOST_EXPECTED)


def _text_to_encode(node: Generate | Select, before: Context) -> int:
    """Characters of constant text that a node's requests are made of: every choice is encoded with what precedes it."""
    if isinstance(node, Generate):
        return before.text_length
    return len(node.choices) * before.text_length + sum(map(len, node.choices))


def nobody(event: Event) -> None:
    """Takes the events of a program that is closed."""
