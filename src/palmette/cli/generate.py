"""`palmette generate`: one answer to one prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import palmette as pt
from palmette.lang.options import SamplingOptions

from .engine import ModelOption, running_engine
from .errors import DebugOption, UsageError, note, reports_errors, usage_errors

ANSWER = "answer"


@reports_errors
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    regex: Annotated[str | None, typer.Option(help="The answer matches this pattern in full.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option("--json-schema", help="A file: the answer is JSON that validates against it.")
    ] = None,
    choices: Annotated[
        str | None, typer.Option(help="The likeliest of these, a,b,c; or a JSON array, where one has a comma.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it comes.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="At most this many tokens.", show_default="128")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", show_default="1.0")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random stream: the same seed, the same answer.")] = None,
    model: ModelOption = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Ask in the model's chat format, or let it continue the text.",
            show_default="chat, where the model has a chat template",
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Print the model's answer to a prompt, and nothing else on standard output."""
    sampling: SamplingOptions = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    constraint = _constraint(regex, json_schema, choices)
    if choices is not None:
        _refuse_with_choices({**sampling, "stream": stream or None})
        sampling = {}
    with usage_errors():
        answer = pt.gen(ANSWER, **constraint, **sampling)
    text = _prompt_text(prompt)
    with running_engine(model) as engine, _plain_failures():
        as_chat = engine.model_info.chat_template is not None if chat is None else chat
        program = (ask if as_chat else go_on).bind(prompt=text, answer=answer)
        _print_answer(program.stream(backend=engine) if stream else program.run(backend=engine), stream)


@pt.function
def ask(s: pt.ProgramState, prompt: str, answer: pt.Expr) -> None:
    """One question, and the assistant's answer."""
    s += pt.user(prompt) + pt.assistant(answer)


@pt.function
def go_on(s: pt.ProgramState, prompt: str, answer: pt.Expr) -> None:
    """Text, and how it goes on."""
    s += prompt + answer


@contextmanager
def _plain_failures() -> Iterator[None]:
    """Raise what the engine said, instead of where in this file it was asked."""
    try:
        yield
    except pt.NodeFailedError as error:
        if isinstance(error.__cause__, pt.GrammarError | pt.RequestError):
            raise UsageError(str(error.__cause__)) from error
        raise error.__cause__ or error from None


def _print_answer(state: pt.ProgramState, stream: bool) -> None:
    if stream:
        for delta in state.text_iter(ANSWER):
            typer.echo(delta, nl=False)
        typer.echo()
    else:
        typer.echo(state[ANSWER])
    if (state.get_meta_info(ANSWER) or {}).get("finish_reason") == "length":
        note("the answer was cut off by its token limit; --max-tokens raises it")


def _constraint(regex: str | None, json_schema: Path | None, choices: str | None) -> dict[str, Any]:
    """The one constraint given, as `gen` takes it."""
    options = {"--regex": regex, "--json-schema": json_schema, "--choices": choices}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} do not go together", hint="an answer has one constraint")
    if choices is not None:
        return {"choices": _choices(choices)}
    if json_schema is not None:
        return {"json_schema": _schema(json_schema)}
    return {"regex": regex} if regex is not None else {}


def _choices(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [choice.strip() for choice in text.split(",")]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--choices starts as a JSON array but is none: {error}", hint="""--choices '["a", "b"]'"""
        ) from error
    return list(values)


def _schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--json-schema {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--json-schema {path} is not JSON: {error}") from error


def _refuse_with_choices(options: dict[str, Any]) -> None:
    given = ["--" + name.replace("_", "-") for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            f"--choices and {', '.join(given)} do not go together",
            hint="choices are scored, not sampled: the likeliest wins, and comes whole",
        )


def _prompt_text(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise UsageError("the prompt is empty", hint='palmette generate "Name a fruit tree."')
    return text
