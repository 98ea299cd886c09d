"""A trace as one HTML page. Its files are in static/; all that a program wrote is data, and never markup."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.runtime.program import Completion, Selected, Timings

from .answer_tokens import answer_tokens
from .segments import SEGMENT_KINDS, answer_segments, cut
from .trace_encoding import trace_encoded

if TYPE_CHECKING:
    from .trace import RunTrace, TracedNode

MOST_CHARS = 100_000
"""Longer texts are cut, and say so: a browser shows what it holds."""

_SCRIPTS = ("trace.js", "trace_tree.js", "trace_timeline.js", "trace_details.js")


def trace_page(trace: RunTrace) -> str:
    """The page. It needs no other file and may load none."""
    style, script = _static("trace.css"), "\n".join(map(_static, _SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}';"
        " base-uri 'none'; form-action 'none'"
    )
    title = html.escape(f"{trace.name}: trace".encode(errors="replace").decode())
    parts = {"policy": policy, "title": title, "style": style, "script": script, "data": _data(trace)}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _static("trace.html"))


@cache
def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """What lets a browser run this source and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _data(trace: RunTrace) -> str:
    """The trace as JSON that may stand in an HTML element: nothing in it ends the element or opens one."""
    traced = {node.view.id: node for node in trace.nodes}
    data = {
        "name": trace.name,
        "summary": _summary(trace),
        "kinds": SEGMENT_KINDS,
        "nodes": [_node(traced[view.id]) for view in trace.view.nodes],
    }
    return trace_encoded(data).replace("<", "\\u003c").replace(">", "\\u003e")


def _summary(trace: RunTrace) -> str:
    view = trace.view
    counts = [trace.model] if trace.model else []
    counts.append(f"{len(view.nodes)} nodes")
    for status in ("running", "failed"):
        there = sum(node.status == status for node in view.nodes)
        counts += [f"{there} {status}"] if there else []
    counts.append(f"tokens: {view.computed} computed, {view.reused} reused, {view.forced} forced")
    ends = [timings.end_s for _, timings in trace.timed()]
    counts += [_time(max(ends))] if ends else []
    return " · ".join(counts)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _node(node: TracedNode) -> dict[str, Any]:
    """A node as the page's scripts read it; times in milliseconds."""
    view = node.view
    told = {
        "id": view.id,
        "parent": view.parent,
        "branch": view.branch,
        "kind": view.kind,
        "label": view.label,
        "status": view.status,
        "line": f"{Path(node.line.file).name}:{node.line.line}",
        "code": node.line.code,
        "segments": cut(view.segments, MOST_CHARS),
        "length": len(view.text),
        "computed": view.computed,
        "reused": view.reused,
        "forced": view.forced,
        "calls": list(map(_answer, node.answers)),
    }
    if len(view.text) > MOST_CHARS:
        told["left"] = len(view.text) - MOST_CHARS
    if view.error:
        told["error"] = view.error[:MOST_CHARS]
    if isinstance(node.result, Selected):
        told |= _select(node, node.result)
    return told


def _answer(answer: Completion) -> dict[str, Any]:
    told = {
        "prompt": answer.prompt_tokens,
        "reused": answer.cached_tokens,
        "output": answer.completion_tokens,
        "forced": answer.forced_tokens,
        "ended": _ended(answer),
        "segments": cut(answer_segments(answer.text, answer.forced_ranges), MOST_CHARS),
        **_times(answer.timings),
    }
    if len(answer.text) <= MOST_CHARS and (tokens := answer_tokens(answer)):
        told["tokens"] = [(each.text, each.spelled, each.logprob, int(each.forced), each.top) for each in tokens]
    return told


def _ended(answer: Completion) -> str:
    return f"stop {answer.matched!r}" if isinstance(answer.matched, str) else answer.finish_reason


def _select(node: TracedNode, result: Selected) -> dict[str, Any]:
    call = {
        "prompt": result.prompt_tokens,
        "reused": result.cached_tokens,
        "segments": cut(node.view.segments, MOST_CHARS),
        **_times(result.timings),
    }
    scores = [
        {"text": choice, "logprobs": score.logprobs} for choice, score in zip(node.choices, result.scores, strict=False)
    ]
    return {"calls": [call], "choice": result.choice, **({"scores": scores} if scores else {})}


def _times(timings: Timings | None) -> dict[str, Any]:
    if timings is None:
        return {}
    told: dict[str, Any] = {
        "start": _ms(timings.start_s),
        "end": _ms(timings.end_s),
        "queue": _ms(timings.queue_s),
    }
    if timings.first_token_s is not None:
        told["first"] = _ms(timings.first_token_s)
    if timings.first_step is not None and timings.last_step is not None:
        told["steps"] = (timings.first_step, timings.last_step)
    if timings.batch_size is not None:
        told["batch"] = timings.batch_size
    return told


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
