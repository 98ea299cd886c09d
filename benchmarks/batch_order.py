"""What the order of a batch is worth: prompt tokens computed in the given order, by prefix, and by a cache without end.

    python benchmarks/batch_order.py [--threads N] [--pool TOKENS] [--json OUT]

A real engine with a tiny random model runs the same shuffled items in each order. The pool holds the prompts of the
programs that run and of a few more, so most of what an item shares with an earlier one is gone unless it was near.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.tiny_models import tiny_config, write_tiny_model

import palmette as pt
from palmette.runtime import launch
from palmette.runtime.engine import Engine

INSTRUCTIONS = "It is what it is: read what is there, and then say what they said. " * 2
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "tree",
    "has",
    "one",
    "trunk",
    "many",
    "branches",
]
ENDLESS = 400_000
FEW_SHOT = {
    task: f"{task}. " + INSTRUCTIONS + f"Such things as {task} are common. " * 20
    for task in ("mood", "name", "age", "tag")
}


def words(source: random.Random, count: int) -> str:
    return " ".join(source.choice(WORDS) for _ in range(count))


@pt.function(temperature=0, max_tokens=4)
def document_first(s: pt.ProgramState, question: str, document: str) -> None:
    s += INSTRUCTIONS + document + "\n" + question + pt.gen("answer")


@pt.function(temperature=0, max_tokens=4)
def question_first(s: pt.ProgramState, question: str, document: str) -> None:
    s += INSTRUCTIONS + question + "\n" + document + pt.gen("answer")


@pt.function(temperature=0, max_tokens=4)
def few_shot(s: pt.ProgramState, task: str, document: str, question: str) -> None:
    s += FEW_SHOT[task] + document + "\n" + question + pt.gen("answer")


@pt.function(temperature=0, max_tokens=4)
def chat(s: pt.ProgramState, history: str) -> None:
    s += INSTRUCTIONS + history + pt.gen("answer")


@dataclass(frozen=True, slots=True)
class Workload:
    """A program and its items, shuffled."""

    name: str
    program: pt.Function
    items: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One batch: tokens of its prompts, and how many of them were computed."""

    workload: str
    order: str
    threads: int
    prompt_tokens: int
    computed_tokens: int
    hit_rate: float


def workloads(seed: int) -> list[Workload]:
    """60 documents with 5 questions each, and prompts of other shapes."""
    source = random.Random(seed)
    documents = [words(source, 140) for _ in range(60)]
    questions = [words(source, 12) for _ in range(5)]
    long_questions = [words(source, 110) for _ in range(5)]
    talks = [[words(source, 40) + "\n" for _ in range(6)] for _ in range(30)]
    pairs = [{"question": question, "document": document} for document in documents for question in questions]
    long_pairs = [
        {"question": question, "document": words(source, 60)} for question in long_questions for _ in documents
    ]
    tasks = [
        {"task": task, "document": words(source, 30), "question": question}
        for task in FEW_SHOT
        for question in questions
        for _ in range(15)
    ]
    histories = [{"history": "".join(talk[:end])} for talk in talks for end in range(1, len(talk) + 1)]
    made = [
        Workload("document, then question", document_first, pairs),
        Workload("long question, then document", question_first, long_pairs),
        Workload("examples chosen in the program", few_shot, tasks),
        Workload("chats of 1 to 6 turns", chat, histories),
    ]
    for workload in made:
        source.shuffle(workload.items)
    return made


def measured(engine: Engine, workload: Workload, order: Literal["prefix", "given"], threads: int, label: str) -> Row:
    """Run one batch on an empty cache."""
    engine.flush_cache()
    states = workload.program.run_batch(workload.items, backend=engine, num_threads=threads, order=order)
    infos = [state.get_meta_info("answer") for state in states]
    prompt = sum(info["prompt_tokens"] for info in infos)
    cached = sum(info["cached_tokens"] for info in infos)
    return Row(workload.name, label, threads, prompt, prompt - cached, cached / prompt)


def measure(folder: Path, threads: int, pool: int, seed: int) -> Iterator[Row]:
    """Every workload in both orders, and with a pool from which nothing is ever dropped."""
    with launch(str(folder), processes=False, max_total_tokens=pool) as engine:
        for workload in workloads(seed):
            yield measured(engine, workload, "given", threads, "given")
            yield measured(engine, workload, "prefix", threads, "prefix")
    with launch(str(folder), processes=False, max_total_tokens=ENDLESS) as engine:
        for workload in workloads(seed):
            yield measured(engine, workload, "given", threads, "endless cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8, help="programs in flight")
    parser.add_argument("--pool", type=int, default=5000, help="tokens that the pool holds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_tiny_model(Path(name), tiny_config(max_position_embeddings=2048))
        rows = sorted(measure(folder, given.threads, given.pool, given.seed), key=lambda row: row.workload)
    for row in rows:
        tokens = f"{row.prompt_tokens:8} prompt tokens {row.computed_tokens:8} computed {row.hit_rate:6.1%}"
        print(f"{row.workload:38} {row.order:15} {tokens}")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
