"""`palmette serve` under load, one of whose processes gets SIGKILL in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from pathlib import Path

import httpx
from benchmarks.chaos_client import FAKE, SMALL, Book, Scale, check
from benchmarks.chaos_storm import Outcome, rest, storm
from benchmarks.chaos_watch import descendants, name_of

from palmette.bench import fake_model

READY_S = 300.0
END_S = 30.0
"""Time for the parent to end after the death of a process."""
TOLD_S = 60.0
"""Time for every client that was there then to be told."""
RESTART_S = 300.0
PARENT = "parent"
CODES = {PARENT: -signal.SIGKILL}
"""Exit codes of palmette serve, by what was killed; 1 for others."""


async def killed_run(model: str, victim: str, *, restart: bool, seconds: float, clients: int) -> Outcome:
    """Run `palmette serve` under load, kill a process of it half-way, and look at what clients and parent do.

    Args:
        model: "fake" is a tiny one with random weights.
        victim: the process that is killed.
        restart: whether the server is to be started anew.
    """
    book = Book()
    with tempfile.TemporaryDirectory() as folder:
        words = _words(model, Path(folder))
        serving = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "palmette", "serve", *words, "--port", "0", "--log-level", "error"),
            *(["--restart"] if restart else []),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            url = await asyncio.wait_for(_address(serving), READY_S)
            until = asyncio.Event()
            storming = asyncio.create_task(
                storm(url, serving.pid, book, until=until, clients=clients, scale=_scale(model))
            )
            await asyncio.sleep(seconds / 2)
            await _kill(serving, url, victim, restart, book)
            await asyncio.sleep(seconds / 2 if restart else 2.0)
            until.set()
            outcome = await storming
            if restart:
                await rest(url, outcome)
        finally:
            if serving.returncode is None:
                serving.terminate()
            code = await asyncio.wait_for(serving.wait(), END_S)
    if code != (0 if restart else CODES.get(victim, 1)):
        book.note_wrong("palmette serve", f"ended with code {code}")
    return outcome


def _words(model: str, folder: Path) -> list[str]:
    if model != "fake":
        return [] if model == "default" else [model]
    config = fake_model.write_folder(folder) / "config.json"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": FAKE.context_length}
    config.write_text(json.dumps({**json.loads(config.read_text()), **sizes, "rms_norm_eps": 1e-5}))
    return [str(folder), "--load-format", "dummy", "--max-total-tokens", "60000"]


def _scale(model: str) -> Scale:
    return FAKE if model == "fake" else SMALL


async def _address(serving: Process) -> str:
    """Where it listens, as it says once it is ready."""
    assert serving.stdout is not None
    async for line in serving.stdout:
        if found := re.search(rb"(http://[^/ ]+)/v1\b", line):
            return found[1].decode()
    raise RuntimeError(f"palmette serve ended with code {await serving.wait()} before it was ready")


async def _kill(serving: Process, url: str, victim: str, restart: bool, book: Book) -> None:
    """Kill a process, and see that everybody is told, and that the parent ends or goes on."""
    pids = {pid: name_of(pid) for pid in descendants(serving.pid)} | {serving.pid: PARENT}
    killed_s = time.monotonic()
    print(f"the {victim} is killed; {len(book.open)} visits are open")
    await kill_under_load(next(pid for pid, name in pids.items() if name == victim), book)
    print(f"{time.monotonic() - killed_s:6.2f} s  every client that was there is told")
    if restart:
        await well_again(url, book)
        print(f"{time.monotonic() - killed_s:6.2f} s  the server is well again")
        return
    code = await asyncio.wait_for(serving.wait(), END_S)
    while running := [pid for pid in pids if is_running(pid)]:
        check(time.monotonic() - killed_s < TOLD_S, f"{TOLD_S:g} s after its end there are still {running}")
        await asyncio.sleep(0.02)
    print(f"{time.monotonic() - killed_s:6.2f} s  palmette serve has ended with code {code}, its processes too")


async def kill_under_load(pid: int, book: Book) -> None:
    """Kill a process of a server, and wait until every client that was there is told.

    Raises:
        WrongAnswerError: one of them hangs.
    """
    there = book.begun
    book.lenient = True
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + TOLD_S
    while hanging := book.open_since(there):
        check(time.monotonic() < deadline, f"{TOLD_S:g} s after the end of a process these hang: {hanging}")
        await asyncio.sleep(0.02)


async def well_again(url: str, book: Book) -> None:
    """Wait until a server that is started anew answers; from then on all laws hold again."""
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as http, asyncio.timeout(RESTART_S):
        while not await _is_well(http):
            await asyncio.sleep(0.2)
    book.lenient = False


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def _is_well(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == 200
    except httpx.TransportError:
        return False
