"""What tests need to see of the processes of an engine, and engines on the model that computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.server_settings import ServerSettings

LIMIT_S = 120.0

StartedChildren = Callable[[], dict[int, str]]
"""The engine processes that a test has started and that still run: ids and command lines."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that will be so."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


def children_of(pid: int) -> dict[int, str]:
    """The processes below a process, children of children too: their ids and command lines."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    pending = list(below.get(pid, ()))
    while pending:
        child = pending.pop()
        found[child] = command_of(child)
        pending += below.get(child, ())
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def fake_runtime(
    folder: Path,
    *,
    step_s: float = 0.0,
    restart: bool = False,
    server: ServerSettings | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Iterator[Runtime]:
    """A runtime whose steps take `step_s` and compute nothing; `engine` are further settings of it."""
    with Runtime.start(
        EngineConfig(model=str(fake_model.write_folder(folder)), seed=0, radix_cache=True, **(engine or {})),
        server or ServerSettings(model_name="m", log_level="warning"),
        restart=restart,
        loader=fake_model.LOADER,
        loader_options={"step_s": step_s},
    ) as runtime:
        yield runtime
