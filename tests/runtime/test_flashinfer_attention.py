"""The FlashInfer backend without FlashInfer: what its modules are asked for, and when it cannot be used."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.fake_flashinfer import fake_flashinfer
from tests.runtime.test_attention import Case, cases, check, check_row_on_pages_of_another, small_storage

from palmette.runtime import attention, kernels
from palmette.runtime.attention import attention_backend, compiled_attention, flashinfer_kernels
from palmette.runtime.attention.flashinfer import FlashInferAttention, prefers_fa3
from palmette.runtime.attention.flashinfer_planner import Planner, recorded_tiles
from palmette.runtime.attention.paged import spare_plan
from palmette.runtime.attention.torch_native import TorchNativeAttention
from palmette.runtime.errors import RequestError
from palmette.runtime.layers.attention import RadixAttention


def test_gpu_backends_say_why_they_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to do instead."""
    storage = small_storage()
    with pytest.raises(RequestError, match="'flashinfer' cannot be used: it needs an NVIDIA GPU, not cpu"):
        attention_backend("flashinfer", storage)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RequestError, match="'triton' needs a GPU"):
        attention_backend("triton", storage)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "version", "reason"),
    [
        (torch.float32, 128, "0.6.12", "not in float32"),
        (torch.bfloat16, 80, "0.6.12", "no kernels for heads of 80"),
        (torch.bfloat16, 128, "0.7.0", "needs FlashInfer 0.6.12 or later, before 0.6.16, not 0.7.0"),
        (torch.bfloat16, 128, "0.6.16.post4", "before 0.6.16"),
        (torch.bfloat16, 128, "0.6.9", "0.6.12 or later"),
        (torch.bfloat16, 128, None, r"pip install 'palmette\[gpu\]'"),
        (torch.bfloat16, 128, "0.6.12", "nvcc"),
        (torch.bfloat16, 128, "0.6.15.post1", "nvcc"),
    ],
)
def test_what_flashinfer_cannot_do(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, version: str | None, reason: str
) -> None:
    """Each reason in words."""

    def version_of(package: str) -> str:
        if version is None:
            raise PackageNotFoundError(package)
        return version

    monkeypatch.setattr("importlib.metadata.version", version_of)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(flashinfer_kernels, "_has_compiler", lambda: reason != "nvcc")
    found = flashinfer_kernels.missing(torch.device("cuda"), dtype, head_dim)
    assert found is not None
    assert re.search(reason, found)


def test_the_extra_brings_a_version_that_serves() -> None:
    """The advice to install it would be no help otherwise."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    first, beyond = (".".join(map(str, version)) for version in flashinfer_kernels._VERSIONS)
    assert f"flashinfer-python>={first},<{beyond}" in text


def test_ninja_is_found_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Python was started by its path, from a virtual environment that is not active."""
    (tmp_path / "ninja").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    for _ in range(2):
        flashinfer_kernels._find_ninja()
    assert os.environ["PATH"].split(os.pathsep) == ["/nowhere", str(tmp_path)]


def test_kernels_that_cannot_be_compiled_are_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By Palmette's own, and the log says why; where FlashInfer was asked for by name, that is an error."""
    storage, layers = small_storage(), [RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8)]
    compile_kernels = flashinfer_kernels.kernels
    with fake_flashinfer():
        monkeypatch.setattr(flashinfer_kernels, "kernels", compile_kernels)
        monkeypatch.setattr(attention, "attention_backend", lambda _, storage: FlashInferAttention(storage))
        monkeypatch.setitem(sys.modules, "flashinfer.prefill", None)
        assert type(compiled_attention(None, storage, layers)).__name__ == "TritonAttention"
        assert "own kernels: FlashInfer's kernels could not be compiled: " in caplog.text
        with pytest.raises(RequestError, match="'flashinfer' cannot be used: FlashInfer's kernels could not be"):
            compiled_attention("flashinfer", storage, layers)


def test_without_triton_torch_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is all that is left on a GPU, FlashInfer or not: keys and values are written by a kernel of Triton."""
    storage = small_storage()
    monkeypatch.setattr(type(storage), "device", torch.device("cuda"))
    monkeypatch.setattr(kernels, "problem", lambda: "pip install triton")
    assert isinstance(attention_backend(None, storage), TorchNativeAttention)
    for name in ("triton", "flashinfer"):
        with pytest.raises(RequestError, match=f"'{name}' needs Triton's kernels: pip install triton; or leave"):
            attention_backend(name, storage)


@pytest.mark.parametrize(
    ("rows", "wins"),
    [
        (((0, 1024),) * 8, True),
        (((0, 8192),), True),
        (((2048, 64),) * 64, False),
        (((0, 8192), (500, 16)), True),
        (((0, 300), (8000, 16)), False),
    ],
)
def test_flash_attention_3_needs_filled_tiles(rows: tuple[tuple[int, int], ...], wins: bool) -> None:
    """As measured: it loses where most of its tiles' rows are empty."""
    lens = np.array([now for _, now in rows], dtype=np.int32)
    assert prefers_fa3(lens, lens + np.array([before for before, _ in rows], dtype=np.int32), 128) == wins


