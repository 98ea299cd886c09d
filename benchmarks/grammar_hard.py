"""Inputs that are hard on purpose: each is compiled within a stated limit or refused with one, in little memory.

    python benchmarks/grammar.py --hard

Every input has a process of its own. What it reports is beyond a process that has compiled one small grammar.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from benchmarks.grammar_vocabularies import load_tokenizer

if TYPE_CHECKING:
    from palmette.constrained import CompiledGrammar, Grammar, Vocabulary

MOST_S = 120
TOKENS = 200
"""Random tokens that follow each compile, every one after a mask."""


def _regex(pattern: str) -> Grammar:
    from palmette.constrained import Grammar

    return Grammar.regex(pattern)


def _schema(schema: Any) -> Grammar:
    from palmette.constrained import Grammar

    return Grammar.json_schema(schema)


def _strings() -> Any:
    return {
        "type": "array",
        "items": {"type": "string", "minLength": 300, "maxLength": 300},
        "minItems": 100,
        "maxItems": 100,
    }


def _branches(count: int) -> Any:
    def branch(place: int) -> Any:
        properties = {"kind": {"const": f"kind {place}"}, f"value_{place}": {"type": "integer", "maximum": place}}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    return {"anyOf": [branch(place) for place in range(count)]}


def _megabyte() -> Any:
    def member(place: int) -> Any:
        return {"type": "string", "maxLength": place % 50, "description": f"what member {place} is for " + "x" * 100}

    return {"type": "object", "properties": {f"member_{place:05}": member(place) for place in range(5400)}}


def _deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def _long_pattern() -> str:
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(9)) for _ in range(1000)]
    return f"({'|'.join(words)})+"


HARD: Mapping[str, Callable[[], Grammar]] = {
    "(a|b)*a(a|b){20}": lambda: _regex("(a|b)*a(a|b){20}"),
    "300-character strings in a list of 100": lambda: _schema(_strings()),
    "anyOf of 500 objects": lambda: _schema(_branches(500)),
    "anyOf of 500 values of one key": lambda: _schema(
        {"type": "object", "properties": {"a": {"anyOf": [{"const": {"x": [n, "y"]}} for n in range(500)]}}}
    ),
    "a schema of 1 MB": lambda: _schema(_megabyte()),
    "objects 200 deep": lambda: _schema(_deep(200)),
    "a pattern of 10 kB": lambda: _regex(_long_pattern()),
    "a pattern of 10 kB in a schema": lambda: _schema({"type": "string", "pattern": _long_pattern(), "maxLength": 500}),
}


def run_hard(vocabulary: str, names: tuple[str, ...] = tuple(HARD)) -> dict[str, Any]:
    """Measure every hard input, and print a line of each."""
    rows = []
    context = multiprocessing.get_context("spawn")  # a fork would begin with this process's memory
    for name in names:
        ours, theirs = context.Pipe()
        process = context.Process(target=_measure, args=(name, vocabulary, theirs), daemon=True)
        process.start()
        theirs.close()
        rows.append({"input": name, **_received(ours, process)})
        print(_shown(rows[-1]), flush=True)
    return {"hard": rows}


def _received(pipe: Connection, process: multiprocessing.process.BaseProcess) -> dict[str, Any]:
    try:
        if pipe.poll(MOST_S):
            row: dict[str, Any] = pipe.recv()
            process.join()
            return row
        outcome = f"no answer in {MOST_S} s"
    except EOFError:
        outcome = "crash"
    process.kill()
    process.join()
    return {"outcome": outcome}


def _shown(row: dict[str, Any]) -> str:
    times = {key: row[key] for key in ("compile_ms", "slowest_mask_ms", "memory_mib", "peak_mib") if key in row}
    return f"{row['input']:42} {row['outcome'][:90]:30} " + ", ".join(f"{k} {v:.1f}" for k, v in times.items())


def _measure(name: str, vocabulary_name: str, pipe: Connection) -> None:
    from palmette.constrained import Grammar, GrammarError, compile_grammar

    _, vocabulary = load_tokenizer(vocabulary_name)
    _follow(compile_grammar(Grammar.json_schema({"type": "array", "items": {"type": "string"}}), vocabulary), 10)
    before = _peak_mib()
    row: dict[str, Any] = {"outcome": "compiled", "slowest_mask_ms": 0.0}
    began = time.process_time()
    try:
        grammar = HARD[name]()
        began = time.process_time()
        compiled = compile_grammar(grammar, vocabulary)
        row["compile_ms"] = 1000 * (time.process_time() - began)
        row["slowest_mask_ms"] = _follow(compiled, TOKENS)
    except GrammarError as error:
        row.setdefault("compile_ms", 1000 * (time.process_time() - began))
        row["outcome"] = f"{type(error).__name__}: {error}"[:300]
    pipe.send(row | {"memory_mib": _peak_mib() - before, "peak_mib": _peak_mib()})


def _follow(compiled: CompiledGrammar, tokens: int) -> float:
    """Follow random tokens; milliseconds of the slowest mask."""
    rng, state, slowest = random.Random(0), compiled.start, 0.0
    for _ in range(tokens):
        began = time.process_time()
        mask = compiled.mask(state)
        slowest = max(slowest, time.process_time() - began)
        choices = _ordinary(mask.tolist(), compiled.vocabulary)
        if not choices:
            break
        following = compiled.advance(state, rng.choice(choices))
        assert following is not None
        state = following
    return 1000 * slowest


def _ordinary(words: list[int], vocabulary: Vocabulary) -> list[int]:
    allowed = (32 * place + bit for place, word in enumerate(words) if word for bit in range(32) if word >> bit & 1)
    return [token_id for token_id in allowed if token_id not in vocabulary.end_ids]


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
