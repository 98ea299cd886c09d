"""What HTTP costs: CPU of a request of one token beside a bare FastAPI echo, and tokens a second of many streams.

Two engines are measured, each in processes of its own, as the echo is: a *scripted* one, which answers at once within
the server's process, so that what is left is HTTP alone; and the three *processes* of a real engine on a model that
computes nothing (`palmette.bench.fake_model`): server, scheduler and detokenizer. CPU is that of whole processes, by
the system's clocks of them; kinds of requests take turns, and ratios are of one turn. Writes JSON: medians and ranges.

    python benchmarks/http_overhead.py --turns 7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.messages import CacheTree, SchedulerStats, SessionOptions
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.program import Completion, Delta, Generate, Generated, ModelInfo, Node
from palmette.runtime.server.app import create_app
from palmette.runtime.server.serving import HttpServer, listen
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EventSink
from palmette.runtime.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from any folder

from benchmarks.http_clients import run_clients

KINDS = ("completions", "chat")


# -- an engine that is scripted ---------------------------------------------------------------------------------------


class ScriptedService:
    """An engine that says " a" as often as it may, a step for all streams together; whole answers at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.model_info = ModelInfo(
            name="scripted",
            context_length=4096,
            vocab_size=len(tokenizer.token_bytes),
            chat_template=tokenizer.chat_template,
            special_tokens=tokenizer.special_tokens,
        )
        self.steps = 0
        self._running: dict[ScriptedSession, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def open_sessions(self) -> int:
        return len(self._running)

    def open(self, events: EventSink, options: SessionOptions | None = None) -> ScriptedSession:
        return ScriptedSession(self, events)

    def start(self, session: ScriptedSession, tokens: int) -> None:
        self._running[session] = tokens
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop(self, session: ScriptedSession) -> None:
        self._running.pop(session, None)

    async def _run(self) -> None:
        while self._running:
            await asyncio.sleep(0)
            self.steps += 1
            for session, left in list(self._running.items()):
                session.events(Delta(session.node, " a"))
                self._running[session] = left - 1
                if left == 1:
                    self.stop(session)
                    session.finish()

    async def flush_cache(self) -> int:
        return 0

    async def stats(self) -> SchedulerStats:
        return SchedulerStats()

    async def cache_tree(self, limit: int) -> CacheTree:
        return CacheTree(())


class ScriptedSession:
    """One program of the scripted engine, which runs its last generation."""

    def __init__(self, service: ScriptedService, events: EventSink) -> None:
        self.events = events
        self.node = 0
        self._tokens = 0
        self._service = service

    def extend(self, nodes: Sequence[Node]) -> None:
        node = nodes[-1]
        assert isinstance(node, Generate)
        self.node, self._tokens = node.id, node.params.max_tokens
        if node.stream:
            self._service.start(self, self._tokens)
        else:
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self) -> None:
        completion = Completion(
            text=" a" * self._tokens,
            token_ids=(5,) * self._tokens,
            finish_reason="length",
            prompt_tokens=8,
            cached_tokens=7,
            completion_tokens=self._tokens,
        )
        self.events(Generated(self.node, (completion,)))

    def abort(self) -> None:
        self._service.stop(self)

    def close(self) -> None:
        self._service.stop(self)


class Echo(BaseModel):
    """What the bare app takes and returns."""

    text: str


def echo_app() -> FastAPI:
    """FastAPI as its tutorial shows it."""
    app = FastAPI()

    @app.post("/echo")
    async def echo(body: Echo) -> Echo:
        return body

    return app


# -- what is measured -------------------------------------------------------------------------------------------------


def serve(name: str, folder: Path) -> None:
    """Be a server, of the echo or of the scripted engine; its port is the first line of the output."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(name, folder))
    else:
        uvloop.run(_serve(name, folder))


async def _serve(name: str, folder: Path) -> None:
    settings = ServerSettings()
    app = echo_app() if name == "echo" else create_app(ScriptedService(Tokenizer.load(folder)), settings)
    listener = listen("127.0.0.1", 0)
    serving = await HttpServer(app, settings).begin(listener)
    print(listener.getsockname()[1], flush=True)
    await serving


class Target:
    """A server and the processes behind it.

    Attributes:
        pids: of its processes, by name; the HTTP server is "server".
    """

    def __init__(self, port: int, pids: Mapping[str, int]) -> None:
        self.port = port
        self.pids = dict(pids)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each process so far, all of its threads together."""
        return {name: time.clock_gettime((~pid << 3) | 2) for name, pid in self.pids.items()}  # see clock_getres(2)


