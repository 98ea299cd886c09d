"""How much of a GPU the KV pool takes, and what is told where there is no room."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny_models import write_tiny_model

from palmette.runtime import device_memory, pool_sizing
from palmette.runtime.config import EngineConfig, Sizes
from palmette.runtime.device_memory import DeviceBudget, device_budget
from palmette.runtime.errors import RequestError
from palmette.runtime.layers.placement import Placement
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import CausalLM
from palmette.runtime.pool_sizing import sized_storage
from palmette.runtime.sampler import Sampler
from palmette.runtime.weights import open_checkpoint

_GPU = torch.device("cuda:0")
_GIB = 1 << 30


def _budget(*, used: int) -> DeviceBudget:
    return DeviceBudget(_GPU, total=100 * _GIB, used=used * _GIB, own=8 * _GIB, step=3 * _GIB)


def _model(folder: Path, device: str = "cpu") -> CausalLM:
    model = open_checkpoint(write_tiny_model(folder)).load(Placement())
    model.placement = Placement(device=torch.device(device))
    return model


def test_the_pool_takes_what_the_fraction_leaves() -> None:
    """Of the whole memory: less what anybody uses, the largest step and workspaces. Another engine may leave none."""
    assert _budget(used=10).pool_bytes(0.85) == (85 - 10 - 3 - 1.5) * _GIB
    assert _budget(used=90).pool_bytes(0.85) < 0


def test_a_pool_without_a_page_tells_who_has_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message gives the sizes that are known, and what to change."""
    monkeypatch.setattr(pool_sizing, "device_budget", lambda *_, **__: _budget(used=90))
    sizes = Sizes(page_size=16, max_running_requests=4, chunk_size=64, mem_fraction=0.85)
    with pytest.raises(RequestError) as error:
        sized_storage(_model(tmp_path, "cuda:0"), EngineConfig(), sizes, recorded_bytes=4)
    for part in ("mem_fraction=0.85", "100.0 GiB", "8.0 GiB", "82.0 GiB by others", "step takes 3.0 GiB", "chunk_size"):
        assert part in str(error.value)


def test_a_step_that_does_not_fit_beside_the_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried before the pool is made; the message names the setting."""

    def full(model: CausalLM, tokens: int) -> int:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(device_memory, "_step_bytes", full)
    with pytest.raises(RequestError, match=r"cuda:0 has no memory for a step of 64 tokens .* lower chunk_size"):
        device_budget(_model(tmp_path, "cuda:0"), step_tokens=64, sampled_rows=4, recorded_bytes=4)


def test_masks_without_room_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's tables are made before the pool, which takes what is left; the message names the setting."""

    def full(*_: object, **__: object) -> Sampler:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr("palmette.runtime.model_runner.Sampler", full)
    with pytest.raises(RequestError, match=r"no memory for 7 grammar masks .*: lower mask_rows"):
        ModelRunner.load(write_tiny_model(tmp_path), EngineConfig(device="cpu", mask_rows=7))


def test_the_budget_counts_the_step_logits_and_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bytes a logit of every sampled row, beside what the model's layers took."""
    model = _model(tmp_path, "cuda:0")
    monkeypatch.setattr(device_memory, "_step_bytes", lambda model, tokens: 1000 * tokens)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 60)
    budget = device_budget(model, step_tokens=64, sampled_rows=4, recorded_bytes=2)
    step = 64_000 + 4 * model.config.vocab_size * 10 + 2
    assert budget == DeviceBudget(_GPU, total=100, used=70, own=60, step=step)
