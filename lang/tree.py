"""The request tree that a program builds, and what has come back for each of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.program import (
    Delta,
    Event,
    Fork,
    Generate,
    Generated,
    Node,
    Reference,
    Select,
    Selected,
    Text,
    referred_text,
)

from .errors import NodeFailedError, error_named
from .source_line import SourceLine

ROOT_BRANCH = 0


@dataclass(slots=True)
class NodeRecord:
    """A node, where it came from, and how far it is.

    Attributes:
        node: the wire node.
        branch: the branch that appended it.
        line: the program's line that appended it.
        name: the variable it sets, if any.
        answers: the text so far of each of its answers, in pieces that join to it.
        done: its text is complete, or will never come.
        result: the event that ended it well, without its usage, which is counted in the nodes' records.
        failure: the error that ended it otherwise.
        values: what was read from its answers, by the variable that was read: each is built once.
        computed, reused, forced: tokens of this node's text, summed over all requests that went through it.
        tokens: of its text in one request's prompt, as far as one said so.
        first_computed: most of them that one request computed: the cache had the others before the program came.
    """

    node: Node
    branch: int
    line: SourceLine
    name: str | None = None
    answers: list[list[str]] = field(default_factory=lambda: [[]])
    done: bool = False
    result: Generated | Selected | None = None
    failure: Exception | None = None
    values: dict[object, Any] = field(default_factory=dict)
    computed: int = 0
    reused: int = 0
    forced: int = 0
    tokens: int = 0
    first_computed: int = 0

    @property
    def text(self) -> str:
        """Its text so far; of several answers, the first one's: the branch goes on with it."""
        return "".join(self.answers[0])

    @property
    def title(self) -> str:
        """The call as a person would name it, such as ``gen("grade")``."""
        name = "" if self.name is None else f'"{self.name}"'
        kind = _KINDS.get(type(self.node), type(self.node).__name__.lower())
        return f"{kind}({name})"


