"""Fixtures that cost something to build: one default model and one engine for all tests of a worker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if shutil.which("nvidia-smi") is None:  # before a kernel is imported: Triton looks when one is declared
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.engine_processes import StartedChildren
    from tests.native_server import ServedEngine

    from palmette.runtime.engine import Engine
    from palmette.runtime.processes.runtime_client import Runtime

settings.register_profile("palmette", deadline=None, print_blob=True)
settings.load_profile("palmette")


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model, fetched into the user's cache where it is not there yet."""
    from palmette.runtime.default_model import ensure_default_model

    return ensure_default_model()


@pytest.fixture(scope="session")
def default_engine(default_model_folder: Path) -> Iterator[Engine]:
    """One engine on the default model; tests that share it must not shut it down."""
    from palmette.runtime import launch

    with launch(seed=0, max_total_tokens=40_000, processes=False) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer of its own."""
    from tests.tiny_models import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_engine(tiny_model_folder: Path) -> Iterator[Engine]:
    """One engine on the tiny model; tests that share it must not shut it down."""
    from palmette.runtime import launch

    with launch(str(tiny_model_folder), seed=0, max_total_tokens=8_000, processes=False) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_runtime(tiny_model_folder: Path) -> Iterator[Runtime]:
    """An engine in processes of its own on the tiny model; tests that share it must not shut it down."""
    from palmette.runtime import launch

    with launch(tiny_model_folder, seed=0, max_total_tokens=8_000) as runtime:
        yield runtime


@pytest.fixture
def started_children() -> StartedChildren:
    """Gives the engine processes that were started since the test began and still run."""
    from tests.engine_processes import children_of

    before = children_of(os.getpid())

    def started() -> dict[int, str]:
        found = children_of(os.getpid())
        return {pid: command for pid, command in found.items() if pid not in before and "palmette.runtime" in command}

    return started


@pytest.fixture(scope="session")
def tiny_server(tiny_engine: Engine) -> Iterator[ServedEngine]:
    """The HTTP server around `tiny_engine`, which calls its model "tiny"."""
    from tests.native_server import served

    from palmette.runtime.server_settings import ServerSettings

    with served(tiny_engine, ServerSettings(model_name="tiny")) as server:
        yield server


@pytest.fixture(scope="session")
def roomy_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """As `tiny_engine`, with room for the long prompts of other people's clients."""
    from tests.tiny_models import tiny_config, write_tiny_model

    from palmette.runtime import launch

    folder = write_tiny_model(tmp_path_factory.mktemp("roomy-llama"), tiny_config(max_position_embeddings=16_384))
    with launch(str(folder), seed=0, max_total_tokens=40_000, processes=False) as engine:
        yield engine


@pytest.fixture(scope="session")
def roomy_server(roomy_engine: Engine) -> Iterator[ServedEngine]:
    """The HTTP server around `roomy_engine`, which calls its model "tiny"."""
    from tests.native_server import served

    from palmette.runtime.server_settings import ServerSettings

    with served(roomy_engine, ServerSettings(model_name="tiny")) as server:
        yield server


@pytest.fixture(scope="session")
def jsonschema_data() -> Path:
    """The schemas and instances of ``../shared/data/jsonschema``, which are not part of this repository."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "jsonschema"
    if not folder.is_dir():
        pytest.skip(f"no schemas at {folder}")
    return folder
