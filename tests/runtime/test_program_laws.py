"""The laws of programs under random trees, with messages between the parts as between processes.

Trees, scheduler loop and detokenizer are the real ones; the model is a hash. Messages are encoded, and come late.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.aside import Aside
from tests.fake_grammar import ManualExecutor, ScriptedCompiler, scripted_chain, scripted_repeat
from tests.fake_runner import BROKEN, END_ID, OTHER_END_ID, TOKEN_BYTES, BrokenModel, token
from tests.fakes import FakeEngine, expected_answer, expected_scores, make_request
from tests.program_calls import check_forgotten

from palmette.constrained import Grammar, GrammarError
from palmette.runtime.batch import NOT_FINITE
from palmette.runtime.detokenizer import Detokenizer
from palmette.runtime.intake import Intake
from palmette.runtime.messages import (
    FromScheduler,
    FromTree,
    NewRequest,
    SessionOptions,
    StepOutput,
    ToScheduler,
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
    Selected,
    SelectMethod,
    Text,
    Tokens,
)
from palmette.runtime.program_host import HostedProgram, ProgramHost
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler_loop import SchedulerLoop
from palmette.runtime.tokenizer import Encoded, Piece, Tokenizer

CONTEXT = 120
GRAMMARS = [
    scripted_chain("call", [[token("a")], [token("b")], [token(digit) for digit in "0123456789"], [token("c")]]),
    scripted_repeat("word", [token(letter) for letter in "abc"], least=2),
]
BAD = Grammar.regex("bad")
KNOWN = {grammar.grammar: grammar for grammar in GRAMMARS}
METHODS: tuple[SelectMethod, ...] = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)

to_scheduler: msgspec.msgpack.Decoder[list[ToScheduler]] = msgspec.msgpack.Decoder(list[ToScheduler])
from_scheduler: msgspec.msgpack.Decoder[StepOutput] = msgspec.msgpack.Decoder(StepOutput)


class LetterTokenizer:
    """A tokenizer of the fake vocabulary: a token for each letter."""

    token_bytes = TOKEN_BYTES
    end_ids = frozenset((END_ID, OTHER_END_ID))
    start_id = 0

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> Encoded:
        letters = [(letter, piece.owner) for piece in pieces for letter in piece.text if letter.isalnum()]
        known = [(token(letter), owner) for letter, owner in letters if letter.encode() in TOKEN_BYTES]
        return Encoded([token_id for token_id, _ in known], [owner for _, owner in known])

    def token_text(self, token_id: int) -> str:
        return (TOKEN_BYTES[token_id] or b"").decode(errors="replace")


class TurnInbox:
    """Messages on their way to the scheduler; the loop is stopped after a number of turns."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.turns = 0
        self.stop: Callable[[], None] = lambda: None

    def put(self, message: FromTree) -> None:
        self.frames.append(msgspec.msgpack.encode([message]))

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        self.turns -= 1
        if self.turns < 0 or (wait_s != 0 and not self.frames):
            self.stop()
            return ()
        frames, self.frames = self.frames, []
        return [message for frame in frames for message in to_scheduler.decode(frame)]

    def wake(self) -> None:
        """Nothing waits."""


class Program:
    """One program: its nodes, what came of them, and what is expected of what came."""

    def __init__(self, host: ProgramHost, breaks_at: int | None, options: SessionOptions) -> None:
        self.hosted: HostedProgram = host.open(self.take, options)
        self.nodes: list[Node] = []
        self.deltas: dict[tuple[int, int], str] = defaultdict(str)
        self.ends: dict[int, Event] = {}
        self.events = 0
        self.breaks_at = breaks_at
        self.closed = self.aborted = False

    def take(self, event: Event) -> None:
        assert not self.closed, "an event after the close"
        self.events += 1
        if isinstance(event, Delta):
            assert event.node not in self.ends, "text after the end"
            self.deltas[event.node, event.index] += event.text
        else:
            assert event.node not in self.ends, f"node {event.node} ended twice"
            self.ends[event.node] = event
        if self.events == self.breaks_at:
            self.closed = True
            raise ValueError("a broken client")

    def extend(self, *nodes: Node) -> None:
        self.nodes += nodes
        self.hosted.extend(nodes)

    def parents(self) -> list[int | None]:
        return [None, *(node.id for node in self.nodes)]

    def check(self, asked: dict[str, NewRequest]) -> None:
        """Raise AssertionError unless every node has ended as it must."""
        for node in self.nodes:
            end = self.ends.get(node.id)
            if isinstance(end, Generated):
                self._check_answers(node, end, asked)
            elif isinstance(end, Selected):
                self._check_choice(node, end, asked)
            elif isinstance(node, Generate | Select) and not self.closed:
                assert isinstance(end, Failed), f"node {node.id} has no end"
                self._check_failure(end)

    def _check_failure(self, end: Failed) -> None:
        allowed = {"RequestError", "GrammarError", "RequestTimeoutError", "QueueFullError"}
        broken = end.kind == "EngineError" and "NaN or infinite" in end.message
        assert broken or end.kind in allowed or (self.aborted and end.kind == "RequestAbortedError"), end

    def _check_answers(self, node: Node, end: Generated, asked: dict[str, NewRequest]) -> None:
        assert isinstance(node, Generate)
        assert len(end.completions) == node.n
        for index, completion in enumerate(end.completions):
            request = _request(asked[f"{self.hosted.id}/{node.id}.{index}"])
            grammar = KNOWN[node.grammar] if node.grammar is not None else None
            expected = expected_answer(request, CONTEXT, grammar)
            assert (completion.text, completion.finish_reason) == (expected.text, expected.finish_reason)
            assert completion.completion_tokens == len(expected.output)
            if node.stream:
                assert self.deltas.get((node.id, index), "") == expected.text
            if node.params.logprobs is not None:
                assert completion.logprobs is not None
                assert [each.token_id for each in completion.logprobs] == list(expected.output)

    def _check_choice(self, node: Node, end: Selected, asked: dict[str, NewRequest]) -> None:
        assert isinstance(node, Select)
        before = memoryview(asked[f"{self.hosted.id}/{node.id}.0"].prompt_ids).cast("i")[: end.prompt_tokens].tolist()
        for score in end.scores:
            alone = make_request("alone", [*before, *score.token_ids], kind="score", score_from=len(before))
            assert list(score.logprobs) == expected_scores(alone)


