"""Who runs the programs of `programs.py`: a client that sends trees, and one that sends a request for each call.

Both run the same programs and pay the same for the way to the engine and back: half of a round trip each way. A tree's
client pays it where its program waits for something. A caller's pays it after every call, since it puts the next
prompt together itself; what can run side by side it asks for at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from benchmarks.programs_tree import Answer, Pause, Read
from benchmarks.programs_workload import Item, Texts

from palmette.runtime.messages import USUAL_OPTIONS, SessionOptions
from palmette.runtime.program import Event, Failed, Generate, Generated, Node, Reference, Select, Selected, Tokens
from palmette.runtime.service import EventSink
from palmette.runtime.tokenizer import Tokenizer


class Time(Protocol):
    """When things happen, at the clients."""

    def now(self) -> float: ...

    def at(self, time_s: float, happening: Callable[[float], None]) -> None:
        """Have something happen, which is told the time."""


class Session(Protocol):
    """A program on an engine."""

    def extend(self, nodes: Sequence[Node]) -> None: ...

    def close(self) -> None: ...


class Place(Protocol):
    """What programs are run on."""

    @property
    def time(self) -> Time: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def open(self, events: EventSink, options: SessionOptions) -> Session: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that was run: when its client began it and had all of its answers, and what these were."""

    item: Item
    began_s: float
    ended_s: float
    answers: dict[int, tuple[int, ...]]

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


Done = Callable[[Finished], None]


class Client(ABC):
    """Runs one program. Its methods are told the time at the client."""

    def __init__(self, engine: Place, item: Item, texts: Texts, round_trip_s: float, done: Done) -> None:
        self.engine = engine
        self.way_s = round_trip_s / 2
        self._item = item
        self._tree, self._program = item.begin(texts)
        self._done = done
        self._answers: dict[int, Answer] = {}
        self._waits: Sequence[int] = ()
        self._resume = True  # go on with the program when all it waits for is there
        self._began_s = 0.0

    def start(self, now_s: float) -> None:
        """Begin the program."""
        self._began_s = now_s
        self.open(now_s)
        self._go_on(now_s, first=True)

    def arrive(self, event: Event, now_s: float) -> None:
        """An answer has come to the client."""
        if isinstance(event, Failed):
            raise AssertionError(f"node {event.node} of program {self._item} failed: {event.message}")
        assert isinstance(event, Generated | Selected)
        self._answers[event.node] = event
        self.know(event, now_s)
        if all(node in self._answers for node in self._waits):
            self._go_on(now_s)

    def _go_on(self, now_s: float, *, first: bool = False) -> None:
        """Run the program to its next wait, or find that it has ended."""
        if not self._resume:
            self.close(now_s)
            answers = {node: _tokens_of(answer) for node, answer in self._answers.items()}
            self._done(Finished(self._item, self._began_s, now_s, answers))
            return
        try:
            wait = next(self._program) if first else self._program.send([self._answers[node] for node in self._waits])
        except StopIteration:
            self._resume, wait = False, Read(tuple(self._tree.awaited))
        nodes = self._tree.take()
        if nodes:
            self.send(nodes, now_s)
        if isinstance(wait, Pause):
            self._waits = ()
            self.engine.time.at(now_s + wait.seconds, self._go_on)
            return
        self._waits = wait.nodes
        if all(node in self._answers for node in self._waits):
            self._go_on(now_s)

    @abstractmethod
    def open(self, now_s: float) -> None:
        """The program begins."""

    @abstractmethod
    def send(self, nodes: Sequence[Node], now_s: float) -> None:
        """The program has appended nodes."""

    @abstractmethod
    def know(self, event: Answer, now_s: float) -> None:
        """An answer has come, before the program is told."""

    @abstractmethod
    def close(self, now_s: float) -> None:
        """The program has all of its answers."""


