"""Which nodes of a program can run, for a backend that answers one node at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from palmette.runtime.errors import RequestError
from palmette.runtime.program import Failed, Fork, Generate, Join, Node, Reference, Select, Text, Tokens, referred_text


@dataclass(frozen=True, slots=True)
class Step:
    """A node whose text is known, and that text."""

    node: Node
    text: str


@dataclass(slots=True)
class _Place:
    """A node, what it waits for and what waits for it. `text` is what it adds to its branch, once that is known."""

    node: Node
    awaited: tuple[_Place, ...]
    followers: list[_Place] = field(default_factory=list)
    begun: bool = False
    text: str | None = None
    failure: Failed | None = None
    step: Step | None = None  # made when it is first asked for, as every later node of the branch asks again


class TreeWalk:
    """Goes through a growing request tree, in the order in which texts become known. Not thread-safe.

    Args:
        begin: called with a generation or select whose prompt is known; its answer is told by `finish` or `fail`.
        report: called with the `Failed` event of every node that ends so.
    """

    def __init__(self, begin: Callable[[Generate | Select], None], report: Callable[[Failed], None]) -> None:
        self._begin = begin
        self._report = report
        self._places: dict[int, _Place] = {}

    def add(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references.

        Where an id is taken, or a parent or source is unknown, none of them is added and all of them end as failed.
        """
        try:
            self._check(nodes)
        except RequestError as error:
            for node in nodes:
                self._report(Failed(node.id, "RequestError", str(error)))
            return
        for node in nodes:
            place = self._places[node.id] = _Place(node, self._awaited(node))
            for before in place.awaited:
                before.followers.append(place)
            self._advance([place])

    def finish(self, node_id: int, text: str) -> None:
        """A generation or select has given `text`; what follows it goes on."""
        place = self._places[node_id]
        place.text = text
        self._advance(place.followers)

    def fail(self, node_id: int, kind: str, message: str, retry_after_s: float | None = None) -> None:
        """A node failed, and everything that waits for it."""
        self._fail(self._places[node_id], Failed(node_id, kind, message, retry_after_s))

    def path(self, node: Node) -> list[Step]:
        """What stands before a node that has begun, from the root on."""
        steps: list[Step] = []
        parent = node.parent
        while parent is not None:
            place = self._places[parent]
            step = place.step
            if step is None:
                step = place.step = Step(place.node, place.text or "")
            steps.append(step)
            parent = place.node.parent
        return steps[::-1]

    def line_after(self, node: Node) -> list[Text | Generate]:
        """The texts and generations that follow a node one after the other, as far as they are known.

        The line ends where the branch forks, where anything else stands, and where a role begins or ends.
        """
        line: list[Text | Generate] = []
        while True:
            after = [each.node for each in self._places[node.id].followers if each.node.parent == node.id]
            if len(after) != 1 or not isinstance(after[0], Text | Generate):
                return line
            node = after[0]
            if isinstance(node, Text) and node.template:
                return line
            line.append(node)

    def _check(self, nodes: Sequence[Node]) -> None:
        known = self._places
        new: set[int] = set()
        for node in nodes:
            if node.id in known or node.id in new or node.id < 0:
                raise RequestError(f"a node has the id {node.id}, which is taken or negative; ids count up from 0")
            needed = [node.parent, node.source if isinstance(node, Reference) else None]
            unknown = [other for other in needed if other is not None and other not in known and other not in new]
            if unknown:
                raise RequestError(f"node {node.id} continues or refers to node {unknown[0]}, which does not exist")
            new.add(node.id)

    def _awaited(self, node: Node) -> tuple[_Place, ...]:
        parent = () if node.parent is None else (self._places[node.parent],)
        return (*parent, self._places[node.source]) if isinstance(node, Reference) else parent

    def _advance(self, places: Sequence[_Place]) -> None:
        """Start these nodes, and what follows them, as far as what they wait for is known."""
        waiting = deque(places)
        while waiting:
            place = waiting.popleft()
            if place.begun or place.failure is not None:
                continue  # a reference comes here by its parent and by its source
            failed = next((before.failure for before in place.awaited if before.failure is not None), None)
            if failed is not None:
                self._fail(place, failed)
            elif all(before.text is not None for before in place.awaited):
                self._start(place)
                waiting.extendleft(reversed(place.followers if place.text is not None else []))

    def _start(self, place: _Place) -> None:
        place.begun = True
        node = place.node
        if isinstance(node, Generate | Select):
            self._begin(node)
            return
        try:
            place.text = self._constant_text(node)
        except RequestError as error:
            self._fail(place, Failed(node.id, "RequestError", str(error)))

    def _constant_text(self, node: Text | Tokens | Fork | Join | Reference) -> str:
        if isinstance(node, Text):
            return node.text
        if isinstance(node, Reference):
            source = self._places[node.source]
            return referred_text(node, None if isinstance(source.node, Fork | Join) else source.text)
        if isinstance(node, Tokens):
            raise RequestError(
                f"node {node.id} holds {len(node.token_ids)} token ids, and this backend takes text only; "
                "append text instead, or run the program on an engine or an HttpBackend"
            )
        return ""

    def _fail(self, place: _Place, failure: Failed) -> None:
        waiting = [place]
        while waiting:
            place = waiting.pop()
            if place.failure is not None:
                continue
            node_id = place.node.id
            place.failure = Failed(node_id, failure.kind, failure.message, failure.retry_after_s)
            if isinstance(place.node, Generate | Select | Reference):
                self._report(place.failure)
            waiting.extend(reversed(place.followers))