def test_recorded_workspaces_suffice_for_flashinfer() -> None:
    """As many tiles as FlashInfer's plan allows for: ceil(rows * group / tile) + rows - 1."""
    assert recorded_tiles(512, 4, 16) == 128 + 511


@given(case=cases())
@settings(max_examples=20)
def test_any_step_through_flashinfer(case: Case) -> None:
    """Its modules get what they take in FlashInfer 0.6.12, decodes and the other rows each theirs."""
    with fake_flashinfer():
        check(case, backend="flashinfer")


def test_a_row_may_have_pages_that_another_row_writes() -> None:
    """As with the other backends: in a layer everything is written before it is read."""
    with fake_flashinfer():
        check_row_on_pages_of_another("flashinfer")


@given(case=cases(), before=st.lists(st.integers(0, 20), min_size=1, max_size=6))
@settings(max_examples=10)
def test_recorded_steps_through_flashinfer(case: Case, before: list[int]) -> None:
    """The plan is made for a recording."""
    with fake_flashinfer() as modules:
        check(replace(case, rows=tuple((count, 1) for count in before)), backend="flashinfer", recorded=True)
        assert [plan["graph"] for plan in modules["fa2"].plans] == [True]
        assert not modules["fa3"].plans


def test_flashinfer_warms_up_every_kernel() -> None:
    """Decodes and short rows on FlashAttention 2, long rows on 3."""
    with fake_flashinfer() as modules:
        backend = FlashInferAttention(small_storage())
        backend.warm_up([RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8)])
        assert [plan["causal"] for plan in modules["fa2"].plans] == [False, True]
        assert [plan["tokens"] for plan in modules["fa3"].plans] == [192]


def test_memory_of_recorded_steps_is_taken_once_and_within_bounds() -> None:
    """By the first, of most rows; of more rows than there is memory for, steps are not recorded."""
    with fake_flashinfer():
        storage = small_storage()
        backend = FlashInferAttention(storage)
        layer = RadixAttention(0, num_heads=64, num_kv_heads=1, head_dim=8)
        backend.plan(spare_plan(storage, 1, decode=True))
        backend.run(torch.zeros(1, 66, 8), layer)
        before = backend._planner._floats
        assert backend.decode_graph(8192, 32) is None
        assert backend._planner._floats is before
        assert backend.decode_graph(300, 32) is not None
        taken = backend._planner._floats
        assert len(taken) > len(before)
        smaller = backend.decode_graph(1, 32)
        assert smaller is not None
        smaller.plan(spare_plan(storage, 1, decode=True))
        smaller.run(torch.zeros(1, 66, 8), layer)
        assert backend._planner._floats is taken


def test_a_recorded_step_plans_again_in_the_same_memory() -> None:
    """Its launches hold the addresses."""
    with fake_flashinfer() as modules:
        storage = small_storage()
        graph = FlashInferAttention(storage).decode_graph(1, 32)
        assert graph is not None
        layer = RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8)
        for _ in range(3):
            graph.plan(spare_plan(storage, 1, decode=True))
            graph.run(torch.zeros(1, 3, 8), layer)
        plans = modules["fa2"].plans
        assert len(plans) == 3
        assert len({(plan["floats"].data_ptr(), plan["integers"].data_ptr()) for plan in plans}) == 1


class _Event:
    """Stands for CUDA's, and knows how often it was waited for."""

    made: list[_Event]

    def __init__(self) -> None:
        self.records = self.waits = 0
        _Event.made.append(self)

    def record(self) -> None:
        self.records += 1

    def synchronize(self) -> None:
        self.waits += 1


def test_a_plan_is_written_where_an_older_one_was_copied_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer copies it while the host goes on: page-locked memory comes round after four, and is waited for."""
    mark_copied, _Event.made = Planner._mark_copied, []
    with fake_flashinfer() as modules:
        monkeypatch.setattr(Planner, "_mark_copied", mark_copied)
        monkeypatch.setattr(torch.cuda, "Event", _Event)
        storage = small_storage()
        backend = FlashInferAttention(storage)
        layer = RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8)
        for _ in range(5):
            backend.plan(spare_plan(storage, 1, decode=True))
            backend.run(torch.zeros(1, 3, 8), layer)
    pinned = [id(plan["pinned"]) for plan in modules["fa2"].plans]
    assert len(set(pinned[:4])) == 4
    assert pinned[4] == pinned[0]
    assert [(event.records, event.waits) for event in _Event.made] == [(2, 1), (1, 0), (1, 0), (1, 0)]
