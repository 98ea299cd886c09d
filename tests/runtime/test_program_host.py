"""The programs of a process: their trees, with a scheduler that answers when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.aside import Aside

from palmette.runtime.errors import RequestError
from palmette.runtime.messages import (
    LONGEST_NAME,
    USUAL_OPTIONS,
    AbortRequest,
    DropPrefixes,
    EndProgram,
    FromTree,
    NewRequest,
    ProgramPlace,
    RequestEnd,
    RequestFailure,
    RequestOutput,
    SessionOptions,
)
from palmette.runtime.program import (
    Delta,
    Event,
    Failed,
    Fork,
    Generate,
    Generated,
    Join,
    Node,
    Reference,
    Select,
    SelectMethod,
    Text,
)
from palmette.runtime.program_host import HostedProgram, ProgramHost
from palmette.runtime.request_tree import LONG_TEXT, RunAside
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.tokenizer import Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=6)
UNCONDITIONAL: SelectMethod = "unconditional_likelihood_normalized"
GONE = RequestFailure("EngineError", "gone")


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model_folder)


class Hosted:
    """A host, one program of it, and all that went out."""

    def __init__(
        self, tokenizer: Tokenizer, run_aside: RunAside | None = None, options: SessionOptions = USUAL_OPTIONS
    ) -> None:
        self.sent: list[FromTree] = []
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.host = ProgramHost(tokenizer, send=self.sent.append, seed=1, run_aside=run_aside)
        self.program: HostedProgram = self.host.open(self.take, options)

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
        end = RequestEnd(finish_reason="length", text=text, output_tokens=1, first_step=1)
        self.host.deliver([RequestOutput(request_id, text=text, end=end)])

    def score(self, request_id: str) -> None:
        """End a select of the choices "a" and "b"."""
        end = RequestEnd(score_logprobs=(-1.0, -2.0), first_step=1)
        self.host.deliver([RequestOutput(request_id, end=end)])

    def fail(self, request_id: str, kind: str, retry_after_s: float | None = None) -> None:
        end = RequestEnd(text="", failure=RequestFailure(kind, "why", retry_after_s))
        self.host.deliver([RequestOutput(request_id, end=end)])

    @property
    def dropped(self) -> list[str]:
        """The requests whose prefixes need not be kept, in order."""
        return [each for message in self.sent if isinstance(message, DropPrefixes) for each in message.requests]

    @property
    def kept(self) -> set[str]:
        """Requests that may be continued and were not dropped."""
        return {name for name, place in self.places.items() if place.continued} - set(self.dropped)

    @property
    def places(self) -> dict[str, ProgramPlace]:
        """Where each request stands in its program."""
        return {
            message.id: message.program
            for message in self.sent
            if isinstance(message, NewRequest) and message.program is not None
        }

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


@pytest.mark.parametrize(
    "node", [Generate(0, None, PARAMS, n=3), Select(0, None, ("a", "b"), "unconditional_likelihood_normalized")]
)
def test_a_node_fails_for_the_first_reason(hosted: Hosted, node: Node) -> None:
    """Where one request of several fails, the others are aborted, and it is not their abort that is told."""
    hosted.program.extend([node])
    failing, *others = hosted.asked[1:] + hosted.asked[:1]
    hosted.fail(failing, "QueueFullError", 7.0)
    assert sorted(hosted.aborted) == sorted(others)
    for other in others:
        hosted.fail(other, "RequestAbortedError")
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
    assert hosted.asked == ["p0/2.0"]
    aside.run_next()
    assert hosted.asked == ["p0/2.0", "p0/1.0"]


class Refusing:
    """Sends a few messages, and raises from then on."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.sent: list[FromTree] = []

    def __call__(self, message: FromTree) -> None:
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


# -- what is kept for a program ---------------------------------------------------------------------------------------


@pytest.fixture
def named(tokenizer: Tokenizer) -> Hosted:
    """A program that was opened with a name."""
    return Hosted(tokenizer, options=SessionOptions(program="agent"))


def test_calls_of_no_program_have_no_place(hosted: Hosted) -> None:
    """Without a name nothing is kept, and nothing is said of it."""
    hosted.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS)])
    hosted.finish("p0/0.0")
    hosted.finish("p0/1.0")
    hosted.program.close()
    assert not hosted.places
    assert all(isinstance(message, NewRequest) for message in hosted.sent)


