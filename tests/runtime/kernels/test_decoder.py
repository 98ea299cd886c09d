"""A whole decoder on the GPU's operators computes what it computes on torch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny_families import write_family
from torch import Tensor

from palmette.runtime.attention import AttentionPlan, attention_backend
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers import operators
from palmette.runtime.layers.placement import Placement
from palmette.runtime.weights import load_model

TOKENS = 5


def states(folder: Path, wanted: Tensor | None) -> Tensor:
    """Last hidden states of a few tokens, in torch's attention."""
    placement = Placement()
    model = load_model(folder, placement, model_impl="native")
    storage = KVStorage(model.config, placement, num_pages=TOKENS, page_size=1)
    attention = attention_backend("torch_native", storage)
    line, ends = np.arange(TOKENS, dtype=np.int32), np.array([0, TOKENS], dtype=np.int32)
    with torch.inference_mode():
        attention.plan(AttentionPlan(line, ends, ends, line, ends[1:]))
        return model.hidden(torch.arange(7, 7 + TOKENS), torch.arange(TOKENS), attention, wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels cannot read a CPU's memory; see tests/gpu")
@pytest.mark.parametrize("case", ["qwen3", "gemma3", "granite", "phi3-partial"])
def test_a_decoder_on_kernels_computes_what_it_does_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Norms of heads, norms on both sides, scaled residuals, gelu, partial rotation; and the rows of some tokens."""
    folder = write_family(tmp_path, case)
    wanted = torch.tensor([1, 4])
    monkeypatch.setattr(operators, "_cpu_float32", lambda: operators.TORCH)
    expected = states(folder, None)
    monkeypatch.setattr(operators, "_cpu_float32", operators._triton)
    torch.testing.assert_close(states(folder, None), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(states(folder, wanted), expected[wanted], atol=2e-5, rtol=1e-4)
