"""Steps that are recorded and replayed answer what the same steps launched kernel by kernel do."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.step_plans import PlannedRow, StepPlanner
from tests.tiny_families import write_family
from tests.tiny_models import tiny_config, write_tiny_model

from palmette.runtime import kernels
from palmette.runtime.attention import flashinfer_kernels
from palmette.runtime.batch import FROM_SLOT
from palmette.runtime.config import EngineConfig
from palmette.runtime.model_runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPE = tiny_config(head_dim=64, num_attention_heads=4, num_key_value_heads=2, hidden_size=128)


def runner_of(folder: Path, *, device: str = "cuda", **settings: Any) -> ModelRunner:
    config = EngineConfig(max_total_tokens=4096, mask_rows=4, max_running_requests=64, device=device, **settings)
    return ModelRunner.load(folder, config)


def outputs(runner: ModelRunner, lengths: list[int], steps: int) -> list[list[int]]:
    """Greedy tokens of prompts of these lengths: a mixed step, decodes, and a step with a longer row among them."""
    rng = np.random.default_rng(0)
    planner = StepPlanner(runner.num_pages, runner.page_size)
    requests = [planner.request(rng.integers(3, 300, length).tolist(), most_tokens=length + 40) for length in lengths]
    found: list[list[int]] = [[] for _ in requests]
    for step in range(steps):
        rows = [
            PlannedRow(request, request.prompt if step == 0 else [FROM_SLOT])
            for request in sorted(requests, key=lambda each: len(each.prompt))
        ]
        if step == steps - 2:  # forced tokens: two in a row
            rows[-1] = PlannedRow(rows[-1].request, [7, 8])
        result = runner.launch(planner.plan(rows)).result()
        for row, token in zip(rows, result.token_ids.tolist(), strict=True):
            found[requests.index(row.request)].append(token)
    return found


@pytest.mark.parametrize("backend", ["flashinfer", "triton", "torch_native"])
@pytest.mark.parametrize("lengths", [[5], [1, 30, 2], list(range(1, 20)), [400, 90]])
def test_replayed_steps_equal_launched_ones(tmp_path: Path, backend: str, lengths: list[int]) -> None:
    """Decode steps as one graph, mixed ones in pieces, padded to sizes that were recorded with other rows."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    folder = write_tiny_model(tmp_path, SHAPE)
    settings = {"dtype": "bfloat16", "attention_backend": backend}
    replaying = runner_of(folder, **settings)
    expected = outputs(runner_of(folder, cuda_graphs=False, **settings), lengths, 12)
    assert outputs(replaying, lengths, 12) == expected
    assert outputs(replaying, lengths, 12) == expected  # every graph is recorded by now


@pytest.mark.parametrize("backend", ["flashinfer", "triton", "torch_native"])
def test_padding_writes_to_no_page_of_the_pool(tmp_path: Path, backend: str) -> None:
    """Five decodes in a recording of eight: its other rows touch the spare page alone, recorded and replayed."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    runner = runner_of(write_tiny_model(tmp_path, SHAPE), dtype="bfloat16", attention_backend=backend)
    storage = runner.storage
    for memory in (*storage.keys, *storage.values):
        memory.fill_(torch.nan)
    planner = StepPlanner(runner.num_pages, runner.page_size)
    requests = [planner.request([4], most_tokens=4) for _ in range(5)]
    for step in range(4):
        rows = [PlannedRow(each, each.prompt if step == 0 else [FROM_SLOT]) for each in requests]
        runner.launch(planner.plan(rows)).result()
    theirs = torch.zeros(storage.num_pages * storage.page_size, dtype=torch.bool)
    for request in requests:
        theirs[request.pages[0] * storage.page_size :][:4] = True
    for memory in (*storage.keys, *storage.values):
        assert torch.equal(~memory[: len(theirs)].isnan().all(2).all(1).cpu(), theirs)


@pytest.mark.parametrize("case", ["gemma3", "qwen3", "phi3"])
def test_families_can_be_replayed(tmp_path: Path, case: str) -> None:
    """Windows, caps, and norms of heads, in float32."""
    folder = write_family(tmp_path, case)
    expected = outputs(runner_of(folder, dtype="float32", cuda_graphs=False), [3, 17, 40], 12)
    assert outputs(runner_of(folder, dtype="float32"), [3, 17, 40], 12) == expected


def test_steps_that_cannot_be_recorded_are_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation that waits for the device, in the middle of a recording: the answers are the same, and told once."""
    folder = write_tiny_model(tmp_path, SHAPE)
    expected = outputs(runner_of(folder, dtype="bfloat16", cuda_graphs=False), [1, 30, 2], 12)
    runner = runner_of(folder, dtype="bfloat16")
    logits = runner.model.logits

    def waiting(hidden: torch.Tensor) -> torch.Tensor:
        return logits(hidden) + 0 * hidden.sum().item()

    monkeypatch.setattr(runner.model, "logits", waiting)
    with caplog.at_level(logging.WARNING, logger="palmette.runtime.cuda_graph"):
        assert outputs(runner, [1, 30, 2], 12) == expected
    assert len(caplog.records) == 1


@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
def test_two_engines_on_one_gpu_do_not_disturb_each_other(tmp_path: Path, backend: str) -> None:
    """Each in a thread of its own: one records while the other computes, and workspaces of products are shared."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    folder, lengths = write_tiny_model(tmp_path, SHAPE), list(range(1, 20))
    settings = {"dtype": "bfloat16", "attention_backend": backend}
    expected = outputs(runner_of(folder, **settings), lengths, 12)
    runners = [runner_of(folder, **settings) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda runner: [outputs(runner, lengths, 12) for _ in range(4)], runners))
    assert found == [[expected] * 4] * 2


def test_attention_in_transformers_code_is_compiled_when_the_model_is_loaded(tmp_path: Path) -> None:
    """By FlashInfer's, which takes a minute: no request waits for it, and where it fails others take its place."""
    pytest.importorskip("flashinfer")
    folder = write_tiny_model(tmp_path, SHAPE)
    runner = runner_of(folder, model_impl="transformers", dtype="bfloat16", attention_backend="flashinfer")
    compiled = flashinfer_kernels.kernels.cache_info().misses
    assert compiled
    outputs(runner, [5, 300], 4)
    assert flashinfer_kernels.kernels.cache_info().misses == compiled


def test_without_triton_torch_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no C compiler is: every operator, attention and the choice of tokens, launched and recorded."""
    folder, lengths = write_tiny_model(tmp_path, SHAPE), [1, 30, 2]
    expected = outputs(runner_of(folder, dtype="float32"), lengths, 12)
    monkeypatch.setattr(kernels, "problem", lambda: "a test")
    for cuda_graphs in (False, True):
        runner = runner_of(folder, dtype="float32", cuda_graphs=cuda_graphs)
        assert type(runner._attention).__name__ == "TorchNativeAttention"
        assert outputs(runner, lengths, 12) == expected


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
def test_the_second_device_computes_what_the_first_does(tmp_path: Path, backend: str) -> None:
    """Its streams, kernels and recordings are its own, whatever the thread's current device is."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    folder = write_tiny_model(tmp_path, SHAPE)
    settings = {"dtype": "bfloat16", "attention_backend": backend}
    expected = outputs(runner_of(folder, device="cuda:0", **settings), [1, 30, 2], 12)
    runner = runner_of(folder, device="cuda:1", **settings)
    torch.cuda.set_device(0)
    try:
        assert outputs(runner, [1, 30, 2], 12) == expected
    finally:
        torch.cuda.set_device(0)