class ProgramTree:
    """All nodes of one program. Not thread-safe: `Execution` guards it with its lock.

    Ids count from 0 in the order of appending, so a parent's id is less than its children's.
    """

    def __init__(self) -> None:
        self.records: list[NodeRecord] = []
        self.fork_branches: dict[int, tuple[int, ...]] = {}
        self.unfinished = 0
        self.first_failed: int | None = None
        self._branches = 1
        self._references: dict[int, list[NodeRecord]] = {}  # to nodes that are not done, by their ids

    def add(self, record: NodeRecord) -> None:
        """Add a record whose node has the id `next_id`."""
        node = record.node
        self.records.append(record)
        if isinstance(node, Generate | Select | Reference):
            self.unfinished += 1
        else:
            record.done = True
        if isinstance(node, Text):
            record.answers = [[node.text]]
        elif isinstance(node, Generate):
            record.answers = [[] for _ in range(node.n)]
        elif isinstance(node, Reference):
            self._references.setdefault(node.source, []).append(record)
            self._settle_references(node.source)

    @property
    def next_id(self) -> int:
        return len(self.records)

    def open_branches(self, fork: Fork) -> tuple[int, ...]:
        """Numbers for the branches that begin at `fork`."""
        self.fork_branches[fork.id] = tuple(range(self._branches, self._branches + fork.branches))
        self._branches += fork.branches
        return self.fork_branches[fork.id]

    def apply(self, event: Event) -> None:
        """Take an event of the backend's. One for a node that is done is ignored: it was aborted here."""
        record = self.records[event.node]
        if record.done:
            return
        if isinstance(event, Delta):
            record.answers[event.index].append(event.text)
        elif isinstance(event, Generated):
            self._finish(record, event, *(completion.text for completion in event.completions))
        elif isinstance(event, Selected):
            self._finish(record, event, _choices(record.node)[event.choice])
        else:
            self.fail(event.node, error_named(event.kind, event.message))

    def fail(self, node_id: int, failure: Exception) -> None:
        """End a node with an error, unless it is done."""
        record = self.records[node_id]
        if record.done:
            return
        record.failure = failure
        record.done = True
        self.unfinished -= 1
        if self.first_failed is None:
            self.first_failed = node_id
        self._settle_references(node_id)

    def fail_unfinished(self, failure: Exception) -> None:
        """End every node that is not done with an error."""
        for record in self.records if self.unfinished else ():
            self.fail(record.node.id, failure)

    def error_of(self, node_id: int) -> NodeFailedError:
        """The error to raise where the value of a failed node is read, its cause set to the original."""
        record = self.records[node_id]
        origin = self._failed_first(record)
        reason = f"{type(origin.failure).__name__}: {origin.failure}"
        message = f"{origin.title} at {origin.line} failed: {reason}"
        if origin is not record:
            message = f"{record.title} at {record.line} could not start, since {message}"
        if record.line.code:
            message += f"\n    {record.line.code}"
        error = NodeFailedError(message, line=record.line, node=record.node)
        error.__cause__ = origin.failure
        return error

    def path(self, node_id: int | None) -> Iterator[NodeRecord]:
        """The records from a node up to the root."""
        while node_id is not None:
            record = self.records[node_id]
            yield record
            node_id = record.node.parent

    def check_invariants(self) -> None:
        """Ids are places, parents come first, every branch begins at one fork, and the counts are right."""
        begun = [branch for branches in self.fork_branches.values() for branch in branches]
        assert sorted(begun) == list(range(1, self._branches))
        for place, record in enumerate(self.records):
            assert record.node.id == place
            assert record.node.parent is None or 0 <= record.node.parent < place
            assert 0 <= record.branch < self._branches
        assert self.unfinished == sum(not record.done for record in self.records)

    def _finish(self, record: NodeRecord, event: Generated | Selected, *texts: str) -> None:
        for pieces, text in zip(record.answers, texts, strict=True):
            pieces.append(text[sum(map(len, pieces)) :])
        record.result = msgspec.structs.replace(event, usage=())  # it names all nodes above, and is counted here
        record.done = True
        self.unfinished -= 1
        self._count(event)
        self._settle_references(record.node.id)

    def _count(self, event: Generated | Selected) -> None:
        """Add an event's usage to its nodes. Of a long branch it names hundreds, so this is written to be quick."""
        requests = _requests_of(event)
        records = self.records
        for usage in event.usage:
            counted = records[usage.node]
            computed, reused = usage.computed, usage.reused
            counted.reused += reused
            tokens = computed + reused if requests == 1 else round((computed + reused) / requests)
            if tokens > counted.tokens:
                counted.tokens = tokens
            if usage.forced:
                counted.forced += usage.forced
            if computed:
                counted.computed += computed
                counted.first_computed = max(counted.first_computed, min(computed, counted.tokens))

    def _settle_references(self, source_id: int) -> None:
        """End the references to a node, and those to them, if it is done."""
        sources = [source_id]
        while sources:
            source = self.records[sources.pop()]
            for record in self._references.pop(source.node.id, ()) if source.done else ():
                self._refer(record, source)
                sources.append(record.node.id)

    def _refer(self, record: NodeRecord, source: NodeRecord) -> None:
        """End a reference with its source's text, or its source's error."""
        record.done = True
        self.unfinished -= 1
        record.failure = source.failure
        if source.failure is None and isinstance(record.node, Reference):
            try:
                record.answers[0].append(referred_text(record.node, source.text))
            except PalmetteError as error:
                record.failure = error
        if record.failure is not None and self.first_failed is None:
            self.first_failed = record.node.id

    def _failed_first(self, record: NodeRecord) -> NodeRecord:
        """The failed node nearest to the root on the record's path: what failed after it only follows from it."""
        return [above for above in self.path(record.node.id) if above.failure is not None][-1]


def _requests_of(event: Generated | Selected) -> int:
    """How many requests the usage of an event is summed over: all of them had the whole prompt."""
    if isinstance(event, Generated) and len(event.completions) == 1:
        return 1
    summed = sum(usage.computed + usage.reused for usage in event.usage if usage.node != event.node)
    prompt = event.prompt_tokens if isinstance(event, Selected) else event.completions[0].prompt_tokens
    return max(1, round(summed / prompt)) if prompt else 1


def _choices(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Select):
        raise TypeError(f"a backend reported a choice for node {node.id}, which is no select: {node!r}")
    return node.choices


_KINDS: dict[type, str] = {Generate: "gen", Select: "select", Reference: "ref"}