def test_a_place_tells_what_comes_later(named: Hosted) -> None:
    """Calls that wait for others, also those of the same message, and the most tokens of their answers."""
    named.program.extend(
        [Generate(0, None, PARAMS), Generate(1, 0, PARAMS, n=2), Select(2, 1, ("a", "b")), Generate(3, None, PARAMS)]
    )
    place = ProgramPlace(id="p0", name="agent", continued=True, later_tokens=18)
    assert named.places["p0/0.0"] == place
    assert named.places["p0/3.0"].later_tokens == 12
    named.finish("p0/0.0")
    assert named.places["p0/1.0"].later_tokens == 0


@pytest.mark.parametrize("n", [0, 1])
def test_calls_that_never_run_are_counted_no_more(named: Hosted, n: int) -> None:
    """Where a call fails, or cannot even be asked for, those behind it will not come."""
    named.program.extend([Generate(0, None, PARAMS, n=n), Generate(1, 0, PARAMS), Select(2, 1, ("a", "b"))])
    if n:
        named.fail("p0/0.0", "RequestError")
    named.program.extend([Generate(3, 2, PARAMS), Generate(4, None, PARAMS)])
    assert named.places["p0/4.0"].later_tokens == 0


def test_of_several_answers_the_first_is_continued(named: Hosted) -> None:
    """The text goes on with the first answer; of a select, with what stands before its choices."""
    named.program.extend([Generate(0, None, PARAMS, n=2), Select(1, None, ("a", "b"), UNCONDITIONAL)])
    assert [name for name, place in named.places.items() if place.continued] == ["p0/0.0", "p0/1.0"]
    assert len(named.places) == 4


def test_a_chain_keeps_its_last_answer(named: Hosted) -> None:
    """The prefix of one call is dropped when the next is done, not before; text between them changes nothing."""
    named.program.extend([Generate(0, None, PARAMS), Text(1, 0, "and"), Generate(2, 1, PARAMS)])
    named.finish("p0/0.0")
    assert named.dropped == []
    named.finish("p0/2.0")
    assert named.dropped == ["p0/0.0"]
    named.program.extend([Select(3, 2, ("a", "b"))])
    named.score("p0/3.0")
    assert named.dropped == ["p0/0.0", "p0/2.0"]
    assert named.kept == {"p0/3.0"}


def test_an_answer_that_never_ran_takes_nobodys_place(named: Hosted) -> None:
    """Where a grammar forced all of it nothing was computed: the prefix before it is still the one to keep."""
    named.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS), Generate(2, 1, PARAMS)])
    named.finish("p0/0.0")
    end = RequestEnd(finish_reason="grammar", text="x", output_tokens=1, forced_tokens=1)
    named.host.deliver([RequestOutput("p0/1.0", text="x", end=end)])
    assert named.dropped == []
    named.finish("p0/2.0")
    assert named.dropped == ["p0/0.0"]


FORKED: list[Node] = [
    Generate(0, None, PARAMS),
    Fork(1, 0, 2),
    Text(2, 1, "x"),
    Generate(3, 2, PARAMS),
    Generate(4, 1, PARAMS),
]


def run_forked(named: Hosted) -> None:
    named.program.extend(FORKED)
    for request_id in ("p0/0.0", "p0/3.0", "p0/4.0"):
        named.finish(request_id)


def test_a_join_lets_its_branches_go_and_keeps_the_trunk(named: Hosted) -> None:
    """While branches run the trunk's prefix is kept for what comes after them, and theirs for what follows in them."""
    run_forked(named)
    assert named.kept == {"p0/0.0", "p0/3.0", "p0/4.0"}
    named.program.extend([Text(5, 3, "end"), Join(6, 1, (5, 4))])
    assert named.kept == {"p0/0.0"}
    named.program.extend([Text(7, 6, "y"), Generate(8, 7, PARAMS)])
    named.finish("p0/8.0")
    assert named.kept == {"p0/8.0"}


def test_a_branch_that_ends_after_its_join_keeps_nothing(named: Hosted) -> None:
    """The join is there before its branches are done."""
    named.program.extend([*FORKED, Join(5, 1, (3, 4))])
    for request_id in ("p0/0.0", "p0/3.0", "p0/4.0"):
        named.finish(request_id)
    assert named.kept == {"p0/0.0"}


def test_a_branch_without_anything_in_it_costs_the_trunk_nothing(named: Hosted) -> None:
    """It ends at the fork itself, whose prefix is the trunk's."""
    run_forked(named)
    named.program.extend([Join(5, 1, (3, 1))])
    assert named.kept == {"p0/0.0", "p0/4.0"}