class TreeClient(Client):
    """Sends the program's tree, as it grows, to one session: what `palmette.lang` does."""

    _session: Session

    def open(self, now_s: float) -> None:
        self._session = self.engine.open(self._take, SessionOptions(program=self._item.kind))

    def send(self, nodes: Sequence[Node], now_s: float) -> None:
        self.engine.time.at(now_s + self.way_s, lambda _: self._session.extend(nodes))

    def know(self, event: Answer, now_s: float) -> None:
        """The engine knows it too, and has gone on already."""

    def close(self, now_s: float) -> None:
        self.engine.time.at(now_s + self.way_s, lambda _: self._session.close())

    def _take(self, event: Event) -> None:
        now_s = self.engine.time.now() + self.way_s
        self.engine.time.at(now_s, lambda at_s: self.arrive(event, at_s))


@dataclass(slots=True)
class _Known:
    """A node as a caller keeps it: once it is done, the tokens of its path and the text of its own."""

    node: Node
    followers: list[_Known] = field(default_factory=list)
    path: tuple[int, ...] | None = None
    text: str = ""
    asked: bool = False


class CallClient(Client):
    """Keeps the program's tree to itself, and asks for one generation or select after the other, prompts whole."""

    def open(self, now_s: float) -> None:
        self._known: dict[int, _Known] = {}

    def send(self, nodes: Sequence[Node], now_s: float) -> None:
        for node in nodes:
            known = self._known[node.id] = _Known(node)
            for before in self._awaited(node):
                before.followers.append(known)
            self._advance(known, now_s)

    def know(self, event: Answer, now_s: float) -> None:
        known = self._known[event.node]
        if isinstance(event, Generated):
            known.text = event.completions[0].text
            self._settle(known, event.completions[0].token_ids, now_s)
        elif isinstance(known.node, Select):
            known.text = known.node.choices[event.choice]
            self._settle(known, self._encoded(known.text), now_s)

    def close(self, now_s: float) -> None:
        """Every call was a session of its own."""

    def _awaited(self, node: Node) -> list[_Known]:
        ids = [node.parent, node.source] if isinstance(node, Reference) else [node.parent]
        return [self._known[each] for each in ids if each is not None]

    def _advance(self, known: _Known, now_s: float) -> None:
        """Go on with a node whose text may be known by now."""
        awaited = self._awaited(known.node)
        if known.path is not None or known.asked or any(before.path is None for before in awaited):
            return
        node = known.node
        if isinstance(node, Generate | Select):
            known.asked = True
            self._ask(known, _path(self._parent(known)), now_s)
        elif isinstance(node, Tokens):
            self._settle(known, node.token_ids, now_s)
        elif isinstance(node, Reference):
            self._settle(known, self._encoded(self._known[node.source].text), now_s)
        else:
            self._settle(known, (), now_s)

    def _settle(self, known: _Known, own: tuple[int, ...], now_s: float) -> None:
        known.path = _path(self._parent(known)) + own
        for follower in known.followers:
            self._advance(follower, now_s)

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self.engine.tokenizer.encode_text(text))

    def _parent(self, known: _Known) -> _Known | None:
        return None if known.node.parent is None else self._known[known.node.parent]

    def _ask(self, known: _Known, prompt: tuple[int, ...], now_s: float) -> None:
        call = _Call(self, known.node, prompt)
        self.engine.time.at(now_s + self.way_s, call.begin)


class _Call:
    """One call: a session of one prompt and one node."""

    _session: Session

    def __init__(self, client: CallClient, node: Node, prompt: tuple[int, ...]) -> None:
        assert isinstance(node, Generate | Select)
        self._client = client
        self._nodes = [Tokens(0, None, prompt), msgspec.structs.replace(node, parent=0)]

    def begin(self, now_s: float) -> None:
        """It has come to the engine."""
        self._session = self._client.engine.open(self._take, USUAL_OPTIONS)
        self._session.extend(self._nodes)

    def _take(self, event: Event) -> None:
        client = self._client
        self._session.close()
        client.engine.time.at(client.engine.time.now() + client.way_s, lambda at_s: client.arrive(event, at_s))


def _path(known: _Known | None) -> tuple[int, ...]:
    if known is None:
        return ()
    assert known.path is not None
    return known.path


def _tokens_of(answer: Answer) -> tuple[int, ...]:
    """The tokens of an answer; of a select the place of its choice."""
    return answer.completions[0].token_ids if isinstance(answer, Generated) else (answer.choice,)
