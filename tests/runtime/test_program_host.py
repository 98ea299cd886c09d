"""The programs of a process: their trees, with a scheduler that answers when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.aside import Aside

from palmette.runtime.messages import AbortRequest, NewRequest, RequestEnd, RequestFailure, RequestOutput
from palmette.runtime.program import Delta, Event, Failed, Generate, Generated, Node, Select, Text
from palmette.runtime.program_host import HostedProgram, ProgramHost
from palmette.runtime.request_tree import LONG_TEXT, RunAside
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.tokenizer import Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=6)
GONE = RequestFailure("EngineError", "gone")


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model_folder)


class Hosted:
    """A host, one program of it, and all that went out."""

    def __init__(self, tokenizer: Tokenizer, run_aside: RunAside | None = None) -> None:
        self.sent: list[NewRequest | AbortRequest] = []
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.host = ProgramHost(tokenizer, send=self.sent.append, seed=1, run_aside=run_aside)
        self.program: HostedProgram = self.host.open(self.take)

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    @property
    def asked(self) -> list[str]:
        """The requests that the scheduler was asked for, in order."""
        return [message.id for message in self.sent if isinstance(message, NewRequest)]

    @property
    def aborted(self) -> list[str]:
        return [message.id for message in self.sent if isinstance(message, AbortRequest)]

    def finish(self, request_id: str, text: str = "x") -> None:
        end = RequestEnd(finish_reason="length", text=text, output_tokens=1)
        self.host.deliver([RequestOutput(request_id, text=text, end=end)])

    def fail(self, request_id: str, kind: str, retry_after_s: float | None = None) -> None:
        end = RequestEnd(text="", failure=RequestFailure(kind, "why", retry_after_s))
        self.host.deliver([RequestOutput(request_id, end=end)])

    @property
    def failures(self) -> list[Failed]:
        return [event for event in self.events if isinstance(event, Failed)]


@pytest.fixture
def hosted(tokenizer: Tokenizer) -> Hosted:
    return Hosted(tokenizer)


def broken(event: Event) -> None:
    raise ValueError("a broken client")


@pytest.mark.parametrize("n", [1, 3])
def test_a_sink_that_raises_at_the_last_delta_ends_its_program_alone(hosted: Hosted, n: int) -> None:
    """The last text of an answer comes with its end: a client that breaks at the text leaves no end to take in."""
    other = hosted.host.open(hosted.events.append)
    other.extend([Generate(0, None, PARAMS)])
    hosted.program.extend([Generate(0, None, PARAMS, n=n, stream=True)])
    hosted.on_event = broken
    hosted.finish("p0/0.0")
    assert hosted.aborted == [f"p0/0.{index}" for index in range(n)]
    assert len(hosted.host) == 1
    hosted.finish("p1/0.0")
    assert isinstance(hosted.events[-1], Generated)


@pytest.mark.parametrize("close", [HostedProgram.close, HostedProgram.abort])
def test_a_sink_may_end_its_program_at_the_last_delta(hosted: Hosted, close: Callable[[HostedProgram], None]) -> None:
    """Closing and aborting from within an event are allowed, whichever event it is."""
    hosted.program.extend([Generate(0, None, PARAMS, stream=True), Generate(1, 0, PARAMS)])
    hosted.on_event = lambda event: close(hosted.program) if isinstance(event, Delta) else None
    hosted.finish("p0/0.0")
    assert hosted.asked == ["p0/0.0"]
    assert not any(isinstance(event, Generated) for event in hosted.events)


@pytest.mark.parametrize("breaks", [True, False])
def test_nothing_begins_in_a_program_that_its_sink_closed(hosted: Hosted, breaks: bool) -> None:
    """What would follow the node whose event closed the program is not asked for: nobody would abort it."""
    hosted.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS), Select(2, 1, ("a", "b"))])
    hosted.on_event = broken if breaks else lambda event: hosted.program.close()
    hosted.finish("p0/0.0")
    assert hosted.asked == ["p0/0.0"]


def test_nodes_behind_one_whose_failure_closed_the_program_do_not_begin(hosted: Hosted) -> None:
    """A node that cannot run fails while nodes are added; where that closes the program, the rest is not asked for."""
    hosted.on_event = broken
    hosted.program.extend([Generate(0, None, PARAMS, n=0), Generate(1, None, PARAMS)])
    assert hosted.asked == []


def test_a_sink_may_extend_its_program(hosted: Hosted) -> None:
    """A node that is added by the event of the node before it begins once."""

    def go_on(event: Event) -> None:
        if event.node == 0:
            hosted.program.extend([Text(1, 0, "and"), Generate(2, 1, PARAMS), Generate(3, 0, PARAMS)])

    hosted.on_event = go_on
    hosted.program.extend([Generate(0, None, PARAMS)])
    hosted.finish("p0/0.0")
    assert hosted.asked == ["p0/0.0", "p0/2.0", "p0/3.0"]
    hosted.finish("p0/2.0")
    hosted.finish("p0/3.0")
    assert [event.node for event in hosted.events] == [0, 2, 3]


@pytest.mark.parametrize("node", [Generate(0, None, PARAMS, n=3), Select(0, None, ("a", "b", "c"))])
def test_a_node_fails_for_the_first_reason(hosted: Hosted, node: Node) -> None:
    """Where one request of several fails, the others are aborted, and it is not their abort that is told."""
    hosted.program.extend([node])
    first, second, third = hosted.asked
    hosted.fail(second, "QueueFullError", 7.0)
    assert hosted.aborted == [first, third]
    hosted.fail(first, "RequestAbortedError")
    hosted.fail(third, "RequestAbortedError")
    assert hosted.failures == [Failed(0, "QueueFullError", "why", 7.0)]


def test_what_comes_after_everything_failed_is_dropped(hosted: Hosted) -> None:
    """News of requests that were under way when the engine failed reaches nobody."""
    hosted.program.extend([Generate(0, None, PARAMS, n=2, stream=True), Generate(1, 0, PARAMS)])
    hosted.host.fail_all(GONE)
    hosted.finish("p0/0.0")
    hosted.finish("p0/0.1")
    assert [(event.node, event.kind) for event in hosted.failures] == [(0, "EngineError"), (1, "EngineError")]
    assert len(hosted.events) == 2


@pytest.mark.parametrize("ending", ["close", "abort", "fail_all"])
def test_a_program_that_ends_while_its_job_is_made_asks_for_nothing(tokenizer: Tokenizer, ending: str) -> None:
    """The job comes too late, whatever ended the program."""
    aside = Aside()
    hosted = Hosted(tokenizer, aside)
    hosted.program.extend([Text(0, None, "x " * LONG_TEXT), Generate(1, 0, PARAMS), Generate(2, 1, PARAMS)])
    if ending == "close":
        hosted.program.close()
    elif ending == "abort":
        hosted.program.abort()
    else:
        hosted.host.fail_all(GONE)
    aside.run_next()
    assert hosted.sent == []
    assert [event.node for event in hosted.events] == ([] if ending == "close" else [1, 2])


def test_a_job_that_cannot_be_made_fails_its_node_and_those_after_it(tokenizer: Tokenizer) -> None:
    """An error of the other thread is the node's."""
    aside = Aside()
    hosted = Hosted(tokenizer, aside)
    hosted.program.extend([Text(0, None, "x " * LONG_TEXT), Generate(1, 0, PARAMS, n=0), Generate(2, 1, PARAMS)])
    aside.run_next()
    assert [event.node for event in hosted.failures] == [1, 2]


