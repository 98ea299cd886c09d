"""Events that wait for a listener, and the ones it may ask for again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from palmette.runtime.channel import ProgramEvent
from palmette.runtime.program import Delta, Event, Generated, Selected

KEPT_BYTES = 1 << 20
"""Of what a listener was sent, so much is kept for when it has to ask for it again."""

HEARTBEAT_S = 15.0
"""A stream with nothing to tell sends an empty comment so often: either side sees that the other is gone."""

COMMENT = b":\n\n"

Render = Callable[[int, Sequence[ProgramEvent]], bytes]


class EventsLostError(Exception):
    """A listener asks for events that are not kept any more."""


class EventLog:
    """The events of one program, or of all programs of a channel, on their way to one listener at a time.

    Pieces of one answer that wait are joined, so what waits is bounded by the text that was generated, and by
    `most_bytes`: past that, `on_full` is called.

    Args:
        render: a server-sent event from its id and what it is to hold.
        together: whether everything that waits goes into one server-sent event, or each event into its own.
    """

    def __init__(self, render: Render, *, together: bool, most_bytes: int, on_full: Callable[[], None]) -> None:
        self._render = render
        self._together = together
        self._most_bytes = most_bytes
        self._on_full = on_full
        self._waiting: list[tuple[int, Event | list[Delta]]] = []
        self._growing: dict[tuple[int, int, int], list[Delta]] = {}
        self._waiting_bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._last_id = 0
        self._end: bytes | None = None
        self._listener: _Listener | None = None

    @property
    def listened_to(self) -> bool:
        return self._listener is not None

    def put(self, program: int, event: Event) -> None:
        """Take an event; nothing is taken once the log has ended."""
        if self._end is not None:
            return
        if isinstance(event, Delta):
            self._put_delta(program, event)
        else:
            self._waiting.append((program, event))
        self._waiting_bytes += _size(event)
        if self._listener is not None:
            self._listener.wake()
        if self._waiting_bytes > self._most_bytes:
            self._on_full()

    def end(self, last: bytes, *, discard: bool = False) -> None:
        """No event comes any more: the listener gets what waits, unless it is discarded, then `last`."""
        if self._end is None:
            self._end = last
            self._on_full = _nothing  # whom it would tell holds this log
            if discard:
                self._forget_waiting()
            if self._listener is not None:
                self._listener.wake()

    def listen(self, after: int | None, *, until: Callable[[], bool] = lambda: False) -> AsyncIterator[bytes]:
        """Server-sent events after the one of id `after`; None begins with the oldest that is kept.

        Whoever listened before is sent away. Ends when the log does, or when nothing waits and `until` is true.

        Raises:
            EventsLostError: what came after `after` is not kept any more, or was never sent.
        """
        oldest = self._kept[0][0] if self._kept else self._last_id + 1
        if after is not None and not oldest - 1 <= after <= self._last_id:
            raise EventsLostError(
                f"events after number {after} cannot be sent again; kept are {oldest} to {self._last_id}"
                if self._last_id
                else f"no event was sent yet, so none can come after number {after}"
            )
        if self._listener is not None:
            self._listener.replaced = True
            self._listener.wake()
        self._listener = _Listener()
        again = [text for number, text in self._kept if after is None or number > after]
        return self._stream(self._listener, again, until)

    async def _stream(
        self, listener: _Listener, again: Sequence[bytes], until: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        try:
            yield COMMENT + b"".join(again)
            while not listener.replaced:
                if self._waiting:
                    yield self._take()
                elif self._end is not None:
                    yield self._end
                    return
                elif until():
                    return
                elif not await listener.woken():
                    yield COMMENT
        finally:
            if self._listener is listener:
                self._listener = None

    def _put_delta(self, program: int, delta: Delta) -> None:
        place = (program, delta.node, delta.index)
        growing = self._growing.get(place)
        if growing is None:
            self._growing[place] = growing = []
            self._waiting.append((program, growing))
        growing.append(delta)

    def _take(self) -> bytes:
        """What waits, as it is sent. It is kept at least until more is taken."""
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        events = [ProgramEvent(number, _joined(event)) for number, event in self._waiting]
        self._forget_waiting()
        groups = [events] if self._together else [[event] for event in events]
        return b"".join(map(self._keep, groups))

    def _keep(self, events: Sequence[ProgramEvent]) -> bytes:
        self._last_id += 1
        text = self._render(self._last_id, events)
        self._kept.append((self._last_id, text))
        self._kept_bytes += len(text)
        return text

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._growing.clear()
        self._waiting_bytes = 0


class _Listener:
    """Who is sent the events now."""

    def __init__(self) -> None:
        self.replaced = False
        self._wake = asyncio.Event()
        self._news = False

    def wake(self) -> None:
        self._news = True
        self._wake.set()

    async def woken(self) -> bool:
        """Wait for a call of `wake`; False when none came for `HEARTBEAT_S`."""
        alarm = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._wake.set)
        await self._wake.wait()
        alarm.cancel()
        self._wake.clear()
        news, self._news = self._news, False
        return news


def _joined(event: Event | list[Delta]) -> Event:
    """Pieces of one answer as one."""
    if not isinstance(event, list):
        return event
    if len(event) == 1:
        return event[0]
    text = "".join(delta.text for delta in event)
    logprobs = tuple(logprob for delta in event for logprob in delta.logprobs)
    return Delta(event[0].node, text, event[0].index, logprobs)


def _size(event: Event) -> int:
    """About how many bytes an event takes."""
    if isinstance(event, Delta):
        return 100 + len(event.text) + 100 * len(event.logprobs)
    if isinstance(event, Generated):
        return 300 + sum(
            len(answer.text) + 8 * answer.completion_tokens + 100 * len(answer.logprobs or answer.prompt_logprobs or ())
            for answer in event.completions
        )
    return 300 + (sum(16 * len(score.token_ids) for score in event.scores) if isinstance(event, Selected) else 0)


def _nothing() -> None:
    """Nobody is told."""
