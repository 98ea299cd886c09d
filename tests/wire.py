"""Talks to a backend in its wire form: whole trees in, the final event of every node out."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from palmette.lang.backend import Backend
from palmette.runtime.program import Delta, Event, Generate, Generated, Node, Select, Text
from palmette.runtime.sampling_params import SamplingParams

TIMEOUT_S = 300.0


class Listener:
    """Collects a session's events and waits for the last one."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.done: dict[int, Event] = {}
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            if isinstance(event, Delta):
                self.deltas.append(event)
            else:
                assert event.node not in self.done, f"node {event.node} ended twice"
                self.done[event.node] = event
            self._changed.notify_all()

    def wait(self, nodes: Sequence[int]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.done.keys() >= set(nodes), TIMEOUT_S), "no answer in time"


def run_tree(backend: Backend, nodes: Sequence[Node]) -> Listener:
    """Send one tree, wait until all of its generations and selects have ended, and close it."""
    listener = Listener()
    session = backend.open(listener)
    session.extend(nodes)
    listener.wait([node.id for node in nodes if isinstance(node, Generate | Select)])
    session.close()
    return listener


def complete(backend: Backend, prompts: Sequence[str], params: SamplingParams, *, together: bool = True) -> list[str]:
    """The text generated after each prompt, all in one tree or one by one."""
    if not together:
        return [complete(backend, [prompt], params)[0] for prompt in prompts]
    nodes: list[Node] = []
    for index, prompt in enumerate(prompts):
        nodes += [Text(2 * index, None, prompt), Generate(2 * index + 1, 2 * index, params)]
    done = run_tree(backend, nodes).done
    return [_text(done[2 * index + 1]) for index in range(len(prompts))]


def _text(event: Event) -> str:
    assert isinstance(event, Generated), event
    return event.completions[0].text
