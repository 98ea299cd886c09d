"""One start of an engine, for `startup.py`: ``startup_child.py engine|processes FOLDER DEVICE``; prints spans."""

from __future__ import annotations

import time

BEGAN = time.time()

import json  # noqa: E402  # the first line that runs is what is measured
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)

from benchmarks.startup_spans import SPANS_FILE, Spans  # noqa: E402

if TYPE_CHECKING:
    from palmette.runtime.engine import Engine
    from palmette.runtime.processes.runtime_client import Runtime

_ANSWERS = (
    ("first token (prefill)", 1),
    ("second request, 2 tokens (first decode)", 2),
    ("third request, 16 tokens", 16),
)


def main(mode: str, folder: str, device: str) -> None:
    """Start, ask for a token, then for more, and print what was done when."""
    spans = Spans()
    settings: dict[str, Any] = {"load_format": "dummy", "context_length": 8192, "seed": 0}
    if device != "auto":
        settings["device"] = device
    start = _start_engine if mode == "engine" else _start_processes
    with tempfile.TemporaryDirectory() as name, start(spans, folder, settings, Path(name) / "spans.json") as engine:
        for number, (what, tokens) in enumerate(_ANSWERS):
            with spans.span(what):
                ask(engine, f"Request {number} is about a tree with many branches.", tokens)
    print(json.dumps({"began": BEGAN, "spans": spans.spans, "packages": _large_packages()}))


def _start_engine(spans: Spans, folder: str, settings: dict[str, Any], _: Path) -> Engine:
    spans.watch()
    with spans.span("launch(processes=False), all"):
        with spans.span("import palmette.runtime"):
            from palmette.runtime import launch, loading
        assert loading
        return launch(folder, processes=False, **settings)


def _start_processes(spans: Spans, folder: str, settings: dict[str, Any], file: Path) -> Runtime:
    """As `launch`, with a loader that also writes its spans."""
    os.environ[SPANS_FILE] = str(file)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    with spans.span("launch(), all"):
        with spans.span("import palmette.runtime"):
            from palmette.runtime.config import EngineConfig
            from palmette.runtime.processes.runtime_client import Runtime
            from palmette.runtime.server_settings import ServerSettings
        runtime = Runtime.start(
            EngineConfig(model=folder, **settings),
            ServerSettings(log_level="warning"),
            loader="benchmarks.startup_spans:load_scheduler",
        )
    spans.spans += [tuple(span) for span in json.loads(file.read_text())]
    return runtime


def ask(engine: Engine | Runtime, prompt: str, tokens: int) -> None:
    """Wait for an answer of so many tokens."""
    from palmette.runtime.program import Event, Failed, Generate, Generated, Text
    from palmette.runtime.sampling_params import SamplingParams

    done = threading.Event()
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, Generated | Failed):
            done.set()

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, always_complete=False)
    session = engine.open(take)
    session.extend([Text(0, None, prompt), Generate(1, 0, params)])
    assert done.wait(300), "no answer in time"
    assert isinstance(events[-1], Generated), events[-1]
    assert events[-1].completions[0].completion_tokens == tokens
    session.close()


def _large_packages() -> list[str]:
    names = ("torch", "transformers", "numba", "triton", "flashinfer", "fastapi", "scipy", "sympy", "torch._dynamo")
    return [name for name in names if name in sys.modules]


if __name__ == "__main__":
    main(*sys.argv[1:])
