"""`palmette generate`: one answer to one prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import palmette as pt
from palmette.lang.outcome import json_text

from .constraint_options import constraint_of, option
from .engine import GrammarBackendOption, ModelOption, RevisionOption, running_engine
from .errors import DebugOption, UsageError, note, reports_errors

ANSWER = "answer"


@reports_errors
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    regex: Annotated[str | None, typer.Option(help="The answer matches this pattern in full.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option("--json-schema", help="A file: the answer is JSON that validates against it.")
    ] = None,
    ebnf: Annotated[str | None, typer.Option(help="A grammar, or a file of one: the answer matches its root.")] = None,
    lark: Annotated[
        str | None, typer.Option(help="A Lark grammar, or a file of one: the answer matches its start.")
    ] = None,
    structural_tag: Annotated[
        str | None, typer.Option("--structural-tag", "--tag", help="A structural tag (JSON), or a file of one.")
    ] = None,
    answer_type: Annotated[
        str | None, typer.Option("--type", help="int, float, bool, str or FILE.py:CLASS: the answer is one, as JSON.")
    ] = None,
    choices: Annotated[
        str | None, typer.Option(help="The likeliest of these, a,b,c; or a JSON array, where one has a comma.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it comes.")] = False,
    n: Annotated[int | None, typer.Option("--n", help="Answers; of several, each is a line of JSON.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most this many tokens.", show_default="128")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", show_default="1.0")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this sum.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many of the likeliest tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. May be given again.")] = None,
    stop_regex: Annotated[list[str] | None, typer.Option(help="End before a match. May be given again.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random stream: the same seed, the same answer.")] = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    grammar_backend: GrammarBackendOption = None,
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
    sampling = {
        "n": n,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "stop": stop or None,
        "stop_regex": stop_regex or None,
        "seed": seed,
    }
    constraint = constraint_of(
        {
            "regex": regex,
            "json_schema": json_schema,
            "ebnf": ebnf,
            "lark": lark,
            "structural_tag": structural_tag,
            "type": answer_type,
            "choices": choices,
        }
    )
    answer = _answer(constraint, {name: value for name, value in sampling.items() if value is not None}, stream)
    text = _prompt_text(prompt)
    with running_engine(model, revision, grammar_backend) as engine, _plain_failures():
        as_chat = engine.model_info.chat_template is not None if chat is None else chat
        program = (ask if as_chat else go_on).bind(prompt=text, answer=answer)
        _print_answer(program.stream(backend=engine) if stream else program.run(backend=engine), stream)


def _answer(constraint: dict[str, Any], sampling: dict[str, Any], stream: bool) -> pt.Expr:
    """The generation that the options ask for.

    Raises:
        UsageError: they do not go together, or one is out of its range; named as it was typed.
    """
    if "choices" in constraint:
        _refuse_with_choices([*sampling, *(["stream"] if stream else [])])
    if stream and sampling.get("n", 1) > 1:
        raise UsageError("--n and --stream do not go together", hint="one answer can be printed as it comes")
    try:
        return pt.gen(ANSWER, **constraint, **sampling)
    except (pt.PalmetteError, TypeError, ValueError) as error:
        message = str(error)
        name = message.partition(" ")[0]
        raise UsageError(option(name) + message[len(name) :] if name in sampling else message) from error


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
    info = state.get_meta_info(ANSWER)
    several = isinstance(info, list)
    for value in state[ANSWER] if several else [] if stream else [state[ANSWER]]:
        typer.echo(value if isinstance(value, str) and not several else json_text(value))
    if any(answer.get("finish_reason") == "length" for answer in (info if several else [info])):
        note("the answer was cut off by its token limit; --max-tokens raises it")


def _refuse_with_choices(given: list[str]) -> None:
    if given:
        raise UsageError(
            f"--choices and {', '.join(map(option, given))} do not go together",
            hint="choices are scored, not sampled: the likeliest wins, and comes whole",
        )


def _prompt_text(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise UsageError("the prompt is empty", hint='palmette generate "Name a fruit tree."')
    return text
