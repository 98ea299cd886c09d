"""What an engine takes of a GPU after its KV pool was made: no more than was kept free for it, whatever is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.step_plans import PlannedRow, StepPlanner
from tests.tiny_models import tiny_config, write_tiny_model

from palmette.runtime import model_runner, pool_sizing
from palmette.runtime.batch import FROM_SLOT, StepPlan
from palmette.runtime.config import EngineConfig
from palmette.runtime.device_memory import DeviceBudget, device_budget
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.pool_sizing import sized_storage
from palmette.runtime.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

_REQUESTS, _CHUNK = 256, 2048
_SHAPE = tiny_config(
    vocab_size=128256,
    head_dim=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_size=128,
    max_position_embeddings=_CHUNK,
)
_PARAMS = (
    SamplingParams(
        seed=1,
        temperature=0.7,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        min_tokens=4,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        logit_bias={3: 1.0},
        logprobs=50,
    ),
    SamplingParams(temperature=0.0, presence_penalty=0.5),
    SamplingParams(seed=1, top_p=0.5),
)


@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
def test_all_that_comes_after_the_pool_was_counted(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch and, with the driver's part, by the GPU's own count: prompts, recorded and mixed steps, and scores."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    budgets: list[DeviceBudget] = []
    before: list[tuple[int, int]] = []

    def budget_of(*args: Any, **kwargs: Any) -> DeviceBudget:
        budgets.append(device_budget(*args, **kwargs))
        return budgets[0]

    def storage_of(*args: Any, **kwargs: Any) -> Any:
        storage = sized_storage(*args, **kwargs)
        before.append(_taken())
        return storage

    monkeypatch.setattr(pool_sizing, "device_budget", budget_of)
    monkeypatch.setattr(model_runner, "sized_storage", storage_of)
    settings = EngineConfig(
        max_running_requests=_REQUESTS,
        chunk_size=_CHUNK,
        mask_rows=64,
        device="cuda",
        dtype="bfloat16",
        attention_backend=backend,
    )
    runner = ModelRunner.load(write_tiny_model(tmp_path, _SHAPE), settings)
    for plan in steps_of(runner):
        runner.launch(plan).result()
    by_torch, by_driver = (now - then for now, then in zip(_taken(), before[0], strict=True))
    reserves = {reserve.what: reserve.size_bytes for reserve in budgets[0].reserves}
    print(f"\n{backend}: torch took {by_torch >> 20} MiB, the GPU {by_driver >> 20} MiB, of {reserves}")
    kept = sum(reserves.values())
    assert by_torch <= kept - reserves["the driver's kernels and graphs"]
    if "PYTEST_XDIST_WORKER" not in os.environ:  # else the GPU's own count is that of other tests as well
        assert by_driver <= kept


def steps_of(runner: ModelRunner, requests: int = _REQUESTS, chunk: int = _CHUNK) -> Iterator[StepPlan]:
    """Steps as large as they can be with every option, and then recorded ones of many sizes."""
    for params in _PARAMS:
        planner = StepPlanner(runner.num_pages, runner.page_size, params)
        each = chunk // requests
        rows = [planner.request(range(3, 3 + each), most_tokens=64) for _ in range(requests)]
        yield planner.plan([PlannedRow(request, request.prompt) for request in rows])
        for count in (requests, requests // 2, requests // 4, 7, 1):
            for _ in range(2):
                yield planner.plan([PlannedRow(request, [FROM_SLOT]) for request in rows[:count]])
                yield planner.plan([PlannedRow(rows[0], [5, 6]), *(PlannedRow(row, [7]) for row in rows[1:count])])
    planner = StepPlanner(runner.num_pages, runner.page_size)
    long = planner.request([3 + place % 100 for place in range(chunk)], most_tokens=chunk)
    score = [(place, 5) for place in range(chunk)]
    yield planner.plan([PlannedRow(long, long.prompt, score=score, top=50)])


def _taken() -> tuple[int, int]:
    """By torch of the device, and by everybody."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.memory_reserved(), total - free
