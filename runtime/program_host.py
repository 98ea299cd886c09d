"""The programs of a process: their request trees, and the news of requests handed to the tree they belong to."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Sequence

from .clock import Clock, MonotonicClock
from .errors import EngineError, RequestError
from .jobs import Workplace
from .messages import USUAL_OPTIONS, FromTree, RequestFailure, RequestOutput, SessionOptions
from .program import Event, Node, Reference
from .request_tree import RequestTree, RunAside, nobody
from .service import EventSink
from .tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")

ABORTED = RequestFailure("RequestAbortedError", "the program was aborted")


class ProgramHost:
    """Holds the trees of all programs. All methods are for one thread, on which events are delivered too.

    Args:
        send: takes messages to the scheduler, whose answers go to `deliver`.
        seed: of the seeds of generations that name none.
        run_aside: makes long prompts into tokens in another thread; None does it at once.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        send: Callable[[FromTree], None],
        seed: int | None = None,
        clock: Clock | None = None,
        run_aside: RunAside | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._send_message = send
        self._seeds = random.Random(seed)
        self._clock = clock or MonotonicClock()
        self._run_aside = run_aside
        self._numbers = itertools.count()
        self._trees: dict[str, RequestTree] = {}  # by the part of a request's id before the stroke
        self._closed: RequestFailure | None = None

    def __len__(self) -> int:
        """Programs that are open."""
        return len(self._trees)

    def open(self, events: EventSink, options: SessionOptions = USUAL_OPTIONS) -> HostedProgram:
        """Open an empty tree whose events go to `events`, which must be quick.

        Raises:
            EngineError: `fail_all` was called.
        """
        if self._closed is not None:
            raise EngineError(self._closed.message)
        program = HostedProgram(self, f"p{next(self._numbers)}", events)
        workplace = Workplace(program.id, self._tokenizer, self._draw_seed, options)
        tree = RequestTree(
            workplace, self._clock, send=self._send_message, emit=program.emit, run_aside=self._run_aside
        )
        program.tree = self._trees[program.id] = tree
        return program

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand news of requests to their trees; that of programs that were closed is dropped."""
        for output in outputs:
            tree = self._trees.get(output.id.partition("/")[0])
            if tree is None:
                continue
            try:
                tree.deliver(output)
            except Exception as error:  # a defect, which must not stop the other programs
                logger.exception("news of request %s could not be taken in; its program fails", output.id)
                tree.abort_all(RequestFailure.of(error))

    def fail_all(self, failure: RequestFailure) -> None:
        """Fail every node that is not done, and take no more programs."""
        self._closed = failure
        for tree in list(self._trees.values()):
            tree.fail_all(failure)

    def forget(self, program_id: str) -> None:
        """The program was closed."""
        self._trees.pop(program_id, None)

    def _draw_seed(self) -> int:
        return self._seeds.getrandbits(63)


MAX_NODE_ID = 2**31 - 1


class NodeIds:
    """The node ids of one program: parents and sources must be known before."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def add(self, nodes: Sequence[Node]) -> None:
        """Take these nodes' ids in.

        Raises:
            RequestError: an id is taken or out of its range, or a parent or source is unknown; none was taken in.
        """
        known, added = self._known, set[int]()
        for node in nodes:
            if node.id < 0 or node.id in known or node.id in added:
                raise RequestError(f"node id {node.id} is negative or taken")
            if node.id > MAX_NODE_ID:
                raise RequestError(f"node id {node.id} is too large; ids may be up to {MAX_NODE_ID}")
            if node.parent is not None and node.parent not in known and node.parent not in added:
                raise RequestError(f"node {node.id} continues node {node.parent}, which does not exist")
            if isinstance(node, Reference) and node.source not in known and node.source not in added:
                raise RequestError(f"node {node.id} refers to node {node.source}, which does not exist before it")
            added.add(node.id)
        known |= added


class HostedProgram:
    """One program of a host. See `ServiceSession`."""

    tree: RequestTree

    def __init__(self, host: ProgramHost, program_id: str, events: EventSink) -> None:
        self.id = program_id
        self._host = host
        self._events = events
        self._node_ids = NodeIds()
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references.

        Raises:
            RequestError: an id is taken or negative, or a parent or source is unknown; none of `nodes` was added.
            EngineError: this session is closed, or the engine has failed.
        """
        if self._closed:
            raise EngineError("this session is closed")
        if self._host._closed is not None:
            raise EngineError(self._host._closed.message)
        self._node_ids.add(nodes)
        self.tree.extend(nodes)

    def abort(self, failure: RequestFailure = ABORTED) -> None:
        """End what still runs: every node that is not done ends in a `Failed` event. The session stays open."""
        self.tree.abort_all(failure)

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._events = nobody
            self.tree.abort()
            self._host.forget(self.id)

    def emit(self, event: Event) -> None:
        """Pass an event on; for the tree."""
        if self._closed:
            return
        try:
            self._events(event)
        except BaseException:  # a broken client, even one that calls sys.exit(), must not stop the others
            logger.exception("a program's event sink failed; its session is closed")
            self.close()
