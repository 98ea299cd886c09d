"""The log: one line a record, as text or JSON, and no prompts in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.logging_setup import LEFT_OUT, LogSettings, configure_logging, fields
from palmette.runtime.messages import SchedulerStats
from palmette.runtime.status_line import StatusLine, report_status

SECRET = "xylophone"
logger = logging.getLogger("palmette.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Put the loggers back as they were."""
    root, ours = logging.getLogger(), logging.getLogger("palmette")
    before = list(root.handlers), root.level, ours.level, logging.getLogger("uvicorn.access").disabled
    yield
    logging.captureWarnings(False)
    root.handlers[:], level, our_level, disabled = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.getLogger("uvicorn.access").disabled = disabled


def log_to(settings: LogSettings) -> io.StringIO:
    stream = io.StringIO()
    configure_logging("server", settings, stream)
    return stream


def fail_deeply() -> None:
    try:
        raise ValueError(f"bad text {SECRET}")
    except ValueError as error:
        raise KeyError(SECRET) from error


def test_text_lines() -> None:
    """A line for people: clock, level, process, message, and fields that read back."""
    stream = log_to(LogSettings())
    logger.info("request", extra=fields(route="/v1/models", status=200, ms=1.25, note="a b", nothing=None, empty=""))
    (line,) = stream.getvalue().splitlines()
    clock, rest = line.split(" ", 1)
    assert len(clock) == len("12:00:00.000")
    assert rest == 'INFO    server      request route=/v1/models status=200 ms=1.25 note="a b" empty=""'


def test_json_lines() -> None:
    """A line for programs is a JSON object with the fields beside the message; time is UTC."""
    stream = log_to(LogSettings(format="json"))
    logger.warning("almost full %d", 7, extra=fields(pages=3, share=0.5))
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "process": "server",
        "logger": "palmette.test",
        "message": "almost full 7",
        "pages": 3,
        "share": 0.5,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_line_a_record(form: str) -> None:
    """Line breaks and control characters of a message or a field cannot make another line or colour a terminal."""
    stream = log_to(LogSettings(format="json" if form == "json" else "text"))
    logger.info("a\nb\r\x1b[31m\u2028c", extra=fields(name="d\n12:00:00.000 INFO    server      forged"))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().rstrip("\n").isprintable()


def test_long_messages_are_cut() -> None:
    """No record grows without end."""
    stream = log_to(LogSettings())
    logger.info("x" * 100_000)
    assert len(stream.getvalue()) < 3000
    assert "(100000 characters)" in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_errors_quote_nothing(form: str) -> None:
    """A traceback names files, lines and kinds of errors, causes first; what may quote a prompt is left out."""
    stream = log_to(LogSettings(format="json" if form == "json" else "text"))
    try:
        fail_deeply()
    except KeyError:
        logger.exception("the engine failed")
    written = stream.getvalue()
    assert SECRET not in written
    assert written.index("ValueError") < written.index("KeyError")
    assert LEFT_OUT in written
    assert "fail_deeply" in written


def test_errors_that_quote_nothing_are_whole() -> None:
    """What the system or the device says is what an operator needs: it stays."""
    stream = log_to(LogSettings())
    for error in (OSError(28, "No space left on device"), RuntimeError("CUDA error: out of memory")):
        logger.error("failed", exc_info=error)
    assert "No space left on device" in stream.getvalue()
    assert "CUDA error: out of memory" in stream.getvalue()
    for other in (EngineError(SECRET), RequestError(SECRET), ExceptionGroup("two", [ValueError(SECRET)])):
        logger.error("failed", exc_info=other)
    assert SECRET not in stream.getvalue()


def test_prompts_may_be_logged() -> None:
    """With `prompts` messages of errors are whole."""
    stream = log_to(LogSettings(prompts=True))
    try:
        fail_deeply()
    except KeyError:
        logger.exception("the engine failed")
    assert stream.getvalue().count(SECRET) >= 2


def test_what_asyncio_shows_of_objects_is_left_out() -> None:
    """asyncio's records end in lines that show callbacks with their arguments."""
    stream = log_to(LogSettings())
    logging.getLogger("asyncio").error("Exception in callback\nhandle: <Handle f(%r)>", SECRET)
    assert "Exception in callback" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_deep_recursion_is_short() -> None:
    """Of a traceback of a thousand frames the last thirty are written."""

    def recur() -> None:
        recur()

    stream = log_to(LogSettings())
    try:
        recur()
    except RecursionError:
        logger.exception("too deep")
    assert 20 < stream.getvalue().count("\n") < 40


def test_levels_and_other_loggers() -> None:
    """The level holds for our loggers; of others only warnings come, and of uvicorn no access log."""
    stream = log_to(LogSettings(level="warning"))
    logger.info("hidden")
    logging.getLogger("other").info("hidden")
    logging.getLogger("uvicorn.access").warning("hidden")
    logging.getLogger("uvicorn.error").warning("shown 1")
    logger.warning("shown 2")
    assert [line.rsplit("  ", 1)[-1].strip() for line in stream.getvalue().splitlines()] == ["shown 1", "shown 2"]


def test_settings_twice() -> None:
    """Setting the log up again replaces what was; no record is written twice."""
    log_to(LogSettings())
    stream = log_to(LogSettings(level="debug"))
    logger.debug("once")
    assert stream.getvalue().count("once") == 1


BUSY = SchedulerStats(
    running=3,
    waiting=2,
    total_pages=100,
    free_pages=60,
    evictable_pages=30,
    protected_pages=4,
    prompt_tokens=1000,
    cached_tokens=700,
    output_tokens=500,
    finished=5,
)


def test_status_of_a_busy_engine() -> None:
    """Rates are of the time since the last snapshot, the hit rate of the prompts that began in it."""
    line = StatusLine()
    assert line.feed(SchedulerStats(prompt_tokens=600, cached_tokens=600, output_tokens=400), 10.0) is None
    assert line.feed(BUSY, 12.0) == {
        "running": 3,
        "waiting": 2,
        "compiling": None,
        "output_tok_s": 50.0,
        "prompt_tok_s": 200.0,
        "hit_rate": 0.25,
        "pages_used": 0.1,
        "pages_cached": 0.3,
        "retractions": None,
    }


def test_status_is_silent_when_idle() -> None:
    """Nothing is written while nothing runs, waits or ends; what ended between two snapshots is written once."""
    line = StatusLine()
    idle = SchedulerStats(finished=5)
    line.feed(idle, 0.0)
    assert line.feed(idle, 5.0) is None
    ended = line.feed(SchedulerStats(finished=6, output_tokens=10), 10.0)
    assert ended is not None
    assert ended["output_tok_s"] == 2.0
    assert line.feed(SchedulerStats(finished=6, output_tokens=10), 15.0) is None


async def _report(snapshots: list[SchedulerStats]) -> None:
    clock = iter(range(100))

    async def stats() -> SchedulerStats:
        if not snapshots:
            raise EngineError("the engine was shut down")
        return snapshots.pop(0)

    await report_status(stats, 0.001, now_s=lambda: float(next(clock)))


def test_report_until_the_engine_ends() -> None:
    """Status lines are written while there is work, until the engine is gone."""
    import asyncio

    stream = log_to(LogSettings(format="json"))
    asyncio.run(_report([SchedulerStats(), SchedulerStats(), BUSY, SchedulerStats(finished=5, output_tokens=500)]))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"], line["running"]) for line in lines] == [("status", 3)]
