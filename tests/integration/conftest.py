"""An engine that costs nothing to ask, for tests of everything around models."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from tests.five_backends import NAMES, backend_of, wait_until_free
from tests.native_server import ServedEngine

import palmette as pt
from palmette.runtime.engine import Engine
from palmette.runtime.processes.runtime_client import Runtime


@pytest.fixture(scope="session")
def quick_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Real processes around the model that computes nothing, whose answers have at most 256 tokens."""
    from palmette.bench import fake_model
    from palmette.runtime.config import EngineConfig
    from palmette.runtime.server_settings import ServerSettings

    folder = fake_model.write_folder(tmp_path_factory.mktemp("quick") / "quick")
    with Runtime.start(
        EngineConfig(model=str(folder), seed=0, context_length=256),
        ServerSettings(log_level="warning", max_body_bytes=1 << 20),
        loader=fake_model.LOADER,
    ) as runtime:
        yield runtime


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> Iterator[pt.Backend]:
    """Each of the backends that a program may run on; an engine has its pages back after each test."""
    name: str = request.param
    if name == "mock":
        with backend_of(name, None, "") as mock:
            yield mock
        return
    engine: Engine | Runtime = request.getfixturevalue("tiny_runtime" if name == "processes" else "tiny_engine")
    url = ""
    if name == "http" or name.startswith("openai"):
        server: ServedEngine = request.getfixturevalue("tiny_server")
        url = server.url
    with backend_of(name, engine, url) as real:
        yield real
    wait_until_free(engine)


@pytest.fixture(scope="module")
def loops_of_litellm() -> Iterator[None]:
    """litellm asks for event loops that nobody closes: none stays behind, for a later test to be blamed for."""
    yield
    asyncio.set_event_loop(None)
    gc.collect()
