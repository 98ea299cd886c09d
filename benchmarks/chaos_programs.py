"""Programs over HTTP: whole runs, ones that grow, channels of many, and ones that are left alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.chaos_client import Kind, Message, Visit, check, messages

DIGIT = {"kind": "regex", "source": "[1-5]"}
CHOICES = ["oak", "ash", "elm"]


def tree(visit: Visit, *, first: int = 0) -> list[dict[str, Any]]:
    """A generation, two branches after it, of which one is a select, and what comes after both; ids from `first` on."""
    words = {"max_tokens": visit.scale.words, "ignore_eos": True}
    nodes: list[dict[str, Any]] = [
        {"type": "text", "id": 0, "parent": None, "text": visit.prompt()},
        {"type": "generate", "id": 1, "parent": 0, "params": words, "stream": True},
        {"type": "fork", "id": 2, "parent": 1, "branches": 2},
        {"type": "text", "id": 3, "parent": 2, "text": " A grade from 1 to 5: "},
        {"type": "generate", "id": 4, "parent": 3, "params": {"max_tokens": 4}, "grammar": DIGIT},
        {"type": "text", "id": 5, "parent": 2, "text": " The tree is "},
        {"type": "select", "id": 6, "parent": 5, "choices": CHOICES},
        {"type": "join", "id": 7, "parent": 2, "ends": [4, 6]},
        {"type": "reference", "id": 8, "parent": 7, "source": 4},
        {"type": "generate", "id": 9, "parent": 8, "params": {"max_tokens": 4}, "n": 2},
    ]
    for node in nodes:
        for name in ("id", "parent", "source"):
            if node.get(name) is not None:
                node[name] += first
        if "ends" in node:
            node["ends"] = [end + first for end in node["ends"]]
    return nodes


class Events:
    """The events of one or several trees, as they come.

    Args:
        firsts: the first ids of the trees.
    """

    def __init__(self, firsts: Sequence[int] = (0,)) -> None:
        self._firsts = firsts
        self._ends: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, str] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take one in."""
        node = event["node"]
        if event["type"] == "delta":
            self._pieces[node] = self._pieces.get(node, "") + event["text"]
            return
        check(node not in self._ends, f"node {node} ends twice: {self._ends.get(node)}, {event}")
        self._ends[node] = event

    @property
    def complete(self) -> bool:
        return len(self._ends) >= 4 * len(self._firsts)

    def check(self) -> None:
        """Check that all is there and as it must be."""
        for first in self._firsts:
            ends = {node - first: event for node, event in self._ends.items() if first <= node < first + 10}
            kinds = {node: event["type"] for node, event in ends.items()}
            check(
                kinds == {1: "generated", 4: "generated", 6: "selected", 9: "generated"},
                f"the tree came to {sorted(ends.items())}",
            )
            text = ends[1]["completions"][0]["text"]
            check(self._pieces.get(first + 1) == text, f"pieces {self._pieces.get(first + 1)!r} of {text!r}")
            grade = ends[4]["completions"][0]["text"]
            check(re.fullmatch("[1-5]", grade) is not None, f"the grade is {grade!r}")
            check(0 <= ends[6]["choice"] < 3, str(ends[6]))
            check(len(ends[9]["completions"]) == 2, str(ends[9]))


def is_event(message: Message) -> bool:
    """Whether it is one of a node, and not of the program."""
    return isinstance(message.data, dict) and "node" in message.data


async def whole(visit: Visit) -> str:
    """A tree in one request, its events in the answer."""
    events = Events()
    body = {"nodes": tree(visit), "cache_salt": visit.salt(), "priority": visit.rng.randrange(3)}
    async with visit.stream("/programs?stream=1", body) as messages:
        async for message in messages:
            if is_event(message):
                events.take(message.data)
    events.check()
    return "ok"


async def growing(visit: Visit) -> str:
    """A tree that grows while it runs, to a listener who loses the connection once."""
    nodes, events, last = tree(visit), Events(), 0
    place = f"/programs/{(await visit.asked('/programs', {'nodes': nodes[:2]}, status=201))['id']}"
    async with visit.http.stream("GET", f"{place}/events") as response:
        async for message in messages(response):
            if is_event(message):
                events.take(message.data)
                last = message.id
                break
    await visit.asked(f"{place}/extend", {"nodes": nodes[2:]})
    headers = {"Last-Event-ID": str(last)}
    async with visit.http.stream("GET", f"{place}/events?until_done=1", headers=headers) as response:
        check(response.status_code == 200, f"the events were answered {response.status_code}")
        async for message in messages(response):
            if is_event(message):
                events.take(message.data)
    events.check()
    check((await visit.http.delete(place)).status_code == 200, "a program could not be deleted")
    check((await visit.http.delete(place)).status_code == 404, "a program could be deleted twice")
    return "ok"


