"""The default model under schemas, end to end: whether its answers validate, and what a constraint costs."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from benchmarks.grammar_sample import Case

import palmette as pt
from palmette.constrained import Grammar
from palmette.runtime.engine import Engine

BUDGETS = (32, 64, 256)
TEMPERATURES = (0.0, 1.0)
UP_FRONT = ("GrammarError", "UnsupportedGrammarError", "UnsatisfiableGrammarError", "GrammarLimitError", "RequestError")
"""Errors that refuse a schema, or say that no answer fits `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one schema: "valid"; "invalid", with the reason; or the name of the error."""

    schema_id: str
    max_tokens: int
    temperature: float
    outcome: str
    reason: str = ""
    text: str = ""
    breaks_format: bool = False

    @property
    def is_right(self) -> bool:
        """Whether the answer validates, or the schema was refused before the first token."""
        return self.outcome == "valid" or self.outcome in UP_FRONT


@pt.function
def answer(s: pt.ProgramState, title: str, schema: str, max_tokens: int, temperature: float) -> None:
    """One JSON answer."""
    s += f"An example of {title} as JSON:\n"
    s += pt.gen("answer", max_tokens, json_schema=schema, temperature=temperature, seed=7)


def ask(engine: Engine, cases: Sequence[Case], max_tokens: int, temperature: float) -> list[Answer]:
    """An answer under the schema of every case, many at a time."""
    items = [
        {"title": case.split, "schema": json.dumps(case.schema), "max_tokens": max_tokens, "temperature": temperature}
        for case in cases
    ]
    states = answer.run_batch(items, backend=engine)
    return [_judged(case, state, max_tokens, temperature) for case, state in zip(cases, states, strict=True)]


def _judged(case: Case, state: pt.ProgramState, max_tokens: int, temperature: float) -> Answer:
    error = state.error()
    if error is not None:
        cause = error.__cause__ or error
        name = next((kind.__name__ for kind in type(cause).__mro__ if kind.__name__ in UP_FRONT), type(cause).__name__)
        if "could not be compiled" in str(error):  # the queue's words for an error that is not the schema's fault
            name = "compiler failed"
        return Answer(case.id, max_tokens, temperature, name, str(error)[:300])
    text = str(state["answer"])
    try:
        value = json.loads(text)
    except ValueError as not_json:
        return Answer(case.id, max_tokens, temperature, "invalid", str(not_json), text)
    wrong = first_error(value, case.schema)
    outcome, reason = ("valid", "") if wrong is None else ("invalid", wrong[:300])
    return Answer(
        case.id, max_tokens, temperature, outcome, reason, text, first_error(value, case.schema, True) != wrong
    )


def first_error(value: Any, schema: Any, formats: bool = False) -> str | None:
    """What python-jsonschema has against a value, `format` only where asked for; None where it validates."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER if formats else None)
    found = next(iter(validator.iter_errors(value)), None)
    return None if found is None else f"{found.message} at {found.json_path}"


def run_answers(cases: Sequence[Case]) -> dict[str, Any]:
    """Ask at every budget and temperature; print counts, and every answer that is not right."""
    found: list[Answer] = []
    with pt.runtime.launch(seed=0, max_total_tokens=60_000, processes=False) as engine:
        for temperature in TEMPERATURES:
            for max_tokens in BUDGETS:
                began = time.perf_counter()
                answers = ask(engine, cases, max_tokens, temperature)
                counts = Counter(each.outcome for each in answers)
                formats = sum(each.breaks_format for each in answers)
                print(
                    f"temperature {temperature}, max_tokens {max_tokens}: {dict(counts)}, {formats} break a format, ",
                    end="",
                )
                print(f"{time.perf_counter() - began:.0f} s", flush=True)
                found += answers
    for each in found:
        if not each.is_right:
            print(
                f"{each.schema_id} ({each.max_tokens}, {each.temperature}): {each.outcome} {each.reason} {each.text!r}"
            )
    return {"schemas": len(cases), "counts": _counts(found), "not_right": [_row(a) for a in found if not a.is_right]}


def _counts(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    groups = Counter((each.temperature, each.max_tokens, each.outcome) for each in answers)
    return [{"temperature": t, "max_tokens": m, "outcome": o, "count": count} for (t, m, o), count in groups.items()]


def _row(each: Answer) -> dict[str, Any]:
    return {"id": each.schema_id, "outcome": each.outcome, "reason": each.reason, "text": each.text}


# -- constrained against free -----------------------------------------------------------------------------------------

REPEATS = 5
BATCHES = (1, 16)
PROMPT_TOKENS = 64
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Pace:
    """One run: tokens that came, those of them that the grammar forced, and seconds."""

    tokens: int
    forced: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@pt.function
def constrained(s: pt.ProgramState, prompt: str, grammar: Grammar, seed: int) -> None:
    """A prompt answered under the grammar."""
    s += prompt + pt.gen("text", MAX_TOKENS, grammar=grammar, temperature=1, seed=seed)


@pt.function
def free(s: pt.ProgramState, prompt: str, tokens: int, seed: int) -> None:
    """A prompt followed by so many tokens."""
    s += prompt + pt.gen("text", tokens, temperature=1, seed=seed, ignore_eos=True)


def run_throughput(schema: Path) -> dict[str, Any]:
    """Tokens a second under a schema and without one, the same number of tokens for every prompt, in turn.

    The prompts and the grammar are warm: one run of each kind comes first, and the radix cache is kept.
    """
    grammar = Grammar.json_schema(schema.read_text(encoding="utf-8"), whitespace="none")
    rows = []
    with pt.runtime.launch(seed=0, max_total_tokens=30_000, processes=False) as engine:
        for batch in BATCHES:
            prompts = read_prompts(schema.with_name("workloads.py"), engine, batch)
            rows.append(_compare(engine, prompts, grammar))
            print(_shown(rows[-1]), flush=True)
    return {"throughput": rows}


def read_prompts(workloads: Path, engine: Engine, count: int) -> list[str]:
    """Prompts of the json workload of the file beside the schema, as text and cut to what a CPU can do."""
    spec = importlib.util.spec_from_file_location("workloads", workloads)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ids: list[list[int]] = module.json_prompts(count, PROMPT_TOKENS)
    return ["".join(engine.tokenizer.token_text(token_id) for token_id in prompt) for prompt in ids]


def _compare(engine: Engine, prompts: list[str], grammar: Grammar) -> dict[str, Any]:
    ours: list[Pace] = []
    theirs: list[Pace] = []
    items = [{"prompt": prompt, "seed": place} for place, prompt in enumerate(prompts)]
    for repeat in range(REPEATS + 1):
        held, counts = _pace(constrained, [item | {"grammar": grammar} for item in items], engine)
        loose, _ = _pace(free, [item | {"tokens": n} for item, n in zip(items, counts, strict=True)], engine)
        if repeat:  # the first is not counted
            ours.append(held)
            theirs.append(loose)
    ratios = [held.tokens_per_s / loose.tokens_per_s for held, loose in zip(ours, theirs, strict=True)]
    return {
        "batch": len(prompts),
        "constrained_tokens_per_s": [round(pace.tokens_per_s, 1) for pace in ours],
        "free_tokens_per_s": [round(pace.tokens_per_s, 1) for pace in theirs],
        "forced_share": ours[0].forced / ours[0].tokens,
        "tokens": ours[0].tokens,
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def _pace(program: Any, items: list[dict[str, Any]], engine: Engine) -> tuple[Pace, list[int]]:
    """The pace of all items together, and the tokens of each answer."""
    began = time.perf_counter()
    states = program.run_batch(items, backend=engine)
    for state in states:
        if (error := state.error()) is not None:
            raise error
    seconds = time.perf_counter() - began
    metas = [state.get_meta_info("text") for state in states]
    counts = [int(meta["completion_tokens"]) for meta in metas]
    return Pace(sum(counts), sum(int(meta["forced_tokens"]) for meta in metas), seconds), counts


def _shown(row: dict[str, Any]) -> str:
    held, loose = (statistics.median(row[f"{kind}_tokens_per_s"]) for kind in ("constrained", "free"))
    low, high = min(row["ratios"]), max(row["ratios"])
    return (
        f"batch {row['batch']:3}: constrained {held:.1f} tokens/s ({row['forced_share']:.0%} forced), "
        f"free {loose:.1f}, ratio {row['ratio']:.2f} ({low:.2f} to {high:.2f})"
    )
