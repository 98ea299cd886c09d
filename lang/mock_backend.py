"""A backend with scripted answers: exact and instant, for tests of programs and of Palmette."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from palmette.runtime.errors import RequestError
from palmette.runtime.program import (
    Delta,
    Event,
    Fork,
    Generate,
    Generated,
    Join,
    ModelInfo,
    Node,
    Select,
    Selected,
)

from .backend import EventSink
from .mock_script import Answers, Script, ScriptError, completion
from .mock_usage import UsageCounter, count_tokens, tokens_of
from .timeline import Timeline
from .tree_walk import Step, TreeWalk


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


class MockSession:
    """One program on a `MockBackend`. All of its work is done on the timeline's thread."""

    def __init__(self, backend: MockBackend, events: EventSink) -> None:
        self._backend = backend
        self._events = events
        self._walk = TreeWalk(self._begin, events)
        self._usage = UsageCounter()
        self._open = threading.RLock()  # held while an event is delivered, so that close() waits for it
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        self._backend.messages.append(tuple(nodes))
        self._later(0.0, lambda: self._walk.add(nodes))

    def close(self) -> None:
        with self._open:
            self._closed = True

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._backend.timeline.after(delay_s, lambda: self._unless_closed(action))

    def _unless_closed(self, action: Callable[[], None]) -> None:
        with self._open:
            if not self._closed:
                action()

    def _begin(self, node: Generate | Select) -> None:
        path = [step for step in self._walk.path(node) if not isinstance(step.node, Fork | Join)]
        try:
            events, text = self._choose(node, path) if isinstance(node, Select) else self._generate(node, path)
        except ScriptError as error:
            self._walk.fail(node.id, error.kind, str(error))
        except RequestError as error:
            self._walk.fail(node.id, "RequestError", str(error))
        else:
            self._play(node, text, iter(events))

    def _choose(self, node: Select, path: Sequence[Step]) -> tuple[list[Event], str]:
        """The events of a select's answer, and the text that it adds to the branch."""
        prompt = _text(path)
        choice = self._backend.script.choose(node, prompt)
        text = node.choices[choice]
        self._backend.calls.append(MockCall(prompt, node, (text,)))
        usage = (*self._usage.of_prompt(_nearest_first(path)), self._usage.of_answer(node.id, count_tokens(text)))
        return [Selected(node.id, choice, usage=usage)], text

    def _generate(self, node: Generate, path: Sequence[Step]) -> tuple[list[Event], str]:
        """The events of a generation's answers, and the text that it adds to the branch."""
        if node.n < 1:
            raise RequestError(f"n must be at least 1, not {node.n}")
        prompt = _text(path)
        answers = tuple(self._backend.script.answer(node, prompt) for _ in range(node.n))
        self._backend.calls.append(MockCall(prompt, node, answers))
        prompt_usage = self._usage.of_prompt(_nearest_first(path))
        prompt_tokens = sum(usage.computed + usage.reused for usage in prompt_usage)
        words = node.params.prompt_logprobs is not None
        prompt_words = [token for step in path for token in tokens_of(step.text)] if words else []
        completions = tuple(completion(node, text, prompt_tokens, prompt_words) for text in answers)
        computed = sum(each.completion_tokens for each in completions)
        usage = (*prompt_usage, self._usage.of_answer(node.id, computed))
        texts = [each.text for each in completions]
        return [*self._deltas(node, texts), Generated(node.id, completions, usage)], texts[0]

    def _deltas(self, node: Generate, texts: Sequence[str]) -> Iterator[Delta]:
        length = self._backend.piece_length
        for index, text in enumerate(texts if node.stream else ()):
            yield from (Delta(node.id, text[at : at + length], index) for at in range(0, len(text), length))

    def _play(self, node: Generate | Select, text: str, events: Iterator[Event]) -> None:
        """Report one event after each latency; after the last one the node is done."""
        event = next(events, None)
        if event is not None:
            self._later(self._backend.latency_s, lambda: self._report(node, text, event, events))

    def _report(self, node: Generate | Select, text: str, event: Event, events: Iterator[Event]) -> None:
        self._events(event)
        if isinstance(event, Delta):
            self._play(node, text, events)
        else:
            self._walk.finish(node.id, text)


def _text(path: Sequence[Step]) -> str:
    return "".join(step.text for step in path)


def _nearest_first(path: Sequence[Step]) -> list[tuple[int, str]]:
    """Ids and texts of a path's nodes."""
    return [(step.node.id, step.text) for step in reversed(path)]
