"""A GPU where Triton is not or cannot compile: torch's operators take its place, and a warning says so, once."""

from __future__ import annotations

import importlib.util
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
    kernels.problem.cache_clear()
    yield
    kernels.problem.cache_clear()


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


class _BrokenDriver:
    """Stands for Triton's, which compiles a piece of C when it is first asked for."""

    @property
    def active(self) -> object:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is there on Linux alone")
def test_without_a_c_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As in a slim container: Triton is there, and would fail at its first launch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("palmette.runtime.kernels.triton_driver.driver", _BrokenDriver())
    assert not kernels.serve(_GPU)
    assert operators_for(Placement(dtype=torch.bfloat16, device=_GPU)) is TORCH
    (record,) = caplog.records
    assert "apt-get install gcc" in record.message
    assert record.message.endswith("(Failed to find C compiler.)")
