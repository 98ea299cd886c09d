"""What the language itself costs: microseconds a node of the request tree, and the memory of large batches.

    python benchmarks/language.py [--repeats N] [--only PART] [--json OUT]

A node is a text, generation, select, fork or join. The time of a case is that of whole `run`s: calling the function,
building and sending the tree, taking the answers in, and reading values. Against `Instant`, which answers within the
call that sends and says of every node on a path what it cost, as an engine does, this is the language alone; against
`MockBackend` it is also the mock's work, and the way from its thread and back. CPU time is that of all threads of the
process; on a machine with other work to do, it and the least of the repeats say more than the median by the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import palmette as pt
from palmette.lang.backend import EventSink
from palmette.runtime.program import Completion, Generate, Generated, ModelInfo, Node, NodeUsage, Select, Selected

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


class Instant:
    """A backend that answers at once."""

    model_info = ModelInfo(name="instant", context_length=1 << 20, vocab_size=1 << 15)

    def open(self, events: EventSink, *, program: str | None = None) -> InstantSession:
        return InstantSession(events)


class InstantSession:
    """One program on `Instant`."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._usage: dict[int | None, tuple[NodeUsage, ...]] = {None: ()}  # of the nodes up to each

    def extend(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            usage = self._usage[node.id] = (*self._usage[node.parent], NodeUsage(node.id, reused=3))
            if isinstance(node, Generate):
                self._events(Generated(node.id, (ANSWER,) * node.n, usage))
            elif isinstance(node, Select):
                self._events(Selected(node.id, 0, usage=usage))

    def close(self) -> None:
        pass


ANSWER = Completion(
    text="an answer",
    token_ids=(1, 2),
    finish_reason="stop",
    prompt_tokens=9,
    cached_tokens=8,
    completion_tokens=2,
)


@dataclass(frozen=True)
class Row:
    """One case on one backend: nodes of its runs, and microseconds a node in each repeat."""

    case: str
    backend: str
    nodes: int
    us_per_node: list[float]
    cpu_us_per_node: list[float]


def timed(case: str, backend: str, run: Callable[[], int], repeats: int) -> Row:
    """Time `run`, which returns its number of nodes; the first time is not counted."""
    nodes = run()
    walls, cpus = [], []
    for _ in range(repeats):
        cpu, began = time.process_time(), time.perf_counter()
        run()
        walls.append(1e6 * (time.perf_counter() - began) / nodes)
        cpus.append(1e6 * (time.process_time() - cpu) / nodes)
    return Row(case, backend, nodes, walls, cpus)


def single(program: Any, backend: Callable[[], pt.Backend]) -> Callable[[], int]:
    """Some runs of a program, one after the other."""
    runs = 2 if program is long else 20
    return lambda: sum(len(program.run(backend=backend())._execution.tree.records) for _ in range(runs))


def answers() -> pt.MockBackend:
    return pt.MockBackend(lambda prompt, node: "an answer", record=False)


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
    tracemalloc.start()
    items = ({"item": item} for item in range(programs))
    deque(five_calls.run_batch(items, backend=backend, generator_style=True), maxlen=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def shown(times: list[float]) -> str:
    return f"{min(times):6.1f}, median {statistics.median(times):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    programs = (straight, reading, awaiting, chat, forks, references, long)
    cases: list[tuple[str, str, Callable[[], int]]] = []
    for name, backend in (("instant", Instant), ("mock", answers)):
        cases += [(program.__name__, name, single(program, backend)) for program in programs]
    cases += [
        (f"run_batch, {BATCH} programs of 5 calls", "mock", batch_list),
        ("the same, as an iterator", "mock", batch_iterator),
    ]
    rows = [timed(*case, arguments.repeats) for case in cases if arguments.only in " on ".join(case[:2])]
    print(f"{'case':<38} {'backend':<8} {'nodes':>6}  {'CPU us a node':<22} by the clock")
    for row in rows:
        print(
            f"{row.case:<38} {row.backend:<8} {row.nodes:>6}  {shown(row.cpu_us_per_node):<22} {shown(row.us_per_node)}"
        )
    if arguments.only and arguments.only not in "memory":
        return
    peaks = {count: peak_bytes(count) for count in (BATCH, 10 * BATCH)}
    print(
        "peak memory of Python objects, as an iterator:",
        ", ".join(f"{n} programs {b / 1e6:.1f} MB" for n, b in peaks.items()),
    )
    if arguments.json:
        values = {"rows": [asdict(row) for row in rows], "peak_bytes": peaks}
        arguments.json.write_text(json.dumps(values, indent=2))


if __name__ == "__main__":
    main()
