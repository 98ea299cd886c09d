"""The rules of the Trace Event Format that a trace viewer relies on, written from its specification."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

Event = dict[str, Any]

METADATA = {
    "process_name": "name",
    "process_labels": "labels",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def checked_events(text: str) -> list[Event]:
    """The events of a trace that keeps the rules: known phases, slices that nest, arrows that meet."""
    trace = json.loads(text, parse_constant=lambda name: refuse(f"{name} is not JSON"))
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    for event in events:
        check_fields(event)
    check_nesting(events)
    check_arrows(events)
    check_names(events)
    return events


def refuse(message: str) -> None:
    raise AssertionError(message)


def check_fields(event: Event) -> None:
    """Every event has a name, a phase, a process and a track; a complete one a duration; an arrow's ends an id."""
    assert isinstance(event["name"], str)
    assert event["ph"] in ("X", "M", "s", "f")
    assert all(isinstance(event[field], int) for field in ("pid", "tid"))
    assert isinstance(event["ts"], int | float)
    assert event["ts"] >= 0
    if event["ph"] == "X":
        assert event["dur"] > 0
        assert isinstance(event["args"], dict)
    elif event["ph"] == "M":
        assert set(event["args"]) == {METADATA[event["name"]]}
    else:
        assert isinstance(event["id"], int)
        assert event["cat"]
        assert event["ph"] == "s" or event["bp"] == "e"


def check_nesting(events: list[Event]) -> None:
    """On one track, two slices are apart or one holds the other: viewers draw no other."""
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        open_ends: list[int] = []
        for begin, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def check_arrows(events: list[Event]) -> None:
    """Each arrow has one beginning and one end, in this order, and both bind to a slice of their track."""
    ends: defaultdict[int, list[Event]] = defaultdict(list)
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["ph"] in ("s", "f"):
            ends[event["id"]].append(event)
            around = [each for each in slices if each["tid"] == event["tid"]]
            assert any(each["ts"] <= event["ts"] < each["ts"] + each["dur"] for each in around)
    for pair in ends.values():
        begin, end = pair
        assert (begin["ph"], end["ph"], begin["ts"] <= end["ts"]) == ("s", "f", True)
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])


def check_names(events: list[Event]) -> None:
    """The process and each of its tracks are named once, and the tracks are in order."""
    used = {event["tid"] for event in events if event["ph"] != "M"}
    named = [event["tid"] for event in events if event["name"] == "thread_name"]
    assert set(named) >= used
    assert len(named) == len(set(named))
    assert [event["name"] for event in events].count("process_name") == 1
