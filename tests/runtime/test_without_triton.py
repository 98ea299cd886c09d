"""A GPU without Triton: torch's operators take the place of the kernels, and a warning says so, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from palmette.runtime import kernels
from palmette.runtime.layers.operators import TORCH, operators_for
from palmette.runtime.layers.placement import Placement

_GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    kernels._is_installed.cache_clear()
    yield
    kernels._is_installed.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_computes_and_it_is_told_once(caplog: pytest.LogCaptureFixture, dtype: torch.dtype) -> None:
    """Whatever the dtype."""
    with caplog.at_level(logging.WARNING):
        assert operators_for(Placement(dtype=dtype, device=_GPU)) is TORCH
        assert not kernels.serve(_GPU)
    (record,) = caplog.records
    assert "pip install triton" in record.message


def test_a_cpu_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It has kernels of its own."""
    assert not kernels.serve(torch.device("cpu"))
    assert not caplog.records
