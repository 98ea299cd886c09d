"""A backend with scripted answers: exact and instant, for tests of programs and of Palmette."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from palmette.runtime.program import Delta, Event, Failed, Generate, Generated, ModelInfo, Node, Select, Selected, Text

from .backend import EventSink
from .mock_script import Answers, Script, ScriptError, count_tokens
from .mock_usage import UsageCounter
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class MockCall:
    """One generation or select that a `MockBackend` was asked for: the text before it, its node, its answers."""

    prompt: str
    node: Generate | Select
    answers: tuple[str, ...]


class MockBackend:
    """Answers from a script instead of a model.

    Tokens are counted as words, each with the space before it; a node's tokens are computed the first time that a
    branch goes through it and reused afterwards. An answer is given whole, whatever max_tokens is, up to a stop string.

    Args:
        answers: a list gives them in the order in which generations begin; a mapping gives the answer of the first
            pattern (a regular expression) that is found in the prompt; a function gets the prompt and the node. A
            select takes its choice from a list or mapping too, and where that has nothing for it, its first choice. An
            answer that breaks the node's constraint is reported as the node's error.
        latency_s: time before each piece of a streamed answer, and before the end of an answer.
        piece_length: characters in a piece of a streamed answer.
        chat_template: Jinja source of the chat template; None is the plain ``ROLE: text`` form.
        bos_token, eos_token: as the chat template uses them.

    Attributes:
        calls: every generation and select, in the order in which they began.
        messages: the nodes of every extend message, in order.

    >>> backend = MockBackend({"capital of France": "Paris", "capital of Italy": "Rome"})
    >>> import palmette as pt
    >>> @pt.function
    ... def capital(s: pt.ProgramState, country: str) -> None:
    ...     s += f"The capital of {country} is " + pt.gen("city")
    >>> capital.run("Italy", backend=backend)["city"]
    'Rome'
    """

    def __init__(
        self,
        answers: Answers = (),
        *,
        latency_s: float = 0.0,
        piece_length: int = 4,
        chat_template: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        if piece_length < 1 or latency_s < 0:
            raise ValueError(f"piece_length={piece_length} must be at least 1 and latency_s={latency_s} at least 0")
        self.calls: list[MockCall] = []
        self.messages: list[tuple[Node, ...]] = []
        self.latency_s = latency_s
        self.piece_length = piece_length
        self.script = Script(answers)
        self.timeline = Timeline()
        self._model_info = ModelInfo(
            name="mock",
            context_length=1 << 20,
            vocab_size=1 << 15,
            chat_template=chat_template,
            bos_token=bos_token,
            eos_token=eos_token,
        )

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    def open(self, events: EventSink) -> MockSession:
        """Open an empty tree; its events come from the backend's own thread."""
        return MockSession(self, events)


@dataclass(slots=True)
class _Entry:
    """A node, what hangs on it, and the text of its branch up to and with it, once that is known."""

    node: Node
    children: list[_Entry] = field(default_factory=list)
    text: str | None = None
    failed: ScriptError | None = None


class MockSession:
    """One program on a `MockBackend`. All of its work is done on the timeline's thread."""

    def __init__(self, backend: MockBackend, events: EventSink) -> None:
        self._backend = backend
        self._events = events
        self._entries: dict[int, _Entry] = {}
        self._usage = UsageCounter()
        self._open = threading.RLock()  # held while an event is delivered, so that close() waits for it
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        self._backend.messages.append(tuple(nodes))
        self._later(0.0, lambda: self._place(nodes))

    def close(self) -> None:
        with self._open:
            self._closed = True

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._backend.timeline.after(delay_s, lambda: self._unless_closed(action))

    def _unless_closed(self, action: Callable[[], None]) -> None:
        with self._open:
            if not self._closed:
                action()

    def _place(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            entry = self._entries[node.id] = _Entry(node)
            if node.parent is not None:
                self._entries[node.parent].children.append(entry)
            self._advance([entry])

    def _advance(self, entries: Sequence[_Entry]) -> None:
        """Start these nodes, and what follows them, as far as the text before them is known."""
        stack = deque(entries)
        while stack:
            entry = stack.popleft()
            before, failed = self._before(entry.node)
            if failed is not None:
                self._fail(entry, failed)
            elif before is not None:
                self._begin(entry, before)
                stack.extendleft(reversed(entry.children if entry.text is not None else []))

    def _before(self, node: Node) -> tuple[str | None, ScriptError | None]:
        if node.parent is None:
            return "", None
        parent = self._entries[node.parent]
        return parent.text, parent.failed

    def _begin(self, entry: _Entry, before: str) -> None:
        node = entry.node
        if isinstance(node, Generate | Select):
            try:
                events, text = self._answer(node, before)
            except ScriptError as error:
                self._fail(entry, error)
            else:
                self._play(entry, before + text, iter(events))
        else:
            entry.text = before + (node.text if isinstance(node, Text) else "")

    def _answer(self, node: Generate | Select, prompt: str) -> tuple[list[Event], str]:
        """The events of the node's answer, and the text that it adds to the branch."""
        if isinstance(node, Select):
            choice = self._backend.script.choose(node, prompt)
            answers: tuple[str, ...] = (node.choices[choice],)
        else:
            answers = tuple(self._backend.script.answer(node, prompt) for _ in range(node.n))
        self._backend.calls.append(MockCall(prompt, node, answers))
        path = [entry.node for entry in self._path(node)]
        if isinstance(node, Select):
            usage = self._usage.of(path, count_tokens(answers[0]))
            return [Selected(node.id, choice, usage=usage)], answers[0]
        completions = tuple(self._backend.script.completion(node, text, path) for text in answers)
        usage = self._usage.of(path, sum(completion.completion_tokens for completion in completions))
        texts = [completion.text for completion in completions]
        return [*self._deltas(node, texts), Generated(node.id, completions, usage)], texts[0]

    def _path(self, node: Node) -> Iterator[_Entry]:
        """The entries from a node up to the root."""
        entry: _Entry | None = self._entries[node.id]
        while entry is not None:
            yield entry
            entry = None if entry.node.parent is None else self._entries[entry.node.parent]

    def _deltas(self, node: Generate, texts: Sequence[str]) -> Iterator[Delta]:
        length = self._backend.piece_length
        for index, text in enumerate(texts if node.stream else ()):
            yield from (Delta(node.id, text[at : at + length], index) for at in range(0, len(text), length))

    def _play(self, entry: _Entry, text: str, events: Iterator[Event]) -> None:
        """Report one event after each latency; after the last one the node is done."""
        event = next(events, None)
        if event is not None:
            self._later(self._backend.latency_s, lambda: self._report(entry, text, event, events))

    def _report(self, entry: _Entry, text: str, event: Event, events: Iterator[Event]) -> None:
        self._events(event)
        if isinstance(event, Delta):
            self._play(entry, text, events)
        else:
            entry.text = text
            self._advance(entry.children)

    def _fail(self, entry: _Entry, error: ScriptError) -> None:
        """Fail the node and everything that waits for it."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            entry.failed = error
            if isinstance(entry.node, Generate | Select):
                self._events(Failed(entry.node.id, error.kind, str(error)))
            stack.extend(reversed(entry.children))
