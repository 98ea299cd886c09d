"""JSON Schema engines on schemas with instances: coverage, wrong answers, and the time of compiling and of masks.

    python benchmarks/grammar.py --data FILE.jsonl [--engines native,llguidance,xgrammar,outlines] [--json OUT]
        [--splits NAME,...] [--limit N] [--vocabulary smollm2|qwen|FOLDER] [--timeout SECONDS]
    python benchmarks/grammar.py --hard [--json OUT]
    python benchmarks/grammar.py --answers 100 --data FILE.jsonl [--json OUT]
    python benchmarks/grammar.py --throughput SCHEMA.json [--json OUT]

Each engine runs in a process of its own, one after the other; a process that crashes or takes too long for a schema
is replaced, and goes on with the next schema. Times are CPU time, so compare engines of one run. A mask is asked for
before every token of every valid instance and after the last. See grammar_tally.py for what the figures mean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from any folder

from benchmarks.grammar_engines import ENGINES
from benchmarks.grammar_sample import Case, read_cases
from benchmarks.grammar_tally import Record, engine_figures, ratios, table

STARTUP_S = 300
_STDERR = "GRAMMAR_BENCHMARK_STDERR"


class Worker:
    """The process of one engine, started when it is first needed."""

    def __init__(self, engine: str, vocabulary: str, timeout_s: float) -> None:
        self._engine, self._vocabulary, self._timeout_s = engine, vocabulary, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.ready_s = 0.0

    def measure(self, case: Case) -> Record:
        """Have one schema compiled and its instances followed."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(asdict(case)).encode() + b"\n")
            process.stdin.flush()
            compiled = self._answer(self._timeout_s)
        except TimeoutError:
            self.close()
            return Record(case, "timeout", compile_ms=1000 * self._timeout_s)
        except (EOFError, BrokenPipeError):
            return Record(case, "crash", reason=self._end())
        if compiled["outcome"] == "refused":
            return Record(case, **compiled)
        try:
            return Record(case, walked=self._answer(2 * self._timeout_s), **compiled)
        except TimeoutError:
            self.close()
            return Record(case, "timeout", compiled["compile_ms"], reason="while its instances were followed")
        except EOFError:
            return Record(case, "crash", compiled["compile_ms"], reason=self._end())

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def _end(self) -> str:
        process, self._process, self._unread = self._process, None, b""
        assert process is not None
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return f"the process ended with {code}"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, str(Path(__file__).with_name("grammar_worker.py")), self._engine]
            self._process = subprocess.Popen(
                [*command, self._vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=_errors()
            )
            try:
                self.ready_s = self._answer(STARTUP_S)["ready_s"]
            except (EOFError, TimeoutError) as error:
                self.close()
                raise SystemExit(f"{self._engine} did not start; {_STDERR}=1 shows what it says") from error
        return self._process

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line of the process. Its own CPU time counts; four times that in all where the machine is busy."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        began, cpu_began = time.monotonic(), _cpu_s(process.pid)
        while b"\n" not in self._unread:
            if select.select([process.stdout], [], [], 0.2)[0]:
                received = os.read(process.stdout.fileno(), 1 << 20)
                if not received:
                    raise EOFError
                self._unread += received
            elif _cpu_s(process.pid) - cpu_began > timeout_s or time.monotonic() - began > 4 * timeout_s:
                raise TimeoutError
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _errors() -> int | None:
    """Where workers write what is not an answer: nowhere, or as this process does when asked for."""
    return None if os.environ.get(_STDERR) else subprocess.DEVNULL


def _cpu_s(pid: int) -> float:
    """Seconds that a process has worked so far; the clock's where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_engine(engine: str, cases: Sequence[Case], vocabulary: str, timeout_s: float) -> dict[str, Any]:
    """All figures of one engine."""
    worker = Worker(engine, vocabulary, timeout_s)
    try:
        records = [worker.measure(case) for case in _counted(engine, cases)]
    finally:
        worker.close()
    return engine_figures(records) | {"ready_s": worker.ready_s}


def _counted(engine: str, cases: Sequence[Case]) -> Iterator[Case]:
    for place, case in enumerate(cases, 1):
        if sys.stderr.isatty():
            print(f"\r{engine}: {place} of {len(cases)} {case.id:60.60}", end="", file=sys.stderr)
        yield case
    if sys.stderr.isatty():
        print("\r" + " " * 100, end="\r", file=sys.stderr)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The comparison of engines, printed and given back."""
    cases = read_cases(arguments.data, _names(arguments.splits), arguments.limit)
    engines = {
        name: run_engine(name, cases, arguments.vocabulary, arguments.timeout) for name in _names(arguments.engines)
    }
    print(table(engines))
    peer = engines.get("llguidance")
    found = {name: ratios(figures, peer) for name, figures in engines.items()} if peer else {}
    return {"vocabulary": arguments.vocabulary, "engines": engines, "ratios_to_llguidance": found}


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def mode(arguments: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    """What to do."""
    if arguments.hard:
        from benchmarks.grammar_hard import run_hard

        return lambda: run_hard(arguments.vocabulary)
    if arguments.throughput:
        from benchmarks.grammar_answers import run_throughput

        return lambda: run_throughput(arguments.throughput)
    if arguments.answers:
        from benchmarks.grammar_answers import run_answers

        return lambda: run_answers(read_cases(arguments.data, _names(arguments.splits), arguments.answers))
    return lambda: compare(arguments)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--engines", default="native", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--splits", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--vocabulary", default="smollm2")
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--hard", action="store_true")
    parser.add_argument("--answers", type=int, metavar="SCHEMAS")
    parser.add_argument("--throughput", type=Path, metavar="SCHEMA")
    arguments = parser.parse_args(argv)
    if unknown := set(_names(arguments.engines)) - ENGINES.keys():
        parser.error(f"no engine is called {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    if arguments.data is None and not (arguments.hard or arguments.throughput):
        parser.error("--data is needed")
    found = mode(arguments)()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
