"""select in one pass: tokens that the model computes and wall time, against a request for each choice.

    python benchmarks/selects.py [--questions N] [--shots N] [--repeats N] [--alone N] [--json OUT]

Messages are sorted into four topics after examples of that. In turn, each after the cache is emptied:

- *one pass*: a select for each message;
- *a request a choice*: for each message four selects of one choice, whose scores are compared here. They are sent at
  once, and the radix cache holds what they share.

All messages are asked for at once; then a few alone, one after the other, behind examples that are cached. The fewest
tokens possible are those of one tree of all that is asked, in which every token that another one is scored after stands
once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

from palmette.runtime import launch
from palmette.runtime.batch import StepPlan
from palmette.runtime.choices import decide
from palmette.runtime.engine import Engine
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.program import ChoiceScore, Event, Node, Select, Selected, Text
from palmette.runtime.runner_step import RunnerStep
from palmette.runtime.tokenizer import Piece, Tokenizer

TOPICS = ("billing question", "billing complaint", "delivery problem", "account access")
SENDERS = (
    "Yesterday", "Hello,", "My", "I", "Since Monday", "Please", "We", "The", "After the update", "Again", "This week",
    "Nobody", "For days", "Your", "Last night", "Why", "It seems", "Today", "Our office", "Dear team,",
)  # fmt: skip
DETAILS = (
    "invoice", "parcel", "password", "courier", "refund", "login page", "card", "address", "receipt", "tracking number",
    "e-mail", "subscription", "payment", "second order", "phone", "warehouse", "code", "discount", "account", "box",
)  # fmt: skip
VERBS = (
    "never arrived", "was charged twice", "does not open", "is wrong", "went missing", "was refused", "looks damaged",
    "shows an error", "was sent to a neighbour", "is still pending", "cannot be found", "was changed without notice",
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """What one way of asking took.

    Attributes:
        tokens: that the model computed for all messages.
        wall_s, cpu_s: for all messages at once, of every repeat; CPU time of all threads, which a busy machine does not
            change much.
        alone_ms: for one message alone, of every message that was asked for so.
    """

    tokens: int
    wall_s: list[float]
    cpu_s: list[float]
    alone_ms: list[float]


def message(source: random.Random) -> str:
    """What a customer writes."""
    first, second = source.sample(DETAILS, 2)
    opening, number = source.choice(SENDERS), source.randrange(100, 1000)
    return (
        f"{opening} order {number}: the {first} {source.choice(VERBS)}, and the {second} {source.choice(VERBS)}."
        " What can be done?"
    )


def examples(count: int, source: random.Random) -> str:
    """Messages with their topics."""
    return "".join(f"Message: {message(source)}\nTopic: {source.choice(TOPICS)}\n\n" for _ in range(count))


def prompts(questions: int, shots: int) -> list[str]:
    """What stands before each select: the same examples, and a message of its own."""
    source = random.Random(11)
    shared = "Which topic has the message?\n\n" + examples(shots, source)
    return [f"{shared}Message: {message(source)}\nTopic: " for _ in range(questions)]


def fewest_tokens(tokenizer: Tokenizer, asked: Sequence[str]) -> int:
    """Tokens of the tree of all prompts with all topics, without those that end a text and begin no other."""
    nodes: set[int] = set()
    for prompt in asked:
        for topic in TOPICS:
            ids = tokenizer.encode([Piece(prompt + topic, False, 0)], start=True).ids
            node = 0
            for token_id in ids[:-1]:
                node = hash((node, token_id))
                nodes.add(node)
    return len(nodes)


class Answers:
    """Sends nodes in one session, and waits until all selects of them have ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._selected: dict[int, Selected] = {}
        self._changed = threading.Condition()

    def of(self, nodes: Sequence[Node]) -> dict[int, Selected]:
        """What came back, by node."""
        selects = sum(isinstance(node, Select) for node in nodes)
        session = self._engine.open(self._take)
        session.extend(nodes)
        with self._changed:
            self._changed.wait_for(lambda: len(self._selected) == selects)
        session.close()
        return self._selected

    def _take(self, event: Event) -> None:
        if not isinstance(event, Selected):
            raise RuntimeError(f"a select failed: {event}")
        with self._changed:
            self._selected[event.node] = event
            self._changed.notify()


