"""What an engine does beside reading its weights holds up nobody, and is done when the engine is ready."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from tests.tiny_models import write_tiny_model

from palmette.runtime import loading
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.processes import server_process


def test_an_error_does_not_wait_for_what_is_done_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are missing are told of while grammars still warm up; the collector runs as before."""
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    told = threading.Event()
    monkeypatch.setattr(loading, "warm_up", lambda: told.wait(60))
    try:
        with pytest.raises(ModelLoadError, match="has no weights"):
            loading.load_scheduler(EngineConfig(model=str(folder), device="cpu"))
    finally:
        told.set()
    assert gc.isenabled()


def test_grammars_are_warm_when_the_engine_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading ends after the loops are there, and the scheduler's vocabulary is the one that was made beside."""
    folder = write_tiny_model(tmp_path)
    warmed: list[str] = []
    monkeypatch.setattr(loading, "warm_up", lambda: warmed.append(threading.current_thread().name))
    loaded = loading.load_scheduler(EngineConfig(model=str(folder), device="cpu", max_total_tokens=512))
    loaded.scheduler.close()
    assert [name.startswith("palmette-loading") for name in warmed] == [True]
    assert gc.isenabled()


def test_a_server_can_render_chats_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What renders templates is imported together with the tokenizer, where the model has a template."""
    folder = write_tiny_model(tmp_path)
    asked: list[None] = []
    monkeypatch.setattr(server_process, "template_renderer", lambda: asked.append(None))
    assert server_process._prepared_tokenizer(str(folder)).chat_template is not None
    assert len(asked) == 1
    (folder / "tokenizer_config.json").write_text("{}")
    assert server_process._prepared_tokenizer(str(folder)).chat_template is None
    assert len(asked) == 1
