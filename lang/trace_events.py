"""A trace in the Trace Event Format, which chrome://tracing and ui.perfetto.dev read.

A branch is a track. A call is a slice on its branch's track, and inside it are its queue, prefill and decode; calls
that a branch made side by side (the answers of one gen) stand on further tracks of it. Arrows lead from forks to their
branches, from branches to their join, and from an answer to where it is repeated.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palmette.runtime.program import Completion, Selected, Timings

from .trace_encoding import trace_encoded
from .trace_flows import Flow, flows_of

if TYPE_CHECKING:
    from .trace import RunTrace, TracedNode

TraceEvent = dict[str, Any]

PROGRAM = 1
"""The one process of a trace: the program."""

_CUT = 2000  # characters of a text that an event holds


def trace_json(trace: RunTrace) -> str:
    """The trace as a JSON object."""
    return trace_encoded(
        {
            "traceEvents": trace_events(trace),
            "displayTimeUnit": "ms",
            "otherData": {"program": trace.name, "model": trace.model, "writer": "palmette"},
        }
    )


def trace_events(trace: RunTrace) -> list[TraceEvent]:
    """All events of a trace. Times are whole microseconds since the program was opened."""
    calls = [call for node in trace.nodes for call in _calls(node)]
    calls.sort(key=lambda call: (call.begin, -call.end))
    tracks, mates = _Tracks(), _Mates([call.timings for call in calls])
    slices, of_node = list[TraceEvent](), dict[int, tuple[int, _Call]]()
    for call in calls:
        track = tracks.free_track(call)
        of_node.setdefault(call.node.view.id, (track, call))
        slices += _slices(call, track, mates)
    flows = [event for number, flow in enumerate(flows_of(trace), 1) for event in _arrow(number, flow, of_node)]
    return [*_names(trace, tracks), *slices, *flows]


@dataclass(frozen=True, slots=True)
class _Call:
    """One answer of a gen, or a select. Times are whole microseconds."""

    node: TracedNode
    place: int
    timings: Timings
    answer: Completion | None

    @property
    def begin(self) -> int:
        return _us(self.timings.start_s)

    @property
    def end(self) -> int:
        return max(self.begin + 1, _us(self.timings.end_s))

    @property
    def name(self) -> str:
        return self.node.title if self.place == 0 else f"{self.node.title} [{self.place}]"


class _Tracks:
    """The tracks of a trace: for each branch, as many as it has calls at once."""

    def __init__(self) -> None:
        self.owners: list[tuple[int, int]] = []
        """Of each track, from number 1 on: its branch, and which of the branch's tracks it is."""
        self._ends: list[int] = []
        self._of_branch: dict[int, list[int]] = {}

    def free_track(self, call: _Call) -> int:
        """The first track of the call's branch on which nothing runs when it begins."""
        branch = call.node.view.branch
        tracks = self._of_branch.setdefault(branch, [])
        track = next((track for track in tracks if self._ends[track - 1] <= call.begin), None)
        if track is None:
            self.owners.append((branch, len(tracks)))
            self._ends.append(0)
            track = len(self.owners)
            tracks.append(track)
        self._ends[track - 1] = call.end
        return track


class _Mates:
    """How many of a program's calls ran in the same steps."""

    def __init__(self, timings: Sequence[Timings]) -> None:
        self._firsts = sorted(each.first_step for each in timings if each.first_step is not None)
        self._lasts = sorted(each.last_step for each in timings if each.last_step is not None)

    def count(self, first_step: int, last_step: int) -> int:
        """Other calls that ran in one of these steps."""
        return bisect_right(self._firsts, last_step) - bisect_left(self._lasts, first_step) - 1


def _calls(node: TracedNode) -> Iterator[_Call]:
    if isinstance(node.result, Selected) and node.result.timings is not None:
        yield _Call(node, 0, node.result.timings, None)
    for place, answer in enumerate(node.answers):
        if answer.timings is not None:
            yield _Call(node, place, answer.timings, answer)


