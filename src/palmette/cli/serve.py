"""`palmette serve`: a model behind HTTP, in processes of its own."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.runtime.errors import ModelLoadError, RequestError
from palmette.runtime.setting_table import Value
from palmette.runtime.settings_file import DEFAULT_FILE, EffectiveSettings, effective_settings

from .engine import fetch_model
from .errors import EXIT_INTERRUPTED, DebugOption, UsageError, note, reports_errors
from .serve_options import COMMAND_OPTIONS, help_lines, with_setting_options
from .until_signal import Terminated, ended_by_signals, run_until_signal

if TYPE_CHECKING:
    from palmette.runtime.processes.runtime_client import Runtime

EXIT_TERMINATED = 143
"""SIGTERM before the model was ready: 128 + 15."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _print_all(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(help_lines(everything=True)))
        raise typer.Exit


@reports_errors
@with_setting_options
def serve(
    given: dict[str, Value],
    config: Annotated[Path | None, typer.Option("--config", help=COMMAND_OPTIONS["config"])] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help=COMMAND_OPTIONS["print_config"])] = False,
    debug: DebugOption = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_print_all, help="Every option.")
    ] = False,
) -> None:
    """Serve a model over HTTP: OpenAI's protocol, programs, metrics, and a page to watch it.

    Exit code 0: it ended after SIGTERM or Ctrl-C. 1: a process of it died. 2: a setting cannot be used.
    """
    effective = _effective(given, config)
    if print_config:
        typer.echo(effective.as_toml())
        return
    for line in [*effective.notes, *_warnings(effective)]:
        note(f"note: {line}")
    if not effective.engine.offline:
        fetch_model(effective.engine.model, effective.engine.revision)
    _serve(effective)


def _serve(effective: EffectiveSettings) -> None:
    from palmette.runtime.logging_setup import LogSettings, configure_logging

    configure_logging("serve", LogSettings.of(effective.server))
    with ended_by_signals():
        try:
            started = time.monotonic()
            runtime = _launch(effective)
            for line in _addresses(runtime, effective, time.monotonic() - started):
                typer.echo(line)
            in_peace = run_until_signal(runtime, effective.server.drain_timeout_s, note)
        except Terminated:
            raise typer.Exit(EXIT_TERMINATED) from None
    if not in_peace:
        raise typer.Exit(EXIT_INTERRUPTED)


def _launch(effective: EffectiveSettings) -> Runtime:
    """Start the processes and wait until they are ready.

    Raises:
        UsageError: there is no such model, or the address is not to be had.
        EngineError: a process died.
    """
    from palmette.runtime.launch import launch

    engine = {field.name: getattr(effective.engine, field.name) for field in dataclasses.fields(effective.engine)}
    server = {field.name: getattr(effective.server, field.name) for field in dataclasses.fields(effective.server)}
    settings: dict[str, Any] = {**engine, **server}
    try:
        return launch(settings.pop("model"), restart=effective.restart, **settings)
    except (ModelLoadError, RequestError) as error:
        raise UsageError(str(error)) from error


def _effective(given: dict[str, Value], config: Path | None) -> EffectiveSettings:
    """The settings of flags, environment and file.

    Raises:
        UsageError: one of them cannot be.
    """
    named = os.environ.get("PALMETTE_CONFIG")
    file = config or (Path(named) if named else None)
    try:
        return effective_settings(given, os.environ, file)
    except RequestError as error:
        raise UsageError(str(error), hint="palmette serve --help-all shows every setting") from error


def _warnings(effective: EffectiveSettings) -> list[str]:
    """What a person may not have meant."""
    server = effective.server
    warnings = []
    if server.host not in _LOOPBACK and server.api_key is None:
        warnings.append(
            f"{server.host} can be reached by others, and no API key is asked for: PALMETTE_API_KEY sets one"
        )
    if effective.chosen["api_key"].source == "--api-key":
        warnings.append("a key given as --api-key is seen by all who list processes: PALMETTE_API_KEY hides it")
    if Path(DEFAULT_FILE).is_file() and not any(DEFAULT_FILE in chosen.source for chosen in effective.chosen.values()):
        warnings.append(f"{DEFAULT_FILE} lies here but was not read: --config {DEFAULT_FILE} reads it")
    return warnings


def _addresses(runtime: Runtime, effective: EffectiveSettings, elapsed_s: float) -> list[str]:
    """What to tell when it is ready."""
    server, url = effective.server, runtime.url
    lines = [
        f"{server.model_name or runtime.model_info.name} is served after {elapsed_s:.1f} s; Ctrl-C ends it",
        f"  {url + '/v1':<32} for OpenAI's clients{', with an API key' if server.api_key else ''}",
        f"  {url + '/docs':<32} every endpoint",
    ]
    if server.web_page:
        lines.append(f"  {url + '/':<32} queues, cache and speed")
    return lines
