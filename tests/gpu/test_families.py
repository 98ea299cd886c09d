"""Every family on a GPU answers what it answers on the CPU, natively and through transformers' code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fallback_models import write_fallback_model
from tests.tiny_families import CASES, write_family
from tests.wire import complete

from palmette.runtime import launch
from palmette.runtime.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STORY = "The quick brown fox jumps over the lazy dog. A tree has one trunk and many branches. "
PROMPTS = (STORY + "It is what it is;", STORY + "Numbers such as 0 1 2", "and")
PARAMS = SamplingParams(temperature=0, max_tokens=12)


def answers(folder: Path, **settings: Any) -> list[str]:
    with launch(str(folder), max_total_tokens=2000, chunk_size=24, processes=False, **settings) as engine:
        return complete(engine, PROMPTS, PARAMS)


@pytest.mark.parametrize("case", CASES)
def test_a_family_answers_as_on_the_cpu(tmp_path: Path, case: str) -> None:
    """Greedy in float32: prompts with a common prefix, in chunks, past every window."""
    folder = write_family(tmp_path, case)
    assert answers(folder, device="cuda", dtype="float32") == answers(folder, device="cpu")


@pytest.mark.parametrize("model_type", ["olmo2", "qwen3_moe"])
def test_the_fallback_answers_as_on_the_cpu(tmp_path: Path, model_type: str) -> None:
    """Greedy in float32, with the attention of the engine in transformers' code."""
    folder = write_fallback_model(tmp_path, model_type)
    assert answers(folder, device="cuda", dtype="float32") == answers(folder, device="cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", ["gemma3", "qwen3", "phi3"])
def test_a_family_runs_in_half_precision(tmp_path: Path, case: str, dtype: str) -> None:
    """Answers come, with the model's own logits as finite numbers."""
    folder = write_family(tmp_path, case)
    assert len(answers(folder, device="cuda", dtype=dtype)) == len(PROMPTS)
