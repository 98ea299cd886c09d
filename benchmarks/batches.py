"""10,000 small programs through `run_batch` against a model that computes nothing: memory flat, time linear, resumable.

    python benchmarks/batches.py [--programs N] [--threads N] [--json OUT]

A program is a gen, a fork of two with a gen each, and a select. Everything but the model is real: scheduler, radix
cache, pages, text. Each size runs in a process of its own, once as states come in order and once into a results file
as they end; then a child is killed (SIGKILL) in the middle of a batch, and another one goes on with its file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import palmette as pt

SIZES = (0.1, 0.2, 0.5, 1.0)
"""Parts of the greatest number of programs that are timed, each in a process of its own."""
EVERY = 10
"""Memory and time are taken so often in a run."""
POOL_TOKENS = 32768  # small, so that the radix cache is full before the memory is looked at


@pt.function
def small(s: pt.ProgramState, item: int) -> None:
    """One program of the batch."""
    s += f"Item {item}: " + pt.gen("draft", max_tokens=8)
    branches = s.fork(2)
    branches += [" short: " + pt.gen("title", max_tokens=4), " long: " + pt.gen("title", max_tokens=6)]
    branches.join()
    s += " Good? " + pt.select("verdict", ["yes", "no"])


@dataclass
class Row:
    """One batch.

    Attributes:
        programs, threads: its size, and the most programs at once.
        results_file: its results went into a file.
        distinct: items that differ; the others repeat them, and with them all texts.
        seconds, cpu_s: of each tenth of it, by the clock and of the processor's time.
        rss_mb: memory of the process after each tenth.
        failed: programs that failed.
    """

    programs: int
    threads: int
    results_file: bool
    distinct: int
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def total_s(self) -> float:
        return sum(self.seconds)

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s)


def rss_mb() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def engine(folder: Path) -> Any:
    """An engine of this process on the fake model."""
    from palmette.bench import fake_model
    from palmette.runtime.config import EngineConfig
    from palmette.runtime.engine import Engine

    config = EngineConfig(model=str(fake_model.write_folder(folder / "model")), max_total_tokens=POOL_TOKENS)
    loaded = fake_model.load(config)
    return Engine(loaded.scheduler, loaded.tokenizer, loaded.model_info, overlap=loaded.overlap)


def items(count: int, distinct: int | None = None) -> Iterator[dict[str, int]]:
    return ({"item": item % (distinct or count)} for item in range(count))


def run(programs: int, threads: int, folder: Path, results_file: Path | None = None, distinct: int = 0) -> Row:
    """Run one batch in this process, states in order; with a results file, as they end."""
    row = Row(programs, threads, results_file is not None, distinct or programs)
    with engine(folder) as backend:
        states = small.run_batch(
            items(programs, distinct),
            backend=backend,
            num_threads=threads,
            as_finished=results_file is not None,
            generator_style=True,
            results_file=results_file,
        )
        began, cpu_began = time.perf_counter(), time.process_time()
        for count, state in enumerate(states, start=1):
            row.failed += state.error() is not None
            if count % (programs // EVERY) == 0:
                row.seconds.append(time.perf_counter() - began)
                row.cpu_s.append(time.process_time() - cpu_began)
                row.rss_mb.append(rss_mb())
                began, cpu_began = time.perf_counter(), time.process_time()
    return row


def child(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--child", *arguments], stdout=subprocess.PIPE, text=True)


def measured(programs: int, threads: int, *, results_file: bool = False, distinct: int = 0) -> Row:
    """One batch in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = [str(Path(folder) / "out.jsonl")] if results_file else []
        process = child([str(programs), str(threads), folder, str(distinct), *path])
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the batch of {programs} programs ended with exit code {process.returncode}")
    return Row(**json.loads(output))


@dataclass
class Resumed:
    """A batch that was killed and gone on with.

    Attributes:
        programs: its size.
        kept: whole lines that the killed process left.
        cut_off_bytes: of a line that it was writing.
        ran: programs that the second process ran.
        lines: in the file at the end.
        whole: every item has one line, in order, without an error.
    """

    programs: int
    kept: int
    cut_off_bytes: int
    ran: int
    lines: int
    whole: bool


