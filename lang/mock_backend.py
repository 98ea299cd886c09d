"""A backend with scripted answers: exact and instant, for tests of programs and of Palmette."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

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
    Text,
)

from .backend import EventSink
from .mock_latency import Latency, LatencyOf
from .mock_logprobs import mock_scores
from .mock_script import Answers, MockCall, Script, ScriptError, completion
from .mock_usage import UsageCounter, count_tokens, tokens_of
from .session_clock import SessionClock
from .timeline import Timeline
from .tree_walk import Step, TreeWalk

TimedEvents = Iterator[tuple[float, Event]]
"""Events in order, each with the seconds since its node began."""


class MockBackend:
    """Answers from a script instead of a model.

    Tokens are counted as words, each with the space before it; a node's tokens are computed the first time that a
    branch goes through it and reused afterwards. An answer is given whole, whatever max_tokens is, up to its first stop
    string or match of a stop pattern. Log-probabilities are made up, always the same for the same words.

    Args:
        answers: a list gives them in the order in which generations begin; a mapping gives the answer of the first
            pattern (a regular expression) that is found in the prompt, which is a text, a list of texts of which each
            is given once, or a function; a function gets the prompt and the node. A select takes its choice from any
            of these too, and where a list or mapping has nothing for it, its first choice. An answer that breaks the
            node's constraint is reported as the node's error, and so is what a function raises.
        latency_s: seconds before an answer begins, as a service needs to be reached and to read the prompt; or a
            function of the `MockCall` that returns them.
        token_latency_s: seconds for each token of an answer; the pieces of a streamed one come as they are written.
        piece_length: characters in a piece of a streamed answer.
        record: False keeps neither calls nor messages, for batches so large that their prompts would fill the memory.
        chat_template: Jinja source of the chat template; None is the plain ``ROLE: text`` form.
        bos_token, eos_token: as the chat template uses them.
        special_tokens, sampling_defaults: what a model would say of itself; see `ModelInfo`.

    Attributes:
        calls: every generation and select, in the order in which they began.
        messages: the nodes of every extend message, in order.
        round_trips: how many extend messages there were: how often programs went to the backend.

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
        latency_s: LatencyOf = 0.0,
        token_latency_s: float = 0.0,
        piece_length: int = 4,
        record: bool = True,
        chat_template: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Sequence[str] = (),
        sampling_defaults: Mapping[str, float] | None = None,
    ) -> None:
        if piece_length < 1:
            raise ValueError(f"piece_length={piece_length} must be at least 1")
        self.calls: list[MockCall] = []
        self.messages: list[tuple[Node, ...]] = []
        self.round_trips = 0
        self.latency = Latency(latency_s, token_latency_s)
        self.piece_length = piece_length
        self._record = record
        self._counting = threading.Lock()
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

    def open(self, events: EventSink, *, program: str | None = None) -> MockSession:
        """Open an empty tree; its events come from the backend's own thread."""
        return MockSession(self, events)

    def token_owners(self, texts: Sequence[Text], *, start: bool) -> list[int]:
        """For each token of constant text that stands together, the id of the node in which it begins."""
        return [text.id for text in texts for _ in tokens_of(text.text)]

    def note_message(self, nodes: Sequence[Node]) -> None:
        """Count an extend message."""
        with self._counting:
            self.round_trips += 1
            if self._record:
                self.messages.append(tuple(nodes))

    def note_call(self, call: MockCall) -> None:
        """Keep a generation or select that begins."""
        if self._record:
            self.calls.append(call)


class MockSession:
    """One program on a `MockBackend`. All of its work is done on the timeline's thread."""

    def __init__(self, backend: MockBackend, events: EventSink) -> None:
        self._backend = backend
        self._events = events
        self._walk = TreeWalk(self._begin, events)
        self._usage = UsageCounter()
        self._clock = SessionClock()
        self._open = threading.RLock()  # held while an event is delivered, so that close() waits for it
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        self._backend.note_message(nodes)
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
        self._clock.begin(node.id)
        path = [step for step in self._walk.path(node) if not isinstance(step.node, Fork | Join)]
        try:
            events, text = self._choose(node, path) if isinstance(node, Select) else self._generate(node, path)
        except ScriptError as error:
            self._walk.fail(node.id, error.kind, str(error))
        except RequestError as error:
            self._walk.fail(node.id, "RequestError", str(error))
        else:
            self._play(node, text, 0.0, events)

    def _choose(self, node: Select, path: Sequence[Step]) -> tuple[TimedEvents, str]:
        """The events of a select's answer, and the text that it adds to the branch."""
        prompt = _text(path)
        choice = self._backend.script.choose(node, prompt)
        text = node.choices[choice]
        call = MockCall(prompt, node, (text,))
        self._backend.note_call(call)
        usage = (*self._usage.of_prompt(_nearest_first(path)), self._usage.of_answer(node.id, count_tokens(text)))
        selected = Selected(node.id, choice, mock_scores(node, choice), usage=usage)
        return iter([(self._backend.latency.first_s(call), selected)]), text

    def _generate(self, node: Generate, path: Sequence[Step]) -> tuple[TimedEvents, str]:
        """The events of a generation's answers, and the text that it adds to the branch."""
        if node.n < 1:
            raise RequestError(f"n must be at least 1, not {node.n}")
        prompt = _text(path)
        call = MockCall(prompt, node, tuple(self._backend.script.answer(node, prompt) for _ in range(node.n)))
        self._backend.note_call(call)
        prompt_usage = self._usage.of_prompt(_nearest_first(path))
        prompt_tokens = sum(usage.computed + usage.reused for usage in prompt_usage)
        words = node.params.prompt_logprobs is not None
        prompt_words = [token for step in path for token in tokens_of(step.text)] if words else []
        completions = tuple(completion(node, text, prompt_tokens, prompt_words) for text in call.answers)
        computed = sum(each.completion_tokens for each in completions)
        usage = (*prompt_usage, self._usage.of_answer(node.id, computed))
        end = Generated(node.id, completions, usage)
        return self._timed(node, end, self._backend.latency.first_s(call)), completions[0].text

    def _timed(self, node: Generate, end: Generated, first_s: float) -> TimedEvents:
        """The deltas of a generation that streams, and its end."""
        latency = self._backend.latency
        if node.stream:
            yield from latency.deltas(node.id, end.completions, first_s, self._backend.piece_length)
        yield latency.end_s(first_s, max(each.completion_tokens for each in end.completions)), end

    def _play(self, node: Generate | Select, text: str, now_s: float, events: TimedEvents) -> None:
        """Report one event after another, each at its time; after the last one the node is done."""
        when_s, event = next(events)
        self._later(when_s - now_s, lambda: self._report(node, text, when_s, event, events))

    def _report(self, node: Generate | Select, text: str, now_s: float, event: Event, events: TimedEvents) -> None:
        self._events(self._clock.timed(event))
        if isinstance(event, Delta):
            self._play(node, text, now_s, events)
        else:
            self._walk.finish(node.id, text)


def _text(path: Sequence[Step]) -> str:
    return "".join(step.text for step in path)


def _nearest_first(path: Sequence[Step]) -> list[tuple[int, str]]:
    """Ids and texts of a path's nodes."""
    return [(step.node.id, step.text) for step in reversed(path)]