def _request(new: NewRequest) -> Request:
    """The request that a message asks for, to find out its right answer."""
    return make_request(
        new.id,
        memoryview(new.prompt_ids).cast("i").tolist(),
        grammar=new.grammar,
        **msgspec.structs.asdict(new.params),
    )


class World:
    """Random programs on one host, with a scheduler and a detokenizer behind frames that come late."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.executor, self.aside, self.inbox = ManualExecutor(), Aside(), TurnInbox()
        self.page_size = source.choice([1, 1, 4])
        self.engine = FakeEngine(
            num_pages=source.choice([128, 400]) // self.page_size,
            page_size=self.page_size,
            context_length=CONTEXT,
            grammars=GRAMMARS,
            compiler=ScriptedCompiler(*GRAMMARS, failing={BAD: GrammarError("bad")}),
            executor=self.executor,
            chunk_size=source.choice([3, 64]),
            max_running_requests=source.choice([2, 16]),
            max_queued_requests=source.choice([6, 500, 500]),
            policy=source.choice(["lpm", "fcfs", "least-work", "least-work"]),
            keep_prefixes=source.random() < 0.8,
        )
        self.engine.runner.model = BrokenModel(NOT_FINITE, 4)
        self.intake = Intake(TOKEN_BYTES, LetterTokenizer.end_ids, self.inbox.wake, page_size=self.page_size)
        self.news: list[bytes] = []
        self.loop = SchedulerLoop(
            self.engine.scheduler, self.intake, self.inbox, self.take_news, overlap=source.random() < 0.5
        )
        self.inbox.stop = self.loop.stop
        self.detokenizer = Detokenizer(TOKEN_BYTES)
        self.asked: dict[str, NewRequest] = {}
        self.host = ProgramHost(cast("Tokenizer", LetterTokenizer()), send=self.send, seed=3, run_aside=self.aside)
        self.programs: list[Program] = []

    def send(self, message: FromTree) -> None:
        if isinstance(message, NewRequest):
            assert message.id not in self.asked, f"{message.id} was asked for twice"
            self.asked[message.id] = message
        self.inbox.put(message)

    def take_news(self, message: FromScheduler) -> None:
        assert isinstance(message, StepOutput)
        self.news.append(msgspec.msgpack.encode(message))

    def run(self, actions: int) -> None:
        """Do what comes to mind, then finish everything."""
        self.open()
        ways = [self.work] * 6 + [self.deliver] * 5 + [self.extend] * 4 + [self.compile] * 3 + [self.finish_aside] * 2
        ways += [self.open, self.open, self.abort, self.close, self.let_time_pass]
        for _ in range(actions):
            self.source.choice(ways)()
        self.finish()

    # -- programs ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        source = self.source
        options = SessionOptions(
            priority=source.choice([0, 0, 2]),
            timeout_s=source.choice([None, None, None, 4.0]),
            program=source.choice([None, "a", "a", "b"]),
        )
        program = Program(self.host, source.choice([None] * 6 + [2, 5]), options)
        self.programs.append(program)
        program.extend(Text(0, None, source.choice(["abc", "abcd", "x1", "zzzz", ""])))
        program.extend(*random_nodes(program, source))

    def pick(self) -> Program | None:
        usable = [program for program in self.programs if not program.closed]
        return self.source.choice(usable) if usable else None

    def extend(self) -> None:
        if (program := self.pick()) is not None:
            program.extend(*random_nodes(program, self.source))

    def abort(self) -> None:
        if (program := self.pick()) is not None:
            program.aborted = True
            program.hosted.abort()
            ended = [node.id for node in program.nodes if isinstance(node, Generate | Select)]
            assert program.closed or program.ends.keys() >= set(ended)

    def close(self) -> None:
        if (program := self.pick()) is not None:
            program.closed = True
            program.hosted.close()
            program.hosted.close()

    # -- what happens meanwhile -------------------------------------------------------------------------------------

    def work(self, turns: int | None = None) -> None:
        self.inbox.turns = turns or self.source.randint(1, 8)
        self.loop._stopped = False
        self.loop.run()
        self.engine.scheduler.check_invariants()

    def deliver(self) -> None:
        news, self.news = self.news, []
        for frame in news:
            self.host.deliver(self.detokenizer.process(from_scheduler.decode(frame)).outputs)

    def compile(self) -> None:
        self.executor.run_next()

    def finish_aside(self) -> None:
        if self.aside.waiting:
            self.aside.run_next()

    def let_time_pass(self) -> None:
        self.engine.clock.time_s += 1.0

    def finish(self) -> None:
        """Nothing new comes: everything ends, as it must, and nothing is left."""
        for _ in range(1000):
            if not (self.inbox.frames or self.news or self.aside.waiting or self.engine.scheduler.has_work):
                break
            self.compile()
            self.finish_aside()
            self.work(50)
            self.deliver()
        assert not self.engine.scheduler.has_work, "still not done"
        for program in self.programs:
            program.check(self.asked)
        self.check_kept()
        for program in self.programs:
            program.hosted.close()
        self.work(2)
        check_forgotten(self.engine)
        assert len(self.host) == 0
        assert not self.detokenizer._streams
        assert not self.intake._compiling
        assert all(not program.hosted.tree._of_request for program in self.programs)
        self.engine.check_empty()

    def check_kept(self) -> None:
        """Raise AssertionError unless all that is kept may be continued, by what the trees know."""
        kept = self.engine.memory.kept
        trees = {program.hosted.id: program.hosted.tree for program in self.programs if not program.closed}
        for program, handles in kept._handles.items() if kept is not None else ():
            entries = trees[program.id]._entries.values()
            assert handles.keys() <= {entry.kept for entry in entries if not entry.joined}


def random_nodes(program: Program, source: random.Random) -> list[Node]:
    """Up to eight nodes of all kinds, most of which continue one of the last."""
    known: list[int] = [node.id for node in program.nodes]
    made: list[Node] = []
    for number in range(len(known), len(known) + source.randint(1, 8)):
        parent = source.choice([None, *known][-3:])
        made.append(random_node(number, parent, known, source))
        known.append(number)
    return made


def random_node(number: int, parent: int | None, known: list[int], source: random.Random) -> Node:
    """Mostly generations, and now and then one that cannot be served."""
    kind = source.random()
    if kind < 0.5:
        grammar = source.choice([None, None, None, *KNOWN, BAD]) if source.random() < 0.7 else None
        n = source.choice([1, 1, 1, 2, 3]) if source.random() < 0.95 else 0
        params = random_params(source, stops=grammar is None)  # the right answer under both is test_generation's
        return Generate(number, parent, params, grammar, n, source.random() < 0.7)
    if kind < 0.65:
        choices = source.choice([("ab", "cd"), ("a", "ab", "b"), ("x" * 30, "y")]) if source.random() < 0.95 else ()
        return Select(number, parent, choices, source.choice(METHODS))
    if kind < 0.75:
        return Text(number, parent, source.choice(["", "ab", "q" * 20]))
    if kind < 0.8:
        return Tokens(number, parent, source.choice([(5, 6), (5,), (BROKEN,), (10**6,)]))
    if kind < 0.9:
        return Fork(number, parent, 2) if source.random() < 0.5 else Join(number, parent, tuple(known[-2:]))
    return Reference(number, parent, source.choice(known), source.random() < 0.1)


def random_params(source: random.Random, *, stops: bool) -> SamplingParams:
    return SamplingParams(
        temperature=source.choice([0.0, 1.0]),
        max_tokens=source.randint(4, 12),
        stop=source.choice([(), (), ("a", "b1")]) if stops else (),
        logprobs=source.choice([None, None, 1]),
        prompt_logprobs=source.choice([None, None, None, 1]),
        presence_penalty=source.choice([0.0, 0.5]),
        seed=source.randrange(10),
    )


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_every_node_ends_once_and_nothing_is_left(seed: int) -> None:
    """Right answers in whole deltas or a reason, whatever is aborted, closed, late, refused or broken meanwhile."""
    World(random.Random(seed)).run(60)
