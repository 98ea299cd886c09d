"""One program on an `OpenAIBackend`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from palmette.runtime.program import Event, Generate, Generated, Node, Select, Selected

from .backend import EventSink
from .openai_errors import failure_of
from .openai_generation import Answerer
from .openai_lines import LineAnswerer
from .openai_loop import LoopThread
from .openai_service import Service
from .openai_usage import METER, UsageMeter
from .session_clock import SessionClock
from .tree_walk import Step, TreeWalk


class OpenAISession:
    """A program's request tree; each generation becomes a request when its prompt is known.

    All work is done on the loop's thread.

    Attributes:
        meter: what the program uses.
    """

    def __init__(
        self, loop: LoopThread, service: Service, answerer: Answerer, events: EventSink, meter: UsageMeter
    ) -> None:
        self.meter = meter
        self._loop = loop
        self._service = service
        self._answerer = answerer
        self._lines: LineAnswerer | None = None
        self._events = events
        self._walk = TreeWalk(self._begin, self._report)
        self._clock = SessionClock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = threading.RLock()  # held while an event is delivered, so that close() waits for it
        self._closed = False

    def speculate(self, tokens: int) -> None:
        """Let an answer of up to so many tokens hold those of several generations. Called before the first extend."""
        self._lines = LineAnswerer(self._answerer, tokens)

    def extend(self, nodes: Sequence[Node]) -> None:
        taken = tuple(nodes)
        self._loop.call(lambda: self._add(taken))

    def close(self) -> None:
        with self._open:
            if self._closed:
                return
            self._closed = True
        self._loop.call_if_running(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _add(self, nodes: Sequence[Node]) -> None:
        if not self._closed:
            self._walk.add(nodes)

    def _begin(self, node: Generate | Select) -> None:
        self._clock.begin(node.id)
        task = asyncio.get_running_loop().create_task(self._answer(node))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, node: Generate | Select) -> None:
        METER.set(self.meter)
        try:
            steps = self._walk.path(node)
            if isinstance(node, Select):
                selected = await self._answerer.select(node, self._answerer.prompt(steps))
                self._finish(selected, node.choices[selected.choice])
            else:
                generated = await self._generate(node, steps)
                self._finish(generated, generated.completions[0].text)
        except asyncio.CancelledError:
            if not self._closed:  # the backend was closed under the program
                self._fail(node, "RequestAbortedError", f"the connection to {self._service.url} was closed")
            raise
        except Exception as error:  # whatever a request may raise belongs to this node
            self._fail(node, *failure_of(error, self._service.url, self._service.timeout_s))

    async def _generate(self, node: Generate, steps: Sequence[Step]) -> Generated:
        if self._lines is None:
            return await self._answerer.generate(node, self._answerer.prompt(steps), self._report)
        return await self._lines.generate(node, steps, self._walk.line_after(node), self._report)

    def _finish(self, event: Generated | Selected, text: str) -> None:
        self._report(event)
        self._walk.finish(event.node, text)

    def _fail(self, node: Node, kind: str, message: str, retry_after_s: float | None = None) -> None:
        self._walk.fail(node.id, kind, message, retry_after_s)

    def _report(self, event: Event) -> None:
        with self._open:
            if not self._closed:
                self._events(self._clock.timed(event))