def test_a_trunk_may_go_on_beside_its_branches(named: Hosted) -> None:
    """Text after the fork, or a whole answer, before the join."""
    run_forked(named)
    named.program.extend([Text(5, 1, "meanwhile"), Join(6, 5, (3, 4)), Generate(7, 6, PARAMS)])
    assert named.kept == {"p0/0.0", "p0/7.0"}
    named.finish("p0/7.0")
    assert named.kept == {"p0/7.0"}


def test_forks_within_forks(named: Hosted) -> None:
    """An inner join ends its own branches only."""
    named.program.extend([*FORKED, Fork(5, 3, 2), Generate(6, 5, PARAMS), Generate(7, 5, PARAMS), Join(8, 5, (6, 7))])
    for node in (0, 3, 4, 6, 7):
        named.finish(f"p0/{node}.0")
    assert named.kept == {"p0/0.0", "p0/3.0", "p0/4.0"}
    named.program.extend([Join(9, 1, (8, 4))])
    assert named.kept == {"p0/0.0"}


def test_a_branch_that_is_joined_in_the_middle_of_forks_of_its_own(named: Hosted) -> None:
    """Its end is a fork, of which nothing continues either."""
    run_forked(named)
    named.program.extend([Fork(5, 3, 2), Join(6, 1, (5, 4))])
    assert named.kept == {"p0/0.0"}


def test_a_reference_is_text(named: Hosted) -> None:
    """What is kept is handed down the branch it is in, not the one it refers to."""
    run_forked(named)
    named.program.extend([Reference(5, 3, 4), Generate(6, 5, PARAMS)])
    named.finish("p0/6.0")
    assert named.dropped == ["p0/3.0"]


def test_what_a_failed_node_had_kept_is_dropped(named: Hosted) -> None:
    """Its first answer had ended well; the prefix before it stays, for another try."""
    named.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS, n=2)])
    named.finish("p0/0.0")
    named.finish("p0/1.0")
    named.fail("p0/1.1", "RequestTimeoutError")
    assert named.dropped == ["p0/1.0"]
    named.program.extend([Generate(2, 0, PARAMS)])
    named.finish("p0/2.0")
    assert named.dropped == ["p0/1.0", "p0/0.0"]


def test_an_abort_drops_what_was_being_made(named: Hosted) -> None:
    """It may have ended just before: after the abort nobody would ever drop it."""
    named.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS)])
    named.finish("p0/0.0")
    named.program.abort()
    assert named.sent[-2:] == [AbortRequest("p0/1.0"), DropPrefixes("p0", ("p0/1.0",))]
    assert not any(isinstance(message, EndProgram) for message in named.sent)


@pytest.mark.parametrize("breaks", [True, False])
def test_a_program_that_is_closed_ends(named: Hosted, breaks: bool) -> None:
    """Once, after its aborts; also where its client broke; nothing of it is asked for later."""
    named.program.extend([Generate(0, None, PARAMS), Generate(1, 0, PARAMS), Generate(2, None, PARAMS)])
    if breaks:
        named.on_event = broken
    else:
        named.program.close()
        named.program.close()
    named.finish("p0/0.0")
    assert named.sent[-2:] == [AbortRequest("p0/2.0"), EndProgram("p0")]
    assert sum(isinstance(message, EndProgram) for message in named.sent) == 1
    assert "p0/1.0" not in named.asked


def test_text_that_is_encoded_elsewhere_is_not_asked_for_after_the_end(tokenizer: Tokenizer) -> None:
    """Its program was closed meanwhile."""
    aside = Aside()
    named = Hosted(tokenizer, aside, SessionOptions(program="agent"))
    named.program.extend([Text(0, None, "a" * (LONG_TEXT + 1)), Generate(1, 0, PARAMS)])
    named.program.close()
    aside.run_next()
    assert named.sent == [EndProgram("p0")]


def test_names_of_programs_are_bounded() -> None:
    """A name that is no text, or too long, is refused; that of a function is cut."""
    for name in ("x" * (LONGEST_NAME + 1), 7):
        with pytest.raises(RequestError, match="program must be a name of at most 256 characters"):
            SessionOptions(program=name)  # type: ignore[arg-type]
    assert USUAL_OPTIONS.of_program("y" * 300).program == "y" * LONGEST_NAME
    assert SessionOptions(program="given").of_program(None).program == "given"
