"""Every setting of `palmette serve` in one table: where it belongs, what it takes, and how to read it from text."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from .config import EngineConfig
from .errors import RequestError
from .server_settings import ServerSettings

Kind = Literal["switch", "whole", "bytes", "seconds", "fraction", "choice", "text", "list"]
Owner = Literal["engine", "server", "launch"]
Value = str | int | float | bool | tuple[str, ...] | None

GROUPS = ("Model", "Memory and batching", "Scheduling", "Grammars", "Server", "Security", "Logging")
SECRETS = frozenset({"api_key", "ssl_keyfile_password"})
SERVE_DEFAULTS: dict[str, Value] = {"port": 8000, "log_requests": True}
"""Where `palmette serve` differs from `ServerSettings`, whose defaults suit a server inside a script."""

SELDOM = frozenset(
    {
        "model_impl",
        "generation_config",
        "load_format",
        "seed",
        "page_size",
        "attention_backend",
        "cuda_graphs",
        "mask_rows",
        "grammar_cache_bytes",
        "grammar_cache_dir",
        "jump_forward",
        "overlap",
        "ssl_keyfile_password",
        "ssl_ca_certs",
        "max_body_bytes",
        "idle_timeout_s",
        "drain_timeout_s",
        "web_page",
        "status_interval_s",
    }
)
"""Settings that few ever touch: `palmette serve --help` leaves them to `--help-all`."""

_LINES: dict[str, dict[str, str]] = {
    "Model": {
        "model": "A folder of safetensors, a .gguf file or a Hugging Face id",
        "revision": "Of a Hugging Face id: a branch, tag or commit",
        "offline": "Fetch nothing: use what is in the cache",
        "model_impl": "Whose code runs the model",
        "generation_config": "Sampling defaults: the model's own",
        "load_format": "Weights; dummy ones are random, for measuring",
        "dtype": "Of weights and KV cache",
        "device": "cpu, cuda or cuda:1",
        "context_length": "Most tokens of prompt and output",
        "seed": "Of random weights and of requests without one",
    },
    "Memory and batching": {
        "memory_bytes": "Memory for the KV pool, such as 8GiB",
        "max_total_tokens": "Size of the KV pool in tokens instead",
        "mem_fraction": "Part of the memory to use",
        "page_size": "Tokens a page of the pool",
        "max_running_requests": "Most requests in the running batch",
        "chunk_size": "Most tokens of one step; more go in chunks",
        "attention_backend": "What computes attention: flashinfer, triton, torch_native, cpu",
        "cuda_graphs": "Record small steps on a GPU, and replay them",
        "radix_cache": "Keep prefixes for later requests",
        "keep_prefixes": "Keep what open programs go on from",
    },
    "Scheduling": {
        "policy": "Order of the queue",
        "max_wait_s": "Nobody is passed over for longer",
        "max_queued_requests": "Most that wait; more get 503",
        "request_timeout_s": "A request that takes longer fails",
        "overlap": "Launch a step before the last is processed",
    },
    "Grammars": {
        "grammar_backend": "What compiles grammars",
        "grammar_cache_bytes": "Memory for grammars that are not in use",
        "grammar_cache_dir": "Keep lowered grammars in this folder",
        "mask_rows": "Rows of the grammar mask table",
        "jump_forward": "Append forced text without sampling it",
    },
    "Server": {
        "host": "Address to listen at; 0.0.0.0 is every one",
        "port": "0 takes one that is free",
        "model_name": "What clients call the model",
        "max_body_bytes": "Largest body of a request",
        "max_open_requests": "Most HTTP requests at once; more get 503",
        "restart": "Start anew when a process dies",
        "idle_timeout_s": "A program of /programs unused so long is dropped",
        "drain_timeout_s": "Time for open requests after SIGTERM",
        "web_page": "The page of queues and cache at /",
    },
    "Security": {
        "api_key": "What clients must send; PALMETTE_API_KEY hides it",
        "cors_origins": "Web pages that may call; may be given again",
        "ssl_certfile": "TLS: the certificate",
        "ssl_keyfile": "TLS: its private key",
        "ssl_keyfile_password": "TLS: of an encrypted key",
        "ssl_ca_certs": "TLS: ask clients for certificates of this CA",
    },
    "Logging": {
        "log_level": "Least important lines written",
        "log_format": "Lines for people, or a JSON object each",
        "log_requests": "A line for each request, without its text",
        "log_prompts": "Prompts and answers may stand in the log",
        "status_interval_s": "A line of status so often while busy; 0: none",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the engine or of the server.

    Attributes:
        name: of the field, and of the key in a settings file.
        group: under which heading it is listed.
        line: what it is, in one line.
        kind: how it is read from text.
        choices: of a choice, all there are.
        optional: None is allowed, and means "let the engine decide" or "none".
        default: what it is when nobody says.
        owner: whose field it is: that of `EngineConfig`, of `ServerSettings`, or an argument of `launch` itself.
    """

    name: str
    group: str
    line: str
    kind: Kind
    choices: tuple[str, ...] = ()
    optional: bool
    default: Value
    owner: Owner

    @property
    def flag(self) -> str:
        return "MODEL" if self.name == "model" else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "PALMETTE_" + self.name.upper()

    @property
    def secret(self) -> bool:
        return self.name in SECRETS

    def from_text(self, text: str, spelled: str) -> Value:
        """The value that `text` stands for, from a flag or a variable of this name, `spelled`.

        Raises:
            RequestError: it stands for none; the message says which are allowed.
        """
        if self.optional and self.kind != "text" and text.lower() == "none":
            return None
        try:
            return _READERS[self.kind](text)
        except (ValueError, OverflowError):
            raise RequestError(f"{spelled} must be {self.allowed}, not {text!r}{self._hint(text)}") from None

    def from_file(self, value: object, spelled: str) -> Value:
        """The value that a TOML value stands for; sizes may be numbers or text such as "8GiB".

        Raises:
            RequestError: it stands for none; the message says which are allowed.
        """
        if isinstance(value, str) and self.kind in ("bytes", "text", "choice"):
            return self.from_text(value, spelled)
        good = _TOML_TYPES[self.kind]
        if isinstance(value, good) and (self.kind == "switch" or not isinstance(value, bool)):
            if not isinstance(value, list):
                return typing.cast("Value", value)
            if all(isinstance(item, str) for item in value):
                return tuple(value)
        raise RequestError(f"{spelled} must be {self.allowed}, not {value!r}")

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        return {
            "switch": "true or false",
            "whole": "a whole number",
            "bytes": "a number of bytes such as 1073741824 or 1GiB",
            "seconds": "a number of seconds",
            "fraction": "a number above 0 and at most 1",
            "choice": f"one of {', '.join(self.choices)}",
            "text": "text",
            "list": "a list of texts",
        }[self.kind]

    def shown(self, value: Value) -> str:
        """The value as a settings file has it; secrets as stars. None has no form in TOML and is empty."""
        if value is None:
            return ""
        if self.secret:
            return '"***"'
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return "[" + ", ".join(map(_quoted, value)) + "]"
        if self.kind == "bytes" and isinstance(value, int):
            return _quoted(size(value)) if size(value)[-1] == "B" else str(value)
        return _quoted(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)

    def _hint(self, text: str) -> str:
        near = difflib.get_close_matches(text, self.choices, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""


@functools.cache
def settings() -> dict[str, Setting]:
    """Every setting by its name, in the order of `GROUPS`; a field that has no line yet comes last in its group."""
    known = {setting.name: setting for setting in (*_of(EngineConfig), *_of(ServerSettings), *_of(_OfLaunch))}
    return {setting.name: setting for group in GROUPS for setting in known.values() if setting.group == group}


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a whole number: 33554432 is "32MiB", 1000 is "1000"."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def did_you_mean(name: str, known: typing.Iterable[str]) -> str:
    """ "; did you mean ...?" where something near `name` is known, else an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True)
class _OfLaunch:
    """Arguments of `launch` that are fields of neither."""

    restart: bool = False


def _of(source: type[EngineConfig] | type[ServerSettings] | type[_OfLaunch]) -> Iterator[Setting]:
    owner: Owner = "engine" if source is EngineConfig else "server" if source is ServerSettings else "launch"
    hints = typing.get_type_hints(source)
    ordered = {name: (group, line) for group, lines in _LINES.items() for name, line in lines.items()}
    fields = {field.name: field for field in dataclasses.fields(source)}
    for name in [*(n for n in ordered if n in fields), *(n for n in fields if n not in ordered)]:
        group, line = ordered.get(name, ("Scheduling" if owner == "engine" else "Server", ""))
        kind, choices, optional = _kind(name, hints[name])
        default: Any = SERVE_DEFAULTS.get(name, fields[name].default)
        yield Setting(
            name=name,
            group=group,
            line=line,
            kind=kind,
            choices=choices,
            optional=optional,
            default=default,
            owner=owner,
        )


def _kind(name: str, hint: Any) -> tuple[Kind, tuple[str, ...], bool]:
    """How a field of this type is read, its choices, and whether None is allowed."""
    parts = (
        typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else ()
    )
    optional = type(None) in parts
    (plain,) = [part for part in parts if part is not type(None)] or [hint]
    if typing.get_origin(plain) is Literal:
        return "choice", typing.get_args(plain), optional
    if typing.get_origin(plain) is tuple:
        return "list", (), optional
    if plain is int:
        return "bytes" if name.endswith("_bytes") else "whole", (), optional
    if name.endswith("_fraction"):
        return "fraction", (), optional
    kinds: dict[object, Kind] = {bool: "switch", float: "seconds", str: "text"}
    return kinds[plain], (), optional


def _read_switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _read_bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(iB|B)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or (match[2] and (match[3] or "").lower() == "b"):
        raise ValueError(text)  # "1GB" is a thousand million to some and 2**30 to others
    count = Fraction(match[1]) * (1 << 10 * " KMGT".index(match[2].upper() or " "))
    if count.denominator != 1:
        raise ValueError(text)
    return count.numerator


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _quoted(text: str) -> str:
    """`text` as a basic string of TOML."""
    escapes = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


_READERS: dict[Kind, typing.Callable[[str], Value]] = {
    "switch": _read_switch,
    "whole": int,
    "bytes": _read_bytes,
    "seconds": float,
    "fraction": float,
    "choice": str,
    "text": str,
    "list": _read_list,
}
_TOML_TYPES: dict[Kind, tuple[type, ...]] = {
    "switch": (bool,),
    "whole": (int,),
    "bytes": (int,),
    "seconds": (int, float),
    "fraction": (int, float),
    "choice": (),
    "text": (),
    "list": (list,),
}
