"""`palmette grammar`: does a grammar compile, what does it allow, and why is a text rejected."""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .engine import fetch_model
from .errors import EXIT_FAILED, DebugOption, UsageError, note, reports_errors
from .grammar_source import (
    EbnfOption,
    KeyOrderOption,
    LarkOption,
    RegexOption,
    Source,
    TagOption,
    WhitespaceOption,
    read_source,
    read_text,
)

if TYPE_CHECKING:
    from palmette.constrained import CompiledGrammar, Vocabulary

    from .grammar_trace import Rejection

grammar = typer.Typer(help="Try a grammar without a model: check texts against it, explain it.", no_args_is_help=True)

_AROUND = 60
_PATIENCE_S = 3.0
_EXAMPLE_BYTES = 160

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SCHEMA] [TEXT]...",
        help="A file of a JSON Schema, unless an option gives the grammar; then files of texts. - is standard input. "
        "A file's last line end is no part of its text.",
    ),
]
SchemaWord = Annotated[
    str | None, typer.Argument(metavar="[SCHEMA]", help="A file of a JSON Schema, unless an option gives the grammar.")
]
ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="Also the sizes and times of masks over this model's vocabulary.")
]


@grammar.command()
@reports_errors
def check(
    words: Words = None,
    regex: RegexOption = None,
    ebnf: EbnfOption = None,
    lark: LarkOption = None,
    tag: TagOption = None,
    key_order: KeyOrderOption = None,
    whitespace: WhitespaceOption = None,
    debug: DebugOption = False,
) -> None:
    """Compile a grammar, and say of each text whether it matches and, if not, where it goes wrong.

    Leaves with 1 if the grammar is refused or a text is rejected.
    """
    source = _source(words or [], regex, ebnf, lark, tag, key_order, whitespace)
    if [source.name, *source.rest].count("-") > 1:
        raise UsageError("- is given twice, but there is one standard input")
    compiled, milliseconds = _compile(source)
    typer.echo(f"{source.name}: ", nl=False)
    typer.secho("ok", fg=typer.colors.GREEN, nl=False)
    typer.echo(f" ({source.grammar.kind}, compiled in {milliseconds:.1f} ms)")
    verdicts = [_check_text(source, compiled, word) for word in source.rest]
    if not all(verdicts):
        raise typer.Exit(EXIT_FAILED)


@grammar.command()
@reports_errors
def explain(
    schema: SchemaWord = None,
    regex: RegexOption = None,
    ebnf: EbnfOption = None,
    lark: LarkOption = None,
    tag: TagOption = None,
    key_order: KeyOrderOption = None,
    whitespace: WhitespaceOption = None,
    model: ModelName = None,
    debug: DebugOption = False,
) -> None:
    """Print what a grammar is made of, the texts that it allows, and what of a schema it holds a text to."""
    source = _source([] if schema is None else [schema], regex, ebnf, lark, tag, key_order, whitespace)
    compiled, milliseconds = _compile(source)
    for name, value in _facts(source, compiled, milliseconds):
        typer.secho(f"{name + ':':<16}", bold=True, nl=False)
        typer.echo(value)
    if source.schema is not None:
        from .schema_notes import notes_on

        for line in notes_on(source.schema):
            typer.secho(f"{'note:':<16}", bold=True, nl=False)
            typer.echo(line)
    if model is not None:
        _print_masks(source, model)


def _source(
    words: list[str],
    regex: str | None,
    ebnf: str | None,
    lark: str | None,
    tag: str | None,
    key_order: str | None,
    whitespace: str | None,
) -> Source:
    given = {"regex": regex, "ebnf": ebnf, "lark": lark, "tag": tag}
    return read_source(words, given, {"key_order": key_order, "whitespace": whitespace})


def _compile(source: Source) -> tuple[CompiledGrammar, float]:
    from .grammar_trace import compile_for_bytes

    _warm_up()  # which is not the grammar's time
    started = time.perf_counter()
    compiled = compile_for_bytes(source.grammar)
    return compiled, 1000 * (time.perf_counter() - started)


def _warm_up() -> None:
    """Load the compiled loops; where they must be compiled first, say so."""
    from palmette.constrained.compiler import warm_up

    late = threading.Timer(_PATIENCE_S, note, ["compiling the grammar engine; that is done once on a machine ..."])
    late.daemon = True
    late.start()
    try:
        warm_up()
    finally:
        late.cancel()


def _check_text(source: Source, compiled: CompiledGrammar, word: str) -> bool:
    from .grammar_spelling import note_on
    from .grammar_trace import find_rejection

    text = read_text(word)
    text = text.removesuffix("\n").removesuffix("\r")
    rejection = find_rejection(compiled, text)
    typer.echo(f"{word}: ", nl=False)
    if rejection is None:
        typer.secho("accepted", fg=typer.colors.GREEN)
        return True
    typer.secho("rejected", fg=typer.colors.RED, nl=False)
    for line in _rejection_lines(text, rejection):
        typer.echo(line)
    remark = note_on(source, text) if source.schema is not None else None
    if remark is not None:
        typer.echo(f"  note: {remark}")
    return False