def _slices(call: _Call, track: int, mates: _Mates) -> Iterator[TraceEvent]:
    """A call, and inside it what it waited for and did."""
    timings, kind = call.timings, call.node.view.kind
    yield _slice(call.name, kind, call.begin, call.end, track, {**_texts(call), **_facts(call, mates)})
    ran = min(call.end, _us(timings.start_s + timings.queue_s))
    first = call.end
    if timings.first_token_s is not None:
        first = min(call.end, max(ran, _us(timings.start_s + timings.first_token_s)))
    work = "score" if kind == "select" else "prefill" if timings.first_token_s is not None else "answer"
    for part, begin, end in (("queue", call.begin, ran), (work, ran, first), ("decode", first, call.end)):
        if end > begin:
            yield _slice(part, part, begin, end, track, {})


def _texts(call: _Call) -> TraceEvent:
    result, answer = call.node.result, call.answer
    if answer is not None:
        return {
            "text": answer.text[:_CUT],
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "reused_tokens": answer.cached_tokens,
            "output_tokens": answer.completion_tokens,
            "forced_tokens": answer.forced_tokens,
        }
    assert isinstance(result, Selected)
    return {
        "text": call.node.view.text[:_CUT],
        "choice": result.choice,
        "prompt_tokens": result.prompt_tokens,
        "reused_tokens": result.cached_tokens,
    }


def _facts(call: _Call, mates: _Mates) -> TraceEvent:
    node, timings = call.node, call.timings
    facts: TraceEvent = {"node": node.view.id, "branch": node.view.branch, "line": str(node.line)}
    facts["queue_ms"] = round(1000 * timings.queue_s, 3)
    if timings.first_token_s is not None:
        facts["first_token_ms"] = round(1000 * timings.first_token_s, 3)
    if timings.first_step is not None and timings.last_step is not None:
        facts |= {"first_step": timings.first_step, "last_step": timings.last_step}
        facts["mates_of_this_program"] = mates.count(timings.first_step, timings.last_step)
    if timings.batch_size is not None:
        facts["mean_batch_size"] = round(timings.batch_size, 2)
    return facts


def _slice(name: str, kind: str, begin: int, end: int, track: int, facts: TraceEvent) -> TraceEvent:
    """A complete event."""
    times = {"ts": begin, "dur": end - begin}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": PROGRAM, "tid": track, "args": facts}


def _arrow(number: int, flow: Flow, of_node: dict[int, tuple[int, _Call]]) -> Iterator[TraceEvent]:
    """The two ends of an arrow: inside the slice that it leaves, and at the beginning of the one that it leads to."""
    (source_track, source), (target_track, target) = of_node[flow.source], of_node[flow.target]
    common = {"name": flow.kind, "cat": "tree", "id": number, "pid": PROGRAM}
    left = max(source.begin, min(source.end - 1, target.begin))
    yield {**common, "ph": "s", "ts": left, "tid": source_track}
    yield {**common, "ph": "f", "bp": "e", "ts": max(left, target.begin), "tid": target_track}


def _names(trace: RunTrace, tracks: _Tracks) -> Iterator[TraceEvent]:
    """What the process and its tracks are called, and their order."""
    yield _metadata("process_name", 0, {"name": f"program {trace.name}"})
    yield _metadata("process_labels", 0, {"labels": trace.model})
    order = sorted(range(len(tracks.owners)), key=tracks.owners.__getitem__)
    for rank, place in enumerate(order):
        branch, lane = tracks.owners[place]
        name = f"branch {branch}" + (f" ({lane + 1})" if lane else "")
        yield _metadata("thread_name", place + 1, {"name": name})
        yield _metadata("thread_sort_index", place + 1, {"sort_index": rank})


def _metadata(name: str, track: int, facts: TraceEvent) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": PROGRAM, "tid": track, "ts": 0, "args": facts}


def _us(seconds: float) -> int:
    return round(1e6 * seconds)