def test_many_choices_are_made_into_tokens_aside(tokenizer: Tokenizer) -> None:
    """Every choice is encoded together with the prompt: a hundred of them on a short prompt are a long text."""
    aside = Aside()
    hosted = Hosted(tokenizer, aside)
    prompt, choices = Text(0, None, "x" * (LONG_TEXT // 100)), tuple(f"choice {i}" for i in range(100))
    hosted.program.extend([prompt, Select(1, 0, choices), Select(2, 0, choices[:2])])
    assert len(hosted.asked) == 2
    aside.run_next()
    assert len(hosted.asked) == 102


class Refusing:
    """Sends a few messages, and raises from then on."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.sent: list[NewRequest | AbortRequest] = []

    def __call__(self, message: NewRequest | AbortRequest) -> None:
        if isinstance(message, NewRequest):
            self.left -= 1
            if self.left < 0:
                raise OverflowError("too large")
        self.sent.append(message)


def test_requests_that_cannot_be_sent_fail_their_node_and_leave_nothing(tokenizer: Tokenizer) -> None:
    """Where the second of three cannot be sent, the first is aborted, and the node ends once."""
    send, events = Refusing(1), list[Event]()
    host = ProgramHost(tokenizer, send=send)
    program = host.open(events.append)
    program.extend([Generate(0, None, PARAMS, n=3), Generate(1, 0, PARAMS)])
    assert [type(message) for message in send.sent] == [NewRequest, AbortRequest]
    assert [event.node for event in events] == [0, 1]
    assert "too large" in events[0].message  # type: ignore[union-attr]  # a failure
    host.deliver([RequestOutput("p0/0.0", end=RequestEnd(text="", failure=GONE))])
    program.close()
    assert len(events) == len(send.sent) == 2


def test_a_defect_in_one_program_ends_that_program_alone(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception while news is taken in fails the nodes of its tree, not the thread that serves all of them."""
    hosted.program.extend([Generate(0, None, PARAMS, stream=True)])
    other = list[Event]()
    hosted.host.open(other.append).extend([Generate(0, None, PARAMS)])

    def explode(job: object, output: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("palmette.runtime.jobs.GenerateJob.delta", explode)
    hosted.finish("p0/0.0")
    hosted.finish("p1/0.0")
    assert "a defect" in hosted.failures[0].message
    assert isinstance(other[0], Generated)
    assert "a defect" in caplog.text