def killed_and_resumed(programs: int, threads: int) -> Resumed:
    """Kill a child when half of its lines are there, and go on in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        with child([str(programs), str(threads), folder, "0", str(path)]) as process:
            while process.poll() is None and _lines(path) < programs // 2:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        kept = data.count(b"\n")
        cut_off = len(data) - data.rfind(b"\n") - 1
        with engine(Path(folder)) as backend:
            states = small.run_batch(
                items(programs), backend=backend, num_threads=threads, as_finished=True, results_file=path, resume=True
            )
            ran = sum(len(state.tree.nodes) > 0 for state in states)
        results = [json.loads(line) for line in path.read_text().splitlines()]
    places = [result["index"] for result in results]
    whole = places == list(range(programs)) and all(result["error"] is None for result in results)
    return Resumed(programs, kept, cut_off, ran, len(results), whole)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fit(rows: list[Row]) -> dict[str, float]:
    """Processor time as a straight line of the number of programs, and how much of its variance that explains.

    The time by the clock is not fitted: it is also that of whatever else the machine does.
    """
    sizes = np.array([row.programs for row in rows], dtype=float)
    seconds = np.array([row.total_cpu_s for row in rows])
    slope, start = np.polyfit(sizes, seconds, 1)
    rest = seconds - (slope * sizes + start)
    return {
        "ms_per_program": 1e3 * float(slope),
        "start_s": float(start),
        "r_squared": 1 - float(rest @ rest / ((seconds - seconds.mean()) @ (seconds - seconds.mean()))),
    }


def shown(row: Row) -> str:
    kind = "as they end, into a file" if row.results_file else "in order"
    kind += f", {row.distinct} distinct" if row.distinct < row.programs else ""
    first, last = row.rss_mb[0], row.rss_mb[-1]
    tenths = " ".join(f"{seconds:.2f}" for seconds in row.cpu_s)
    return (
        f"{row.programs:>7} programs, {row.threads} threads, {kind}: {row.total_s:.1f} s, of the processor "
        f"{row.total_cpu_s:.1f} s ({1e3 * row.total_cpu_s / row.programs:.2f} ms each), {row.failed} failed; "
        f"RSS {first:.1f} MB after a tenth, {last:.1f} MB at the end; processor time of each tenth: {tenths}"
    )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000, help="at least 100")
    parser.add_argument("--threads", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        programs, threads, folder, distinct, *path = given.child
        row = run(int(programs), int(threads), Path(folder), Path(path[0]) if path else None, int(distinct))
        print(json.dumps(asdict(row)))
        return {}
    if given.programs < 100:
        parser.error(f"--programs must be at least 100, not {given.programs}")
    report = measure(given.programs, given.threads)
    if given.json:
        given.json.write_text(json.dumps(report, indent=2))
    return report


def measure(programs: int, threads: int) -> dict[str, Any]:
    """Everything, printed as it comes."""
    rows = []
    for part in SIZES:
        rows.append(measured(int(part * programs), threads))
        print(shown(rows[-1]), flush=True)
    line = fit(rows)
    each, start = f"{line['ms_per_program']:.2f} ms a program", f"{line['start_s']:.2f} s"
    print(f"processor time: {each} + {start}, R squared {line['r_squared']:.4f}")
    for more in (
        measured(programs, 2 * threads),
        measured(programs, threads, distinct=programs // 50),
        measured(programs, threads, results_file=True),
    ):
        rows.append(more)
        print(shown(more), flush=True)
    resumed = killed_and_resumed(programs, threads)
    print(
        f"killed with {resumed.kept} of {programs} lines (and {resumed.cut_off_bytes} bytes of another); then "
        f"{resumed.ran} programs ran, {resumed.lines} lines, {'all' if resumed.whole else 'NOT all'} there and in order"
    )
    return {
        "rows": [asdict(row) for row in rows],
        "fit": line,
        "resumed": asdict(resumed),
    }


if __name__ == "__main__":
    main()
