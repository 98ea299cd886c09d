"""What the language itself costs: microseconds a node against MockBackend, and the memory of large batches.

    python benchmarks/language.py [--repeats N] [--json OUT]

A node is a text, generation, select, fork or join of the request tree. The time of a case is that of a whole `run`:
calling the function, building and sending the tree, the mock's answers, and reading values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import palmette as pt

CALLS = 40
BATCH = 1000


@pt.function
def straight(s: pt.ProgramState) -> None:
    """Text and generations, nothing read: one submission."""
    for _ in range(CALLS):
        s += "Q: what now?\nA:" + pt.gen("answer", stop="\n", max_tokens=8)


@pt.function
def reading(s: pt.ProgramState) -> None:
    """Every answer is read before the next text: a round trip a generation."""
    for place in range(CALLS):
        s += f"Q{place}" + pt.gen("answer", max_tokens=8)
        str(s["answer"])


@pt.function
async def awaiting(s: pt.ProgramState) -> None:
    """As `reading`, on an event loop."""
    for place in range(CALLS):
        s += f"Q{place}" + pt.gen("answer", max_tokens=8)
        await s.get("answer")


@pt.function
def chat(s: pt.ProgramState) -> None:
    """Messages with the parts that a template puts around them."""
    for _ in range(CALLS // 2):
        s += pt.user("What now?") + pt.assistant(pt.gen("answer", max_tokens=8))


@pt.function
def forks(s: pt.ProgramState) -> None:
    """Branches with a text and two generations each, gathered."""
    for _ in range(4):
        branches = s.fork(CALLS // 8)
        for place, branch in enumerate(branches):
            branch += f"{place}" + pt.gen("x") + pt.select("y", ["a", "b"])
        branches.join()


@pt.function
def references(s: pt.ProgramState) -> None:
    """Each text refers to the answer before it."""
    s += pt.gen("answer")
    for _ in range(CALLS):
        s += pt.template("Then {answer}: ", answer=s.ref("answer")) + pt.gen("answer")


@pt.function
def long(s: pt.ProgramState) -> None:
    """As `straight`, a branch of a thousand nodes: every answer's usage names all nodes before it."""
    for _ in range(500):
        s += "Q: what now?\nA:" + pt.gen("answer", stop="\n", max_tokens=8)


@pt.function
def five_calls(s: pt.ProgramState, item: int) -> None:
    """One program of the batch."""
    s += f"Item {item}."
    for place in range(4):
        s += f" {place}: " + pt.gen(f"answer_{place}", max_tokens=8)
    s += pt.select("verdict", ["pass", "fail"])


@dataclass(frozen=True)
class Row:
    """One case: nodes of a run, and the microseconds a node in each repeat."""

    case: str
    nodes: int
    us_per_node: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.us_per_node)


def timed(case: str, run: Callable[[], int], repeats: int) -> Row:
    """Time `run`, which returns its number of nodes; the first time is not counted."""
    nodes = run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - began) / nodes)
    return Row(case, nodes, times)


def single(program: Any) -> Callable[[], int]:
    """Twenty runs of a program, one after the other."""
    return lambda: sum(len(program.run(backend=answers())._execution.tree.records) for _ in range(20))


def answers() -> pt.MockBackend:
    return pt.MockBackend(lambda prompt, node: "an answer")


def batch_list() -> int:
    states = five_calls.run_batch([{"item": item} for item in range(BATCH)], backend=answers())
    return sum(len(state._execution.tree.records) for state in states)


def batch_iterator() -> int:
    items = ({"item": item} for item in range(BATCH))
    states = five_calls.run_batch(items, backend=answers(), generator_style=True)
    return sum(len(state._execution.tree.records) for state in states)


def peak_bytes(programs: int) -> int:
    """Most memory that Python held beyond the start while `programs` items were taken from an iterator of states."""
    backend = answers()
    backend.calls = Forgetting()
    backend.messages = Forgetting()
    tracemalloc.start()
    items = ({"item": item} for item in range(programs))
    deque(five_calls.run_batch(items, backend=backend, generator_style=True), maxlen=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


class Forgetting(list[Any]):
    """What a mock notes of its calls, not kept: it would be the largest part of the memory."""

    def append(self, item: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases: list[tuple[str, Callable[[], int]]] = [
        (program.__name__, single(program)) for program in (straight, reading, awaiting, chat, forks, references, long)
    ]
    cases += [(f"run_batch, {BATCH} programs of 5 calls", batch_list), ("the same, as an iterator", batch_iterator)]
    rows = [timed(case, run, arguments.repeats) for case, run in cases]
    print(f"{'case':<40} {'nodes':>7} {'us a node':>10}   range")
    for row in rows:
        low, high = min(row.us_per_node), max(row.us_per_node)
        print(f"{row.case:<40} {row.nodes:>7} {row.median:>10.1f}   {low:.1f} to {high:.1f}")
    peaks = {count: peak_bytes(count) for count in (BATCH, 10 * BATCH)}
    print(
        "peak memory of Python objects, as an iterator:",
        ", ".join(f"{n} programs {b / 1e6:.1f} MB" for n, b in peaks.items()),
    )
    if arguments.json:
        values = {"rows": [{**asdict(row), "median": row.median} for row in rows], "peak_bytes": peaks}
        arguments.json.write_text(json.dumps(values, indent=2))


if __name__ == "__main__":
    main()
