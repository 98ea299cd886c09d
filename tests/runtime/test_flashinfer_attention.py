"""The FlashInfer backend without FlashInfer: what its modules are asked for, and when it cannot be used."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.fake_flashinfer import fake_flashinfer
from tests.runtime.test_attention import Case, cases, check, small_storage

from palmette.runtime.attention import attention_backend, flashinfer_kernels
from palmette.runtime.attention.flashinfer import FlashInferAttention, prefers_fa3
from palmette.runtime.attention.paged import spare_plan
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
        (torch.bfloat16, 128, "0.7.0", "needs FlashInfer 0.6"),
        (torch.bfloat16, 128, None, r"pip install 'palmette\[gpu\]'"),
        (torch.bfloat16, 128, "0.6.12", "nvcc"),
    ],
)
def test_what_flashinfer_cannot_do(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, version: str | None, reason: str
) -> None:
    """Each reason in words."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: version if name == "flashinfer" else None)
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(flashinfer_kernels, "_has_compiler", lambda: reason != "nvcc")
    found = flashinfer_kernels.missing(torch.device("cuda"), dtype, head_dim)
    assert found is not None
    assert re.search(reason, found)


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
    assert flashinfer_kernels.recorded_tiles(512, 4, 16) == 128 + 511


@given(case=cases())
@settings(max_examples=30)
def test_any_step_through_flashinfer(case: Case) -> None:
    """Its modules get what they take in FlashInfer 0.6.12, decodes and the other rows each theirs."""
    with fake_flashinfer():
        check(case, backend="flashinfer")


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


def test_a_recorded_step_plans_again_in_the_same_memory() -> None:
    """Its launches hold the addresses."""
    with fake_flashinfer() as modules:
        storage = small_storage()
        graph = FlashInferAttention(storage).decode_graph(1, 32)
        layer = RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8)
        for _ in range(3):
            graph.plan(spare_plan(storage, 1, decode=True))
            graph.run(torch.zeros(1, 3, 8), layer)
        plans = modules["fa2"].plans
        assert len(plans) == 3
        assert len({(plan["floats"].data_ptr(), plan["integers"].data_ptr()) for plan in plans}) == 1
