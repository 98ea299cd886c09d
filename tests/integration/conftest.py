"""An engine that costs nothing to ask, for tests of everything around models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