def _rejection_lines(text: str, rejection: Rejection) -> Iterator[str]:
    place = f"byte {rejection.offset} (line {rejection.line}, column {rejection.column})"
    yield f" at {place}" + (": the text ends too early" if rejection.at_end else "")
    line = text.split("\n")[rejection.line - 1]
    first = max(0, rejection.column - 1 - _AROUND)
    before = _printable(line[first : rejection.column - 1])
    after = _printable(line[rejection.column - 1 : rejection.column - 1 + _AROUND // 2])
    if first:
        before = "…" + before
    yield f"  {before}{after}{'…' if len(line) > rejection.column - 1 + _AROUND // 2 else ''}"
    yield "  " + " " * _columns(before) + "^"
    yield f"  expected: {rejection.expected}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " if char in "\t\r\n" else "\ufffd" for char in text)


def _columns(text: str) -> int:
    """Cells that `text` takes in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _facts(source: Source, compiled: CompiledGrammar, milliseconds: float) -> Iterator[tuple[str, str]]:
    from palmette.constrained.compiler import lower_and_simplify
    from palmette.constrained.limits import DEFAULT_LIMITS, Deadline
    from palmette.constrained.rules import ALL_BYTES, postorder

    from .grammar_example import example_text, shortest_text

    rules = lower_and_simplify(source.grammar, ALL_BYTES, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    nodes = sum(len(postorder(node)) for node in rules.rules.values())
    yield "grammar", f"{source.grammar.kind}, {len(source.grammar.source)} characters"
    yield "compiled", f"in {milliseconds:.1f} ms, {len(rules.rules)} rules of {nodes} nodes"
    forced = compiled.forced_bytes(compiled.start).decode("utf-8", "replace")
    yield "forced prefix", repr(_short(forced)) if forced else "none"
    shortest = shortest_text(compiled)
    length = compiled.ending_bytes(compiled.start)
    yield "shortest", f"{_short(shortest)!r} ({length} bytes)" if shortest is not None else f"{length} bytes"
    example = example_text(compiled, max(_EXAMPLE_BYTES, 2 * length) if length < 2000 else length)
    if example is not None:
        yield "example", repr(_short(example))
    made = getattr(compiled, "num_states", None)
    if made is not None:
        yield "states", f"{made} met so far, more are made as texts reach them"


def _short(text: str) -> str:
    return text if len(text) <= 2 * _EXAMPLE_BYTES else text[: 2 * _EXAMPLE_BYTES] + "…"


def _print_masks(source: Source, model: str) -> None:
    """Sizes and times of masks along the shortest text, for a model's vocabulary."""
    from palmette.constrained import compile_grammar
    from palmette.runtime.model_path import find_model
    from palmette.runtime.tokenizer import Tokenizer

    fetch_model(model)
    tokenizer = Tokenizer.load(find_model(model))
    vocabulary = tokenizer.vocabulary(len(tokenizer.token_bytes))
    started = time.perf_counter()
    compiled = compile_grammar(source.grammar, vocabulary)
    compile_ms = 1000 * (time.perf_counter() - started)
    counts, times = _walk(compiled, vocabulary)
    facts = [
        ("vocabulary", f"{len(vocabulary.token_bytes)} tokens; a mask is {4 * vocabulary.words} bytes"),
        ("compiled", f"for it in {compile_ms:.1f} ms"),
        ("allowed", f"{counts[0]} tokens at the start, {min(counts)} to {max(counts)} on the way to the shortest end"),
        (
            "mask times",
            f"{sum(times) / len(times):.0f} us on average, {max(times):.0f} us at most ({len(times)} states)",
        ),
    ]
    for name, value in facts:
        typer.secho(f"{name + ':':<16}", bold=True, nl=False)
        typer.echo(value)
    note("the first mask of a process includes the compilation of its loop, unless that is cached")


def _walk(compiled: CompiledGrammar, vocabulary: Vocabulary) -> tuple[list[int], list[float]]:
    """Allowed tokens, and microseconds of each mask, in the states of the shortest text."""
    import numpy as np

    matcher = compiled.matcher()
    counts, times = [], []
    for token_id in [*compiled.shortest_ending(compiled.start)[:1000], None]:
        started = time.perf_counter()
        mask = matcher.mask()
        times.append(1e6 * (time.perf_counter() - started))
        counts.append(int(np.unpackbits(mask.view(np.uint8)).sum()))
        if token_id is not None:
            matcher.accept(token_id)
    return counts, times
