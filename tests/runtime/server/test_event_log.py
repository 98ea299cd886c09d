"""Events on their way to a listener: what is joined, kept, sent again and given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.channel import ProgramEvent
from palmette.runtime.program import Delta, Event, Failed, TokenLogprob
from palmette.runtime.server import event_log
from palmette.runtime.server.event_log import EventLog, EventsLostError


def rendered(number: int, events: Sequence[ProgramEvent]) -> bytes:
    return msgspec.json.encode((number, events)) + b"\n"


def new_log(*, together: bool = True, most_bytes: int = 1 << 20) -> tuple[EventLog, list[int]]:
    """A log, and a list that grows when it is full."""
    full: list[int] = []
    return EventLog(rendered, together=together, most_bytes=most_bytes, on_full=lambda: full.append(1)), full


def decoded(chunks: Sequence[bytes]) -> list[tuple[int, list[ProgramEvent]]]:
    """Ids and events of what a listener was sent."""
    lines = b"".join(chunks).replace(event_log.COMMENT, b"").split(b"\n")
    return [msgspec.json.decode(line, type=tuple[int, list[ProgramEvent]]) for line in lines if line]


async def taken(stream: AsyncIterator[bytes]) -> list[tuple[int, list[ProgramEvent]]]:
    """What a listener has been sent now, without waiting for more."""
    chunks = []
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        while True:
            chunks.append(await asyncio.wait_for(anext(stream), 0.05))
    return decoded(chunks)


pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.text(max_size=3)), max_size=30)


@given(pieces=pieces, cuts=st.sets(st.integers(0, 30)), together=st.booleans())
def test_texts_are_whole_however_listeners_come_and_go(
    pieces: list[tuple[int, int, str]], cuts: set[int], together: bool
) -> None:
    """Pieces are joined while they wait, and a listener that is cut off and comes back misses and doubles nothing."""

    async def run() -> list[tuple[int, list[ProgramEvent]]]:
        log, _ = new_log(together=together)
        seen: dict[int, list[ProgramEvent]] = {}
        for place, (program, index, text) in enumerate(pieces):
            log.put(program, Delta(7, text, index, (TokenLogprob(place, -1.0),)))
            if place in cuts:
                seen.update(await first(log.listen(max(seen, default=0))))
        log.put(0, Failed(8, "EngineError", "end"))
        seen.update(await first(log.listen(max(seen, default=0))))
        return sorted(seen.items())

    async def first(stream: AsyncIterator[bytes]) -> list[tuple[int, list[ProgramEvent]]]:
        chunks = [await anext(stream), await anext(stream)]
        await stream.aclose()  # type: ignore[attr-defined]  # a generator
        return decoded(chunks)

    found = asyncio.run(run())
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    events = [event for _, group in found for event in group]
    assert isinstance(events[-1].event, Failed)
    for program in range(3):
        for index in range(2):
            mine = [e.event for e in events if e.program == program and isinstance(e.event, Delta)]
            texts = [delta for delta in mine if delta.index == index]
            assert "".join(delta.text for delta in texts) == "".join(
                text for number, place, text in pieces if (number, place) == (program, index)
            )
            places = [entry.token_id for delta in texts for entry in delta.logprobs]
            assert places == [n for n, piece in enumerate(pieces) if piece[:2] == (program, index)]


def test_what_waits_is_one_event_for_each_answer() -> None:
    """A thousand pieces of two answers that nobody took are two events."""

    async def steps() -> None:
        log, _ = new_log()
        for _ in range(500):
            log.put(1, Delta(7, "a"))
            log.put(1, Delta(7, "b", 1))
        [(number, events)] = await taken(log.listen(None))
        assert number == 1
        assert [(each.event.index, len(each.event.text)) for each in events] == [(0, 500), (1, 500)]  # type: ignore[union-attr]

    asyncio.run(steps())


def test_old_events_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound the oldest of what was sent goes, and asking for it says what there is."""
    monkeypatch.setattr(event_log, "KEPT_BYTES", 200)

    async def steps() -> None:
        log, _ = new_log(together=False)
        stream = log.listen(None)
        for number in range(20):
            log.put(0, Failed(number, "EngineError", "x" * 50))
            await anext(stream)
        kept = [number for number, _ in await taken(log.listen(None))]
        assert 0 < len(kept) < 5
        with pytest.raises(EventsLostError, match="kept are"):
            log.listen(3)
        assert [number for number, _ in await taken(log.listen(kept[0]))] == kept[1:] + [20][: kept[-1] < 20]

    asyncio.run(steps())


def test_a_log_is_full_once_too_much_waits() -> None:
    """Bytes that wait are counted, with a listener or without; ending with discard forgets them."""

    async def steps() -> None:
        log, full = new_log(most_bytes=1000)
        while not full:
            log.put(0, Delta(1, "x" * 100))
        log.end(b"END", discard=True)
        log.put(0, Delta(1, "more"))
        chunks = [chunk async for chunk in log.listen(None)]
        assert chunks == [event_log.COMMENT, b"END"]

    asyncio.run(steps())


def test_silence_is_broken_by_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with nothing to tell sends a comment, and the next event still comes at once."""
    monkeypatch.setattr(event_log, "HEARTBEAT_S", 0.02)

    async def steps() -> None:
        log, _ = new_log()
        stream = log.listen(None)
        assert [await anext(stream) for _ in range(3)] == [event_log.COMMENT] * 3
        event: Event = Failed(1, "EngineError", "x")
        asyncio.get_running_loop().call_later(0.01, log.put, 0, event)
        chunks = [await anext(stream), await anext(stream)]
        assert any(b"EngineError" in chunk for chunk in chunks)

    asyncio.run(steps())
