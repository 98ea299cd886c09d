"""The log of a process: one line a record, as text or as JSON, with fields beside the message.

Prompts and answers do not get into it. Records are written with fixed messages and fields of known content, and what
could still quote a text, the messages of exceptions and the details that asyncio adds, is left out unless `prompts`
says that it may stand there.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from .server_settings import LogFormat, LogLevel, ServerSettings

LEFT_OUT = "message left out: it may quote a prompt"
LONGEST = 2000  # characters of a message, so that no record fills a disk

Field = str | int | float | bool | None

_SAFE_MESSAGES = (OSError, MemoryError, ImportError)  # and RuntimeError itself, which is what torch raises
_LEVELS: dict[LogLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What a process writes down; the fields are those of `ServerSettings` that begin with ``log_``."""

    level: LogLevel = "info"
    format: LogFormat = "text"
    prompts: bool = False

    @classmethod
    def of(cls, settings: ServerSettings) -> LogSettings:
        return cls(level=settings.log_level, format=settings.log_format, prompts=settings.log_prompts)


def configure_logging(process: str, settings: LogSettings, stream: TextIO | None = None) -> None:
    """Let this process log as `settings` say, as the process called `process`; `stream` is standard error.

    Takes over the root logger: other libraries' warnings become lines of the same form. uvicorn must be started with
    ``log_config=None, access_log=False``, or it sets up its own.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    formatter = JsonLines if settings.format == "json" else TextLines
    handler.setFormatter(formatter(process, prompts=settings.prompts))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("palmette").setLevel(_LEVELS[settings.level])
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(True)


def fields(**values: Field) -> dict[str, dict[str, Field]]:
    """Fields of a record, for `extra`: ``logger.info("ready", extra=fields(port=8000))``. None is left out."""
    return {"palmette_fields": {name: value for name, value in values.items() if value is not None}}


class _Lines(logging.Formatter):
    """What both forms share: who writes, and what is left out."""

    def __init__(self, process: str, *, prompts: bool) -> None:
        super().__init__()
        self._process = process
        self._prompts = prompts

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == "asyncio" and not self._prompts:
            message = message.partition("\n")[0]  # the lines after it show objects
        return one_line(message)

    def _fields(self, record: logging.LogRecord) -> Mapping[str, Field]:
        found = getattr(record, "palmette_fields", None)
        return found if isinstance(found, dict) else {}

    def _trace(self, record: logging.LogRecord) -> list[str]:
        """The lines of the record's exception and of what caused it, the first cause first."""
        if not record.exc_info or record.exc_info[1] is None:
            return []
        error = record.exc_info[1]
        chain = list(_with_causes(error))
        return [one_line(line) for part in reversed(chain) for line in _trace_lines(part, prompts=self._prompts)]


class TextLines(_Lines):
    """Records for people: ``12:00:00.000 INFO    server  message name=value``. A traceback follows in lines of its own,
    each begun with a bar."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        start = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {self._process:<11} {self._message(record)}"
        pairs = [f"{name}={_text_value(value)}" for name, value in self._fields(record).items()]
        lines = [" ".join([start, *pairs]), *(f"    | {line}" for line in self._trace(record))]
        return "\n".join(lines)


class JsonLines(_Lines):
    """Records for programs: a JSON object a line: `time` (UTC), `level`, `process`, `logger`, `message`, the fields,
    and `traceback`, a list of lines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": self._message(record),
        }
        line |= {
            name: one_line(value) if isinstance(value, str) else value for name, value in self._fields(record).items()
        }
        if trace := self._trace(record):
            line["traceback"] = trace
        return json.dumps(line, ensure_ascii=False)


def one_line(text: str) -> str:
    """`text` without line breaks or control characters, and not without end."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text)} characters)"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _text_value(value: Field) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if not isinstance(value, str):
        return str(value)
    line = one_line(value)
    return json.dumps(line, ensure_ascii=False) if not line or any(c in line for c in ' "=') else line


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from or while handling, and so on; each once."""
    seen: set[int] = set()
    part: BaseException | None = error
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        yield part
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)


def _trace_lines(error: BaseException, *, prompts: bool) -> Iterator[str]:
    for frame in traceback.extract_tb(_last_frames(error.__traceback__)):
        yield f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}"
    kind = type(error).__name__
    safe = isinstance(error, _SAFE_MESSAGES) or type(error) is RuntimeError or type(error).__module__ == "torch"
    yield f"{kind}: {error}" if prompts or safe else f"{kind} ({LEFT_OUT})"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _trace_lines(inner, prompts=prompts)


def _last_frames(trace: types.TracebackType | None, most: int = 30) -> types.TracebackType | None:
    """The end of a traceback: where deep recursion failed is in its last frames."""
    count, part = 0, trace
    while part is not None:
        count, part = count + 1, part.tb_next
    while trace is not None and count > most:
        trace, count = trace.tb_next, count - 1
    return trace