def in_one_pass(engine: Engine, asked: Sequence[str]) -> list[int]:
    """The topic of each message, by a select for each."""
    nodes: list[Node] = []
    for index, prompt in enumerate(asked):
        nodes += [Text(2 * index, None, prompt), Select(2 * index + 1, 2 * index, TOPICS)]
    found = Answers(engine).of(nodes)
    return [found[2 * index + 1].choice for index in range(len(asked))]


def by_a_request_a_choice(engine: Engine, asked: Sequence[str]) -> list[int]:
    """The same, each topic scored by itself."""
    each = 1 + len(TOPICS)
    nodes: list[Node] = []
    for index, prompt in enumerate(asked):
        nodes.append(Text(each * index, None, prompt))
        nodes += [Select(each * index + 1 + i, each * index, (topic,)) for i, topic in enumerate(TOPICS)]
    found = Answers(engine).of(nodes)
    return [_best([found[each * index + 1 + i].scores[0] for i in range(len(TOPICS))]) for index in range(len(asked))]


def _best(scores: Sequence[ChoiceScore]) -> int:
    return decide("token_length_normalized", scores)


WAYS: dict[str, Callable[[Engine, Sequence[str]], list[int]]] = {
    "one_pass": in_one_pass,
    "request_a_choice": by_a_request_a_choice,
}


@contextmanager
def counted_tokens() -> Iterator[list[int]]:
    """Collects how many tokens each step computes."""
    counts: list[int] = []
    usual = ModelRunner.launch

    def launch_counted(runner: ModelRunner, plan: StepPlan) -> RunnerStep:
        counts.append(len(plan.token_ids))
        return usual(runner, plan)

    with patch.object(ModelRunner, "launch", launch_counted):
        yield counts


def measured(engine: Engine, asked: Sequence[str], repeats: int, alone: int) -> dict[str, Figures]:
    """Both ways in turn, all messages at once and then some alone."""
    figures = {name: Figures(0, [], [], []) for name in WAYS}
    answers: dict[str, list[int]] = {}
    for _ in range(repeats):
        for name, way in WAYS.items():
            engine.flush_cache()
            with counted_tokens() as counts:
                begun_s, cpu_s = time.perf_counter(), time.process_time()
                answers[name] = way(engine, asked)
            figures[name].wall_s.append(time.perf_counter() - begun_s)
            figures[name].cpu_s.append(time.process_time() - cpu_s)
            figures[name] = replace(figures[name], tokens=sum(counts))
            print(f"{name}: {sum(counts)} tokens in {len(counts)} steps, {figures[name].wall_s[-1]:.1f} s", flush=True)
    differing = sum(one != other for one, other in zip(*answers.values(), strict=True))
    print(f"topics that differ between the two ways: {differing} of {len(asked)}")
    engine.flush_cache()
    in_one_pass(engine, asked[-1:])
    for index, prompt in enumerate(asked[:alone]):
        name = list(WAYS)[index % len(WAYS)]
        begun_s = time.perf_counter()
        WAYS[name](engine, [prompt])
        figures[name].alone_ms.append(1000 * (time.perf_counter() - begun_s))
    return figures


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a folder, GGUF file or id; the default model if left out")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", type=int, default=40, help="messages that are asked for one after the other")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = prompts(options.questions, options.shots)
    with launch(options.model, seed=0, processes=False, max_total_tokens=40_000) as engine:
        fewest = fewest_tokens(engine._tokenizer, asked)
        in_one_pass(engine, ["It is "])  # what is made once is no part of it
        figures = measured(engine, asked, options.repeats, options.alone)
    print(f"{options.questions} messages after {options.shots} examples; at least {fewest} tokens")
    for name, each in figures.items():
        print(
            f"{name:>18}: {each.tokens} tokens ({each.tokens / fewest:.3f} of the fewest),"
            f" {statistics.median(each.wall_s):.2f} s ({min(each.wall_s):.2f} to {max(each.wall_s):.2f}),"
            f" {statistics.median(each.cpu_s):.2f} s of CPU time,"
            f" alone {statistics.median(each.alone_ms or [0]):.0f} ms"
        )
    if options.json:
        written = {"options": vars(options) | {"json": str(options.json)}, "fewest_tokens": fewest}
        options.json.write_text(json.dumps(written | {name: asdict(each) for name, each in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
