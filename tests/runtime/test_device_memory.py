"""How much of a GPU the KV pool takes, and what is told where there is no room."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import write_tiny_model

from palmette.runtime import device_memory, pool_sizing
from palmette.runtime.config import EngineConfig, Sizes
from palmette.runtime.device_memory import DeviceBudget, device_budget, readable, weight_bytes
from palmette.runtime.errors import RequestError
from palmette.runtime.kv_storage import kv_bytes_per_token
from palmette.runtime.layers.placement import Placement
from palmette.runtime.memory_reserves import Reserve, page_table_bytes
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import CausalLM
from palmette.runtime.placing import sizes_on
from palmette.runtime.pool_sizing import sized_storage
from palmette.runtime.sampler import Sampler
from palmette.runtime.weights import open_checkpoint

_GPU = torch.device("cuda:0")
_GIB = 1 << 30
_RESERVES = (Reserve("a step of 64 tokens", 3 * _GIB), Reserve("attention's workspaces", _GIB // 2))


def _budget(*, used: int) -> DeviceBudget:
    return DeviceBudget(_GPU, 100 * _GIB, used * _GIB, weights=7 * _GIB, own=8 * _GIB, reserves=_RESERVES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """On a CPU that passes for a GPU."""
    found = open_checkpoint(write_tiny_model(tmp_path_factory.mktemp("model"))).load(Placement())
    found.placement = Placement(device=_GPU)
    return found


def test_the_pool_takes_what_the_fraction_leaves() -> None:
    """Of the whole memory: less what anybody uses, and what is yet to come. Another engine may leave none."""
    assert _budget(used=10).pool_bytes(0.85) == (85 - 10 - 3 - 0.5) * _GIB
    assert _budget(used=90).pool_bytes(0.85) < 0


def test_a_pool_without_a_page_tells_who_has_the_memory(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says who has how much, what how much is kept for, and what to change."""
    monkeypatch.setattr(pool_sizing, "device_budget", lambda *_, **__: _budget(used=90))
    monkeypatch.setattr(pool_sizing, "reserves_of", lambda *_, **__: _RESERVES)
    sizes = Sizes(page_size=16, max_running_requests=4, chunk_size=64, mem_fraction=0.85)
    with pytest.raises(RequestError) as error:
        sized_storage(model, EngineConfig(), sizes, recorded=True)
    for part in (
        "mem_fraction=0.85 leaves holds not one page of 16 tokens",
        "cuda:0 has 100.0 GiB; taken are 7.0 GiB by weights, 1.0 GiB by the tables of sampling",
        "82.0 GiB by other processes and the driver",
        "kept are 3.0 GiB for a step of 64 tokens, 512 MiB for attention's workspaces",
        "Raise mem_fraction, lower chunk_size or max_running_requests, or free memory",
    ):
        assert part in str(error.value)


def test_a_pool_that_is_asked_for_and_does_not_fit_is_refused(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it takes and what is free."""

    def full(*_: object, **__: object) -> object:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(pool_sizing, "KVStorage", full)
    monkeypatch.setattr(pool_sizing, "free_memory_bytes", lambda device: 3 * _GIB)
    sizes = Sizes(page_size=16, max_running_requests=4, chunk_size=64, mem_fraction=0.85)
    pool = readable(1600 * kv_bytes_per_token(model.config, model.placement))
    with pytest.raises(RequestError, match=rf"1600 tokens, which takes {pool}: 3\.0 GiB are free; lower max_total"):
        sized_storage(model, EngineConfig(max_total_tokens=1600), sizes, recorded=True)


def test_a_step_that_does_not_fit_beside_the_weights_is_refused(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried before the pool is made; the message names the setting and what the weights have."""

    def full(model: CausalLM, tokens: int) -> int:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(device_memory, "_step_bytes", full)
    with pytest.raises(RequestError, match=r"no memory for a step of 64 tokens beside \d+ MiB of weights: lower chunk"):
        device_budget(model, step_tokens=64, reserves=_RESERVES)


def test_sampling_tables_without_room_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made before the pool, which takes what is left; the message says what they take, and what sets it."""

    def full(*_: object, **__: object) -> Sampler:
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    monkeypatch.setattr("palmette.runtime.model_runner.Sampler", full)
    settings = EngineConfig(device="cpu", mask_rows=70_000, max_running_requests=3000)
    with pytest.raises(RequestError) as error:
        ModelRunner.load(write_tiny_model(tmp_path), settings)
    for part in (
        "no memory beside the weights for the tables of sampling, 5 MiB for the penalties of 3000 requests",
        "MiB for 70000 grammar masks: lower max_running_requests or mask_rows (tried to allocate 3 GiB)",
    ):
        assert part in str(error.value)


def test_the_budget_counts_the_largest_step_and_all_reserves(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step comes first; what is used is what the driver says, what this process has what torch says."""
    monkeypatch.setattr(device_memory, "_step_bytes", lambda model, tokens: 1000 * tokens)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 60)
    budget = device_budget(model, step_tokens=64, reserves=_RESERVES)
    reserves = (Reserve("a step of 64 tokens", 64_000), *_RESERVES)
    weights = weight_bytes(model)
    assert budget == DeviceBudget(_GPU, total=100, used=70, weights=weights, own=60, reserves=reserves)
    assert isinstance(model, torch.nn.Module)
    assert weights == sum(parameter.nbytes for parameter in model.parameters())


@given(memory=st.integers(-100, 1 << 30), longest=st.integers(1, 5000), page_size=st.sampled_from([1, 16]))
def test_page_tables_fit_beside_the_pool(model: CausalLM, memory: int, longest: int, page_size: int) -> None:
    """Those of the most rows at their longest, in a small pool at all of its pages; one page more would not fit."""
    sizes = Sizes(page_size=page_size, max_running_requests=100, chunk_size=512, mem_fraction=0.85)
    pages = pool_sizing._pages_beside_tables(model, memory, sizes, longest, recorded=True)
    a_page = page_size * kv_bytes_per_token(model.config, model.placement)
    a_place = page_table_bytes(sizes, recorded=True)
    assert a_place == 4 * (512 + 112)  # the step's tokens, and the rows of the largest recorded decode step

    def taken(pages: int) -> int:
        return pages * a_page + min(pages, longest) * a_place

    assert pages < 1 or taken(pages) <= memory
    assert taken(max(pages + 1, 1)) > memory


def test_a_small_gpu_has_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 40 GiB on all is as on a large one; what is set holds on any."""
    gib = 24
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * _GIB))
    settings = EngineConfig()
    small = sizes_on(_GPU, settings)
    assert (small.max_running_requests, small.chunk_size, small.page_size, small.mem_fraction) == (256, 2048, 16, 0.85)
    assert sizes_on(_GPU, EngineConfig(chunk_size=4096, max_running_requests=9)) == Sizes(
        page_size=16, max_running_requests=9, chunk_size=4096, mem_fraction=0.85
    )
    gib = 40
    assert sizes_on(_GPU, settings) == settings.sizes_for("cuda")
    assert sizes_on(torch.device("cpu"), settings) == settings.sizes_for("cpu")
