"""The options of `palmette serve`, made from the table of settings, and its help page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from palmette.runtime.errors import RequestError
from palmette.runtime.setting_table import GROUPS, SELDOM, Setting, Value, settings, size

from .errors import UsageError

_METAVARS = {
    "whole": "N",
    "bytes": "SIZE",
    "seconds": "S",
    "fraction": "X",
    "choice": "NAME",
    "text": "TEXT",
    "list": "TEXT",
}
_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_UNSET = {
    "model": "the built-in one",
    "revision": "main",
    "device": "a GPU where there is one",
    "context_length": "the model's own",
    "memory_bytes": "a share of what is free",
    "mem_fraction": "the device's best",
    "page_size": "the device's best",
    "max_running_requests": "the device's best",
    "chunk_size": "the device's best",
    "attention_backend": "the device's best",
    "model_name": "its id, or its folder's name",
    "request_timeout_s": "any time",
    "overlap": "where a GPU computes",
}
COMMAND_OPTIONS = {
    "config": "A settings file (TOML); also PALMETTE_CONFIG",
    "print_config": "Print the settings and where each came from",
    "debug": "Show the traceback of an error",
}


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, which takes `given` and the options of its own, an option for every setting.

    `given` gets the values of those that were typed, by name.
    """

    def taking_options(**typed: Any) -> None:
        given = {name: typed.pop(name) for name in settings()}
        command({name: _read(settings()[name], value) for name, value in given.items() if value is not None}, **typed)

    own = [part for name, part in inspect.signature(command, eval_str=True).parameters.items() if name != "given"]
    parameters = [_parameter(setting) for setting in settings().values()]
    parameters += [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in own]
    taking_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    taking_options.__annotations__ = {part.name: part.annotation for part in parameters}
    taking_options.__name__, taking_options.__doc__ = command.__name__, command.__doc__
    return taking_options


def default_in_words(setting: Setting) -> str:
    """What holds when nobody says, as help and docs put it."""
    value = setting.default
    if value is None:
        return _UNSET.get(setting.name, "none")
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if setting.kind == "bytes" and isinstance(value, int):
        return size(value)
    return f"{value:g} s" if setting.kind == "seconds" and isinstance(value, float | int) else str(value)


class ServeCommand(TyperCommand):
    """`palmette serve`, whose help is grouped and has a line for each option."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the everyday options; --help-all shows every one."""
        formatter.write("\n".join(help_lines(everything=False)) + "\n")


def help_lines(*, everything: bool) -> Iterator[str]:
    """The lines of the help page."""
    yield f"{_bold('Usage:')} palmette serve [MODEL] [OPTIONS]"
    yield "Serve a model over HTTP: OpenAI's protocol, programs, metrics, and a page to watch it."
    yield "MODEL: a folder, a .gguf file or a Hugging Face id; without it the small built-in model."
    for group in GROUPS:
        shown = [part for part in settings().values() if part.group == group and part.name != "model"]
        shown = [part for part in shown if everything or part.name not in SELDOM]
        if shown:
            yield _bold(group)
            yield from (_help_line(_spelling(part), _words(part)) for part in shown)
    yield _bold("Other")
    spellings = {"config": "--config FILE"}
    for name, line in COMMAND_OPTIONS.items():
        yield _help_line(spellings.get(name, "--" + name.replace("_", "-")), line)
    if not everything:
        yield _help_line("--help-all", f"The other {len(SELDOM & settings().keys())} options too")
    yield "Each is also a variable (PALMETTE_PORT) and a key of a settings file (port = 8000)."


def _help_line(spelling: str, words: str) -> str:
    return f"  {typer.style(f'{spelling:<29}', fg=typer.colors.CYAN)}{words}"


def _words(setting: Setting) -> str:
    if setting.kind == "choice":
        others = [choice for choice in setting.choices if choice != setting.default]
        return f"{setting.line}: {'|'.join([str(setting.default), *others])}"
    if setting.kind == "switch":
        return f"{setting.line} [{default_in_words(setting)}]"
    if setting.kind == "list" or (setting.default is None and setting.name not in _UNSET):
        return setting.line
    return f"{setting.line} [{default_in_words(setting)}]"


def _spelling(setting: Setting) -> str:
    if setting.kind == "switch":
        return f"--[no-]{setting.flag[2:]}"
    metavar = "FILE" if setting.name in _FILES else "KEY" if setting.name == "api_key" else _METAVARS[setting.kind]
    return f"{setting.flag} {metavar}"


def _parameter(setting: Setting) -> inspect.Parameter:
    annotation: Any = Annotated[str | None, typer.Option(setting.flag, help=setting.line)]
    if setting.name == "model":
        annotation = Annotated[str | None, typer.Argument(help=setting.line)]
    elif setting.kind == "switch":
        annotation = Annotated[bool | None, typer.Option(f"{setting.flag}/--no-{setting.flag[2:]}", help=setting.line)]
    elif setting.kind == "list":
        annotation = Annotated[list[str] | None, typer.Option(setting.flag, help=setting.line)]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _read(setting: Setting, typed: Any) -> Value:
    """The value that was typed.

    Raises:
        UsageError: it is none of those allowed.
    """
    if isinstance(typed, bool):
        return typed
    if isinstance(typed, list | tuple):
        return tuple(typed) or None
    try:
        return setting.from_text(typed, setting.flag)
    except RequestError as error:
        raise UsageError(str(error)) from error


def _bold(text: str) -> str:
    return typer.style(text, bold=True)
