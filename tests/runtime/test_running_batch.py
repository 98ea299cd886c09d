"""The rows of what runs."""

from __future__ import annotations

from tests.fakes import make_request

from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.request import Request
from palmette.runtime.running_batch import RunningBatch


def batch(num_pages: int, *lengths: int, slots: int = 4) -> tuple[RunningBatch, list[Request]]:
    """Running requests with prompts of these lengths, nothing computed yet."""
    memory = KVMemory(num_pages, 1)
    running = RunningBatch(memory, slots)
    requests = [make_request(str(i), [3 + i] * length) for i, length in enumerate(lengths)]
    for arrival, request in enumerate(requests):
        request.arrival = arrival
        memory.attach(request, memory.match(request))
        request.move_to("running")
        running.add(request)
    return running, requests


def rows(running: RunningBatch, tokens: int) -> list[tuple[str, int, int]] | None:
    """Rows as (id, start, count), computed at once; where one is sampled, a token is appended."""
    planned = running.rows(tokens)
    for row in planned or ():
        row.request.num_computed = row.stop
        if row.is_sampled:
            row.request.append(9)
    return None if planned is None else [(row.request.id, row.start, row.count) for row in planned]


def test_decodes_come_first() -> None:
    """Who samples goes before who prefills, each oldest first, within the tokens of the step."""
    running, requests = batch(100, 8, 2, 9)
    running._memory.reserve(requests[1], 2)
    requests[1].num_computed = 2
    requests[1].append(7)
    assert rows(running, 10) == [("1", 2, 1), ("0", 0, 8), ("2", 0, 1)]
    assert rows(running, 4) == [("0", 8, 1), ("1", 3, 1), ("2", 1, 2)]


def test_a_prefill_takes_what_memory_there_is() -> None:
    """A chunk is cut to the pages that can be had."""
    running, _ = batch(5, 8)
    assert rows(running, 100) == [("0", 0, 5)]


def test_nobody_can_go_on() -> None:
    """Two prefills that hold all pages between them are told from an idle batch: someone must be retracted."""
    running, requests = batch(6, 5, 5)
    assert rows(running, 3) == [("0", 0, 3)]
    running._memory.reserve(requests[1], 3)
    requests[1].num_computed = 3
    assert rows(running, 100) is None
    running.remove(requests[1])
    assert rows(running, 100) == [("0", 3, 2)]
    assert batch(6)[0].rows(100) == []


def test_a_decode_without_a_page_stops_all() -> None:
    """Rows are given to all decodes or to none."""
    running, requests = batch(4, 2, 2)
    assert rows(running, 10) == [("0", 0, 2), ("1", 0, 2)]
    assert rows(running, 10) is None
    assert [len(request.page_table.pages) for request in requests] == [2, 2]


def test_slots_are_used_again() -> None:
    """A request's slot is its own while it runs and another's after."""
    running, requests = batch(20, 2, 2, slots=2)
    assert running.free_slots == 0
    assert {request.slot for request in requests} == {0, 1}
    slot = requests[0].slot
    running.remove(requests[0])
    assert (requests[0].slot, running.free_slots) == (-1, 1)
    again = make_request("x", [3])
    again.move_to("running")
    running.add(again)
    assert again.slot == slot


def test_a_decode_takes_a_page_where_it_begins_one() -> None:
    """Pages are counted for every row, though only the first token of a page, or several tokens, can lack one."""
    memory = KVMemory(8, 4)
    running = RunningBatch(memory, 1)
    request = make_request("a", [3, 4, 5])
    memory.attach(request, memory.match(request))
    request.move_to("running")
    running.add(request)
    held = []
    for tokens in ([6], [7], [8, 9, 10, 11, 12], [13], [14], [15]):
        planned = running.rows(100)
        assert planned is not None
        request.num_computed = planned[0].stop
        for token in tokens:
            request.append(token)
        held.append(len(request.page_table.pages))
        assert request.num_computed <= 4 * held[-1]
    assert held == [1, 1, 2, 3, 3, 3]