async def channel(visit: Visit) -> str:
    """Several programs over one stream."""
    firsts = (0, 10, 20)
    numbers = range(1, 4)
    place = f"/channels/{(await visit.asked('/channels', {'idle_timeout_s': 60}, status=201))['id']}"
    said: list[dict[str, Any]] = []
    for number, first in zip(numbers, firsts, strict=True):
        said.append({"type": "open", "program": number})
        said.append({"type": "extend", "program": number, "nodes": tree(visit, first=first)})
    events = Events(firsts)
    for _ in range(2):  # what comes twice is taken once
        answer = await visit.http.put(f"{place}/messages/1", json=said)
        check(answer.status_code == 200, f"messages were answered {answer.status_code}: {answer.text[:300]}")
    async with visit.http.stream("GET", f"{place}/events") as response:
        async for message in messages(response):
            for pair in message.data if isinstance(message.data, list) else ():
                events.take(pair[1])
            if events.complete:
                break
    events.check()
    if visit.rng.random() < 0.5:
        await visit.http.put(f"{place}/messages/2", json=[{"type": "close", "program": number} for number in numbers])
    check((await visit.http.delete(place)).status_code == 200, "a channel could not be deleted")
    return "ok"


def endless(visit: Visit) -> list[dict[str, Any]]:
    """A tree that goes on for long."""
    params = {"max_tokens": visit.scale.endless, "ignore_eos": True}
    return [
        {"type": "text", "id": 0, "parent": None, "text": visit.prompt()},
        {"type": "generate", "id": 1, "parent": 0, "params": params, "stream": True, "n": 2},
        {"type": "select", "id": 2, "parent": 1, "choices": CHOICES},
    ]


async def aborted(visit: Visit) -> str:
    """A program that is aborted: each of its nodes fails, and it can go on."""
    place = f"/programs/{(await visit.asked('/programs', {'nodes': endless(visit)}, status=201))['id']}"
    await asyncio.sleep(visit.rng.random() * 0.2)
    await visit.asked(f"{place}/abort", {})
    await visit.asked(f"{place}/extend", {"nodes": tree(visit, first=10)})
    ends: dict[int, str] = {}
    async with visit.http.stream("GET", f"{place}/events?until_done=1") as response:
        async for message in messages(response):
            if is_event(message) and message.data["type"] != "delta":
                ends[message.data["node"]] = message.data["type"]
    wanted = {1: "failed", 2: "failed", 11: "generated", 14: "generated", 16: "selected", 19: "generated"}
    check(ends == wanted, f"after an abort: {ends}")
    check((await visit.http.delete(place)).status_code == 200, "a program could not be deleted")
    return "ok"


async def left(visit: Visit) -> str:
    """A program that nobody asks for again; it is dropped after a second."""
    await visit.asked("/programs", {"nodes": endless(visit), "idle_timeout_s": 1.0}, status=201)
    return "left"


async def left_channel(visit: Visit) -> str:
    """A channel whose client goes while its programs run."""
    place = f"/channels/{(await visit.asked('/channels', {'idle_timeout_s': 1.0}, status=201))['id']}"
    said = [{"type": "open", "program": 1}, {"type": "extend", "program": 1, "nodes": endless(visit)}]
    await visit.http.put(f"{place}/messages/1", json=said)
    async with visit.http.stream("GET", f"{place}/events") as response:
        async for _ in messages(response):
            break
    return "left"


async def hung_up(visit: Visit) -> str:
    """A whole run whose client goes."""
    async with visit.stream("/programs?stream=1", {"nodes": endless(visit)}) as messages:
        async for message in messages:
            if is_event(message):
                break
    return "gone"


PROGRAMS: dict[str, tuple[Kind, float]] = {
    "program, whole": (whole, 4),
    "program, growing": (growing, 4),
    "channel": (channel, 3),
    "program, aborted": (aborted, 2),
    "program, left": (left, 1),
    "program, hung up": (hung_up, 2),
    "channel, left": (left_channel, 1),
}