@contextmanager
def served(name: str, folder: Path) -> Generator[Target]:
    """A server of the echo or of the scripted engine in a process of its own."""
    command = [sys.executable, __file__, "--serve", name, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Target(int(process.stdout.readline()), {"server": process.pid})
        finally:
            process.kill()


@contextmanager
def engine(folder: Path) -> Generator[Target]:
    """The three processes of an engine on a model that computes nothing."""
    config = EngineConfig(model=str(folder), max_running_requests=256)
    with Runtime.start(config, ServerSettings(log_level="warning"), loader=fake_model.LOADER) as runtime:
        yield Target(int(runtime.url.rpartition(":")[2]), runtime.pids)


# -- the measurement --------------------------------------------------------------------------------------------------


def cost_us(target: Target, kind: str, requests: int, connections: int) -> dict[str, float]:
    """Microseconds of CPU of each process for a request of one token."""
    before = target.cpu_s()
    run_clients(kind, target.port, connections=connections, times=requests // connections)
    return {name: (now - before[name]) / requests * 1e6 for name, now in target.cpu_s().items()}


def streamed(target: Target, kind: str, streams: int, tokens: int) -> dict[str, float]:
    """Speed of many streams at once, and the CPU of each process for a token in microseconds."""
    before = target.cpu_s()
    found = run_clients(kind, target.port, connections=streams, tokens=tokens)
    total = streams * tokens
    spent = {f"{name}_us": (now - before[name]) / total * 1e6 for name, now in target.cpu_s().items()}
    return {"tokens_per_s": total / found["elapsed_s"], "tokens_per_chunk": total / found["chunks"], **spent}


def requests_of(targets: Mapping[str, Target], given: argparse.Namespace) -> dict[str, Any]:
    """CPU a request of all targets, in turns."""
    turns: list[dict[str, dict[str, float]]] = []
    for _ in range(given.turns + 1):  # the first warms up
        turn = {"echo": cost_us(targets["echo"], "echo", given.requests, given.connections)}
        for name in ("scripted", "processes"):
            for kind in KINDS:
                turn[f"{name} {kind}"] = cost_us(targets[name], kind, given.requests, given.connections)
        turns.append(turn)
    found: dict[str, Any] = {}
    for kind in turns[0]:
        costs, echoes = [turn[kind] for turn in turns[1:]], [turn["echo"]["server"] for turn in turns[1:]]
        found[kind] = {f"{name}_us": middle([cost[name] for cost in costs]) for name in costs[0]}
        found[kind]["server_times_echo"] = middle([c["server"] / e for c, e in zip(costs, echoes, strict=True)])
        found[kind]["all_times_echo"] = middle([sum(c.values()) / e for c, e in zip(costs, echoes, strict=True)])
    return found


def streams_of(targets: Mapping[str, Target], given: argparse.Namespace) -> dict[str, Any]:
    """Streams of both engines, in turns."""
    cases = [(name, kind) for name in ("scripted", "processes") for kind in KINDS]
    turns = [
        [streamed(targets[name], kind, given.streams, given.tokens) for name, kind in cases]
        for _ in range(given.turns + 1)
    ]
    return {
        f"{name} {kind}": {key: middle([turn[place][key] for turn in turns[1:]]) for key in turns[0][place]}
        for place, (name, kind) in enumerate(cases)
    }


def middle(values: Sequence[float]) -> str:
    """The median and the range."""
    median, least, most = (float(f"{value:.3g}") for value in (statistics.median(values), min(values), max(values)))
    return f"{median:g} ({least:g} to {most:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=2000, help="of each kind in each turn")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5, help="beside one that warms up")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--serve", choices=("echo", "scripted"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder)
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = fake_model.write_folder(Path(name))
        targets = {name: stack.enter_context(served(name, folder)) for name in ("echo", "scripted")}
        targets["processes"] = stack.enter_context(engine(folder))
        result = {"requests": requests_of(targets, given), "streams": streams_of(targets, given)}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
