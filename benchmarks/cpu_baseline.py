"""Palmette against transformers' `generate` on a CPU: the same model, float32, the same threads, interleaved.

    python benchmarks/cpu_baseline.py [--repeats 5] [--threads 2] [--json OUT]

Each case is run in turn by both engines, several times over; the ratio is that of the two medians. Memory and the time
to the first token are of fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFILL = 512
PROMPT = 64
DECODE = 48
BRANCHES, PREFIX, SUFFIX, BRANCH_TOKENS = 16, 600, 8, 32
WORDS = (
    " time", " year", " people", " way", " day", " man", " thing", " woman", " life", " child", " world", " school",
    " state", " family", " student", " group", " country",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One question: `tokens` a run for the rate, and the two ways to do it."""

    name: str
    tokens: int
    palmette: Callable[[], None]
    transformers: Callable[[], None]


def words(count: int, seed: int) -> str:
    """Text of exactly `count` tokens: every word is one token of SmolLM2's vocabulary."""
    import random

    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) for _ in range(count))


class Transformers:
    """The peer."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def generate(self, prompts: list[str], new_tokens: int) -> None:
        """Greedy, exactly `new_tokens` for each prompt, as one batch without padding."""
        ids = self._torch.tensor([self._tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts])
        with self._torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        assert output.shape == (len(prompts), ids.shape[1] + new_tokens)


class Palmette:
    """The engine in process, through the language. The cache is flushed before every run."""

    def __init__(self, folder: Path) -> None:
        import palmette as pt

        self._pt = pt
        self._engine = pt.runtime.launch(str(folder), max_total_tokens=16_384, processes=False)

        @pt.function
        def complete(s: pt.ProgramState, prompts: list[str], new_tokens: int) -> None:
            for branch, prompt in zip(s.fork(len(prompts)), prompts, strict=True):
                branch += prompt + pt.gen("text", max_tokens=new_tokens, temperature=0, ignore_eos=True)

        @pt.function
        def fork(s: pt.ProgramState, prefix: str, suffixes: list[str], new_tokens: int) -> None:
            s += prefix
            for branch, suffix in zip(s.fork(len(suffixes)), suffixes, strict=True):
                branch += suffix + pt.gen("text", max_tokens=new_tokens, temperature=0, ignore_eos=True)

        self._complete, self._fork = complete, fork

    def generate(self, prompts: list[str], new_tokens: int) -> None:
        self._engine.flush_cache()
        _checked(self._complete.run(prompts=prompts, new_tokens=new_tokens, backend=self._engine))

    def fork(self, prefix: str, suffixes: list[str], new_tokens: int) -> None:
        self._engine.flush_cache()
        _checked(self._fork.run(prefix=prefix, suffixes=suffixes, new_tokens=new_tokens, backend=self._engine))


def _checked(state: Any) -> None:
    if state.error() is not None:
        raise state.error()


def cases(ours: Palmette, theirs: Transformers) -> list[Case]:
    prefill = [words(PREFILL, 1)]
    one, sixteen = [words(PROMPT, 2)], [words(PROMPT, 10 + i) for i in range(16)]
    prefix, suffixes = words(PREFIX, 3), [words(SUFFIX, 40 + i) for i in range(BRANCHES)]
    whole = [prefix + suffix for suffix in suffixes]
    return [
        Case("prefill 512", PREFILL, lambda: ours.generate(prefill, 1), lambda: theirs.generate(prefill, 1)),
        Case("decode, batch 1", DECODE, lambda: ours.generate(one, DECODE), lambda: theirs.generate(one, DECODE)),
        Case(
            "decode, batch 16",
            16 * DECODE,
            lambda: ours.generate(sixteen, DECODE),
            lambda: theirs.generate(sixteen, DECODE),
        ),
        Case(
            "fork(16) on 600 tokens",
            BRANCHES * BRANCH_TOKENS,
            lambda: ours.fork(prefix, suffixes, BRANCH_TOKENS),
            lambda: theirs.generate(whole, BRANCH_TOKENS),
        ),
    ]


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Both engines in turn, `repeats` times, after one warm-up each."""
    case.palmette()
    case.transformers()
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(case.palmette))
        theirs.append(seconds(case.transformers))
    return {
        "case": case.name,
        "palmette": summary(ours, case),
        "transformers": summary(theirs, case),
        "ratio": statistics.median(theirs) / statistics.median(ours),
    }


def summary(times: list[float], case: Case) -> dict[str, Any]:
    median = statistics.median(times)
    return {"median_s": median, "min_s": min(times), "max_s": max(times), "tokens_per_s": case.tokens / median}


def shown(engine: str, row: dict[str, Any]) -> str:
    times = row[engine]
    return f"{engine} {times['tokens_per_s']:7.1f} tokens/s ({times['min_s']:.2f} to {times['max_s']:.2f} s)"


def resident_mb(folder: Path, threads: int) -> float:
    """Peak resident memory of a fresh process that loads the model and runs a fork of 16 on 600 tokens."""
    code = f"import cpu_baseline, pathlib; cpu_baseline.print_peak_mb(pathlib.Path({str(folder)!r}))"
    environment = _env(threads) | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def print_peak_mb(folder: Path) -> None:
    Palmette(folder).fork(words(PREFIX, 3), [words(SUFFIX, 40 + i) for i in range(BRANCHES)], BRANCH_TOKENS)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def first_token_s(threads: int) -> float:
    """From starting `palmette generate "Hi"` in a fresh process to the first byte of its answer."""
    command = [sys.executable, "-m", "palmette", "generate", "Hi", "--stream", "--max-tokens", "4"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_env(threads)) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "no output"
        elapsed = time.perf_counter() - start
        process.stdout.read()
    return elapsed


def _env(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    import torch

    from palmette.runtime.default_model import ensure_default_model

    torch.set_num_threads(arguments.threads)
    folder = ensure_default_model()
    first = [first_token_s(arguments.threads) for _ in range(3)]
    memory = resident_mb(folder, arguments.threads)
    rows = [measure(case, arguments.repeats) for case in cases(Palmette(folder), Transformers(folder))]
    for row in rows:
        print(f"{row['case']:24} {shown('palmette', row)}   {shown('transformers', row)}   ratio {row['ratio']:.2f}")
    print(f"{'resident memory':24} {memory:.0f} MB")
    print(f"{'first token, warm cache':24} {statistics.median(first):.2f} s ({min(first):.2f} to {max(first):.2f})")
    if arguments.json:
        result = {"rows": rows, "resident_mb": memory, "first_token_s": first, "threads": arguments.threads}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
