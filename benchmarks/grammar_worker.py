"""The process that measures one engine: a line of JSON for each schema in, two lines out (compiled, walked).

Run by grammar.py, which ends it when it takes too long. Times are CPU time of this process, all its threads together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from any folder

from benchmarks.grammar_engines import ENGINES, Encode, Engine, RefusedError, Walker, WalkError, warm_up
from benchmarks.grammar_sample import SPELLINGS, Case, in_schema_order
from benchmarks.grammar_vocabularies import load_tokenizer

MEMORY_BYTES = 12 << 30
"""Address space of a worker: an engine that takes more has crashed."""


@dataclass(slots=True)
class Walked:
    """What following the instances of one schema showed.

    Attributes:
        valid: for each valid instance, for each spelling: "right", "order" (right when the order of keys is free),
            "rejected", "error" or "untried".
        invalid: whether each was accepted.
        format_only: likewise, those that only `format` makes invalid.
        mask_us: of every mask of the valid instances, compact, in order.
        first_us: those of states that no instance of this schema had been in before.
        warm_us: a mask's average in each instance when all are walked again; native only.
        advance_us: of every token.
    """

    valid: list[dict[str, str]] = field(default_factory=list)
    invalid: list[bool] = field(default_factory=list)
    format_only: list[bool] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    first_us: list[float] = field(default_factory=list)
    warm_us: list[float] = field(default_factory=list)
    advance_us: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Measurer:
    """Measures one schema at a time with one engine."""

    def __init__(self, name: str, engine: Engine, encode: Encode) -> None:
        self._name, self._engine, self._encode = name, engine, encode
        self._overhead_ns = int(statistics.median(_empty_ns() for _ in range(1000)))

    def compile(self, case: Case) -> tuple[dict[str, Any], Callable[[], Walker] | None]:
        """The report on compiling, and what begins a text."""
        schema = json.dumps(case.schema)
        began = time.process_time_ns()
        try:
            begin = self._engine.compile(schema, {})
        except RefusedError as error:
            report = {"outcome": "refused", "reason": str(error)[:300], "unsatisfiable": error.unsatisfiable}
            return report | {"compile_ms": (time.process_time_ns() - began) / 1e6}, None
        return {"outcome": "compiled", "compile_ms": (time.process_time_ns() - began) / 1e6}, begin

    def walk(self, case: Case, begin: Callable[[], Walker]) -> Walked:
        """Follow every instance."""
        walked = Walked()
        seen: set[int] = set()
        texts = [self._encode(case.spelled(instance, "compact")) for instance in case.valid]
        right = [self._timed(begin, ids, seen, walked) for ids in texts]
        if self._name == "native":
            walked.warm_us += [self._warm(begin, ids) for ids in texts]
        free = self._in_any_order(case, begin) if not all(right) else None
        for instance, is_right in zip(case.valid, right, strict=True):
            outcome = "right" if is_right else "order" if free and free(instance) else "rejected"
            walked.valid.append({"compact": outcome, **self._other_spellings(case, instance, begin, outcome)})
        walked.invalid = [self._follows(begin, case.spelled(instance, "compact")) for instance in case.invalid]
        walked.format_only = [self._follows(begin, case.spelled(instance, "compact")) for instance in case.format_only]
        return walked

    def _timed(self, begin: Callable[[], Walker], ids: list[int], seen: set[int], walked: Walked) -> bool:
        walker, prefix = begin(), 0
        clock, overhead = time.process_time_ns, self._overhead_ns
        try:
            for token_id in [*ids, None]:
                state = walker.state()
                place = prefix if state is None else state
                began = clock()
                walker.mask()
                walked.mask_us.append(max(0, clock() - began - overhead) / 1e3)
                if place not in seen:
                    seen.add(place)
                    walked.first_us.append(walked.mask_us[-1])
                if token_id is None:
                    return walker.may_end()
                began = clock()
                follows = walker.advance(token_id)
                walked.advance_us.append(max(0, clock() - began - overhead) / 1e3)
                if not follows:
                    return False
                prefix = hash((prefix, token_id))
        except (WalkError, ValueError, RuntimeError) as error:
            walked.errors.append(str(error)[:300])
        return False

    def _warm(self, begin: Callable[[], Walker], ids: list[int]) -> float:
        """Average microseconds of a mask when every state has been met."""
        walker, spent, count = begin(), 0, 0
        for token_id in [*ids, None]:
            began = time.process_time_ns()
            for _ in range(10):
                walker.mask()
            spent, count = spent + time.process_time_ns() - began - self._overhead_ns, count + 10
            if token_id is None or not walker.advance(token_id):
                break
        return max(0, spent) / 1e3 / count

    def _in_any_order(self, case: Case, begin: Callable[[], Walker]) -> Callable[[Any], bool] | None:
        """What tells whether a rejected instance is right but for the order of its keys; None if nothing can be.

        For this engine that is its own option; for a peer, or where the option is refused, the instance put in order.
        """
        if case.are_texts:
            return None
        free = self._with_options(case, {"key_order": "any"}) if self._name == "native" else None

        def check(instance: Any) -> bool:
            if free is not None:
                return self._follows(free, case.spelled(instance, "compact"))
            return self._follows(begin, case.spelled(in_schema_order(instance, case.schema), "compact"))

        return check

    def _with_options(self, case: Case, options: dict[str, Any]) -> Callable[[], Walker] | None:
        try:
            return self._engine.compile(json.dumps(case.schema), options)
        except RefusedError:
            return None

    def _other_spellings(self, case: Case, instance: Any, begin: Callable[[], Walker], compact: str) -> dict[str, str]:
        if case.are_texts or compact != "right":
            return dict.fromkeys(SPELLINGS[1:], "untried")
        outcomes = {}
        for spelling in SPELLINGS[1:]:
            start = begin
            if spelling == "indented" and self._name == "native":
                start = self._with_options(case, {"whitespace": "indented"}) or begin
            outcomes[spelling] = "right" if self._follows(start, case.spelled(instance, spelling)) else "rejected"
        return outcomes

    def _follows(self, begin: Callable[[], Walker], text: str) -> bool:
        walker = begin()
        try:
            return all(walker.advance(token_id) for token_id in self._encode(text)) and walker.may_end()
        except (WalkError, ValueError, RuntimeError):
            return False


def _empty_ns() -> int:
    began = time.process_time_ns()
    return time.process_time_ns() - began


def serve(measurer: Measurer, requests: TextIO, answers: TextIO) -> None:
    """Answer every line of `requests` with a line on compiling and, where it compiled, a line on walking."""
    for line in requests:
        case = Case(**json.loads(line))
        report, begin = measurer.compile(case)
        _write(answers, report)
        if begin is not None:
            _write(answers, asdict(measurer.walk(case, begin)))


def _write(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("vocabulary")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    tokenizer, vocabulary = load_tokenizer(arguments.vocabulary)
    began = time.process_time()
    engine = ENGINES[arguments.engine](vocabulary, tokenizer.encode_text)
    warm_up(engine, tokenizer.encode_text)
    _write(answers, {"ready_s": time.process_time() - began})
    serve(Measurer(arguments.engine, engine, tokenizer.encode_text), sys.stdin, answers)


if __name__ == "__main__":
    main()
