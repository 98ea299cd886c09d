"""Fixtures that cost something to build: one default model and one engine for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from palmette.runtime.engine import Engine

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

    with launch(seed=0, max_total_tokens=40_000) as engine:
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

    with launch(str(tiny_model_folder), seed=0, max_total_tokens=8_000) as engine:
        yield engine


@pytest.fixture(scope="session")
def jsonschema_data() -> Path:
    """The schemas and instances of ``../shared/data/jsonschema``, which are not part of this repository."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "jsonschema"
    if not folder.is_dir():
        pytest.skip(f"no schemas at {folder}")
    return folder
