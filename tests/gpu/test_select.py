"""Limbs of a choice tree on a GPU: they read what other rows of their step write, launched and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.choice_trees import check_tree
from tests.tiny_models import tiny_config, write_tiny_model

from palmette.runtime.config import EngineConfig
from palmette.runtime.model_runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPE = tiny_config(head_dim=64, num_attention_heads=4, num_key_value_heads=2, hidden_size=128)


@pytest.mark.parametrize("backend", ["flashinfer", "triton", "torch_native"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_tree_scores_as_its_texts_do(tmp_path: Path, backend: str, cuda_graphs: bool) -> None:
    """In half precision, with pages of 16 tokens, the second time by replay where steps are recorded."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    settings = EngineConfig(
        max_total_tokens=4096,
        mask_rows=4,
        max_running_requests=16,
        device="cuda",
        dtype="bfloat16",
        attention_backend=backend,
        cuda_graphs=cuda_graphs,
    )
    runner = ModelRunner.load(write_tiny_model(tmp_path, SHAPE), settings)
    for _ in range(2):
        check_tree(runner, atol=0.1)
