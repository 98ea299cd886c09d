"""A backend with scripted answers: exact and instant, for tests of programs and of Palmette."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from palmette.runtime.errors import RequestError
from palmette.runtime.program import (
    Delta,
    Event,
    Failed,
    Fork,
    Generate,
    Generated,
    Join,
    ModelInfo,
    Node,
    Reference,
    Select,
    Selected,
    Text,
    referred_text,
)

from .backend import EventSink
from .mock_script import Answers, Script, ScriptError, completion
from .mock_usage import UsageCounter, count_tokens, tokens_of
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
    branch goes through it and reused afterwards. An answer is given whole, whatever max_tokens is, up to its first stop
    string or match of a stop pattern. Log-probabilities are made up, always the same for the same words.

    Args:
        answers: a list gives them in the order in which generations begin; a mapping gives the answer of the first
            pattern (a regular expression) that is found in the prompt; a function gets the prompt and the node. A
            select takes its choice from a list or mapping too, and where that has nothing for it, its first choice. An
            answer that breaks the node's constraint is reported as the node's error.
        latency_s: time before each piece of a streamed answer, and before the end of an answer.
        piece_length: characters in a piece of a streamed answer.
        chat_template: Jinja source of the chat template; None is the plain ``ROLE: text`` form.
        bos_token, eos_token: as the chat template uses them.
        special_tokens, sampling_defaults: what a model would say of itself; see `ModelInfo`.

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
        special_tokens: Sequence[str] = (),
        sampling_defaults: Mapping[str, float] | None = None,
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
            special_tokens=tuple(special_tokens),
            sampling_defaults=dict(sampling_defaults or {}),
        )

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    def open(self, events: EventSink) -> MockSession:
        """Open an empty tree; its events come from the backend's own thread."""
        return MockSession(self, events)


@dataclass(slots=True)
class _Entry:
    """A node, what it waits for and what waits for it, and the text that it adds.

    `text` is that of its branch up to and with it, once it is known.
    """

    node: Node
    has_text: bool
    awaited: tuple[_Entry, ...]
    followers: list[_Entry] = field(default_factory=list)
    added: str = ""
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
            entry = self._entries[node.id] = _Entry(node, not isinstance(node, Fork | Join), self._awaited(node))
            for before in entry.awaited:
                before.followers.append(entry)
            self._advance([entry])

    def _awaited(self, node: Node) -> tuple[_Entry, ...]:
        """The entries that must be done before a node: its parent, and what it refers to."""
        parent = () if node.parent is None else (self._entries[node.parent],)
        return (*parent, self._entries[node.source]) if isinstance(node, Reference) else parent

    def _advance(self, entries: Sequence[_Entry]) -> None:
        """Start these nodes, and what follows them, as far as what they wait for is known."""
        stack = deque(entries)
        while stack:
            entry = stack.popleft()
            if entry.text is not None or entry.failed is not None:
                continue  # a reference that came here by its parent and by its source
            for before in entry.awaited:
                if before.failed is not None:
                    self._fail(entry, before.failed)
                    break
                if before.text is None:
                    break
            else:
                self._attempt(entry)
                stack.extendleft(reversed(entry.followers if entry.text is not None else []))

    def _attempt(self, entry: _Entry) -> None:
        try:
            self._begin(entry)
        except ScriptError as error:
            self._fail(entry, error)
        except RequestError as error:
            self._fail(entry, ScriptError("RequestError", str(error)))

    def _begin(self, entry: _Entry) -> None:
        node = entry.node
        if isinstance(node, Generate | Select):
            events, text = self._answer(node, self._before(entry))
            self._play(entry, text, iter(events))
            return
        if isinstance(node, Text):
            entry.added = node.text
        elif isinstance(node, Reference):
            source = self._entries[node.source]
            entry.added = referred_text(node, source.added if source.has_text else None)
        entry.text = self._before(entry) + entry.added

    def _before(self, entry: _Entry) -> str:
        """The text before a node that can start."""
        parent = entry.node.parent
        return "" if parent is None else self._entries[parent].text or ""

    def _answer(self, node: Generate | Select, prompt: str) -> tuple[list[Event], str]:
        """The events of the node's answer, and the text that it adds to the branch."""
        return self._choose(node, prompt) if isinstance(node, Select) else self._generate(node, prompt)

    def _choose(self, node: Select, prompt: str) -> tuple[list[Event], str]:
        choice = self._backend.script.choose(node, prompt)
        text = node.choices[choice]
        self._backend.calls.append(MockCall(prompt, node, (text,)))
        usage = (*self._usage.of_prompt(self._path(node)), self._usage.of_answer(node.id, count_tokens(text)))
        return [Selected(node.id, choice, usage=usage)], text

    def _generate(self, node: Generate, prompt: str) -> tuple[list[Event], str]:
        if node.n < 1:
            raise RequestError(f"n must be at least 1, not {node.n}")
        answers = tuple(self._backend.script.answer(node, prompt) for _ in range(node.n))
        self._backend.calls.append(MockCall(prompt, node, answers))
        path = self._path(node)
        prompt_usage = self._usage.of_prompt(path)
        prompt_tokens = sum(usage.computed + usage.reused for usage in prompt_usage)
        prompt_words = _words(path) if node.params.prompt_logprobs is not None else []
        completions = tuple(completion(node, text, prompt_tokens, prompt_words) for text in answers)
        computed = sum(each.completion_tokens for each in completions)
        usage = (*prompt_usage, self._usage.of_answer(node.id, computed))
        texts = [each.text for each in completions]
        return [*self._deltas(node, texts), Generated(node.id, completions, usage)], texts[0]

    def _path(self, node: Node) -> list[tuple[int, str]]:
        """Ids of the nodes before this one that have text, and what they add: the nearest first."""
        path = []
        place = node.parent
        while place is not None:
            entry = self._entries[place]
            if entry.has_text:
                path.append((place, entry.added))
            place = entry.node.parent
        return path

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
            entry.added, entry.text = text, self._before(entry) + text
            self._advance(entry.followers)

    def _fail(self, entry: _Entry, error: ScriptError) -> None:
        """Fail the node and everything that waits for it."""
        stack = [entry]
        while stack:
            entry = stack.pop()
            if entry.failed is not None:
                continue
            entry.failed = error
            if isinstance(entry.node, Generate | Select | Reference):
                self._events(Failed(entry.node.id, error.kind, str(error)))
            stack.extend(reversed(entry.followers))


def _words(path: Sequence[tuple[int, str]]) -> list[str]:
    """The tokens of a path, whose nearest node comes first."""
    return [token for _, text in reversed(path) for token in tokens_of(text)]
