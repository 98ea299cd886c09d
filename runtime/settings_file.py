"""The settings of `palmette serve` from flags, the environment and a TOML file, and where each came from."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import EngineConfig
from .errors import RequestError
from .server_settings import ServerSettings
from .setting_table import GROUPS, Owner, Setting, Value, did_you_mean, settings

DEFAULT_FILE = "palmette.toml"
NOT_SETTINGS = frozenset({"PALMETTE_CACHE", "PALMETTE_CONFIG", "PALMETTE_FULL_DATA"})
"""Variables of this prefix that mean something else."""

# Kubernetes sets these for a service that is called "palmette", in every container beside it.
_SERVICE_LINK = re.compile(r"PALMETTE_(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP|SCTP).*)")
_SERVICE_PORT = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The value of a setting, and who chose it: "default", a variable, a flag, or a key in a file."""

    value: Value
    source: str


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What a server runs with.

    Attributes:
        engine, server: the settings, checked.
        restart: start the engine anew when a process of it dies.
        chosen: every setting by name, with its source.
        notes: what a person should hear of, a line each.
    """

    engine: EngineConfig
    server: ServerSettings
    restart: bool
    chosen: Mapping[str, Chosen]
    notes: tuple[str, ...] = ()

    def as_toml(self) -> str:
        """All of it as a settings file, where each line says who chose it. Secrets are masked, what is not set stands
        as a comment."""
        lines = []
        for group in GROUPS:
            of_group = [setting for setting in settings().values() if setting.group == group]
            lines += [f"# {group}", *(_toml_line(setting, self.chosen[setting.name]) for setting in of_group), ""]
        return "\n".join(lines)


def effective_settings(
    flags: Mapping[str, Value], environment: Mapping[str, str], file: Path | None = None
) -> EffectiveSettings:
    """Put the settings together: a flag wins over the environment, that over the file, that over the default.

    Args:
        flags: values by the names of settings, already read from text; only those that were given.
        environment: variables; those that start with ``PALMETTE_`` matter.
        file: a TOML file with the names of settings as its keys.

    Raises:
        RequestError: a setting does not exist, or its value cannot be; the message names the flag, variable or file.
    """
    notes: list[str] = []
    chosen = {name: Chosen(setting.default, "default") for name, setting in settings().items()}
    if file is not None:
        chosen |= read_settings_file(file, notes)
    chosen |= read_environment(environment, notes)
    chosen |= {name: Chosen(value, settings()[name].flag) for name, value in flags.items()}
    return EffectiveSettings(
        engine=EngineConfig(**_checked(EngineConfig, chosen, "engine")),
        server=ServerSettings(**_checked(ServerSettings, chosen, "server")),
        restart=bool(chosen["restart"].value),
        chosen=chosen,
        notes=tuple(notes),
    )


def read_settings_file(path: Path, notes: list[str]) -> dict[str, Chosen]:
    """The settings of a TOML file.

    Raises:
        RequestError: the file cannot be read or is not TOML, a key is unknown, or its value cannot be.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(f"there is no settings file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the settings file {str(path)!r} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"the settings file {str(path)!r} is not TOML: {error}") from error
    read = {}
    for key, value in content.items():
        setting = _setting_of_key(key, value, path)
        read[key] = Chosen(setting.from_file(value, f"{key} in {path}"), f"{key} in {path}")
        if setting.secret and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            notes.append(f"{path} holds {key} and can be read by others on this machine; chmod 600 {path} hides it")
    return read


def read_environment(environment: Mapping[str, str], notes: list[str]) -> dict[str, Chosen]:
    """The settings among the variables; a variable that looks like a misspelt one is an error.

    Raises:
        RequestError: a variable has a value that cannot be, or is nearly the name of a setting.
    """
    variables = {setting.variable: setting for setting in settings().values()}
    read = {}
    for name, text in sorted(environment.items()):
        if not name.startswith("PALMETTE_") or name in NOT_SETTINGS or _SERVICE_LINK.fullmatch(name):
            continue
        if name == "PALMETTE_PORT" and _SERVICE_PORT.match(text):
            notes.append(
                f"PALMETTE_PORT is {text!r}, which Kubernetes sets for a service named palmette: not a setting"
            )
        elif name in variables:
            read[variables[name].name] = Chosen(variables[name].from_text(text, name), name)
        elif hint := did_you_mean(name, variables):
            raise RequestError(f"the variable {name} is no setting{hint}")
        else:
            notes.append(f"the variable {name} is no setting of palmette serve")
    return read


def _setting_of_key(key: str, value: object, path: Path) -> Setting:
    known = settings()
    if key in known:
        return known[key]
    if isinstance(value, dict):
        raise RequestError(f"{path} has a table [{key}]; settings stand at the top of the file, without tables")
    underscored = key.replace("-", "_")
    hint = f"; did you mean {underscored}?" if underscored in known else did_you_mean(key, known)
    hint = hint or f": settings are {', '.join(known)}"
    raise RequestError(f"{path} has a key {key!r}, which is no setting{hint}")


def _checked(
    kind: type[EngineConfig] | type[ServerSettings], chosen: Mapping[str, Chosen], owner: Owner
) -> dict[str, Any]:
    """The arguments of `kind`. What it refuses is raised under the name that the person wrote."""
    values = {name: chosen[name].value for name, setting in settings().items() if setting.owner == owner}
    try:
        kind(**values)  # type: ignore[arg-type]  # that is what it checks
    except RequestError as error:
        name, _, rest = str(error).partition(" ")
        source = chosen[name].source if name in chosen else "default"
        spelled = name if source == "default" else source
        raise RequestError(f"{spelled} {rest}") from error
    return values


def _toml_line(setting: Setting, chosen: Chosen) -> str:
    shown = setting.shown(chosen.value)
    start = f"{setting.name} = {shown}"
    if not shown or setting.secret:  # a file that is fed back must not make stars the key
        start = f"# {start.rstrip()}"
    return f"{start:<40} # {chosen.source}"
