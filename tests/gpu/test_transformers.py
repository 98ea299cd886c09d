"""A model of a public model's shapes answers on a GPU as transformers does there, in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.model_shapes import config_of
from safetensors.torch import save_file

from palmette.runtime.batch import Int32Array
from palmette.runtime.config import EngineConfig
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler import Scheduler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
CONFIG: dict[str, Any] = config_of("1b") | {"num_hidden_layers": 4}
LENGTHS = (1, 17, 64, 200, 333, 512, 1500)
NEW_TOKENS = 32
NEAR_TIE = 1e-4
"""Between logits: which of two so near is the best depends on the order of sums."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Any]:
    """transformers' model, whose weights lie in the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(LlamaConfig(**CONFIG)).float().eval()
    tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}  # tied
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    yield model
    del model
    torch.cuda.empty_cache()


def expected(reference: Any, prompt: Int32Array) -> tuple[list[int], float]:
    """transformers' greedy tokens, and the smallest gap of the two best logits among them."""
    inputs = torch.from_numpy(prompt.astype(np.int64))[None].to(DEVICE)
    output = reference.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    best = torch.stack([logits[0].topk(2).values for logits in output.logits])
    return output.sequences[0, inputs.shape[1] :].tolist(), float((best[:, 0] - best[:, 1]).min())


def answers(folder: Path, prompts: list[Int32Array], *, overlap: bool, **settings: Any) -> list[list[int]]:
    """The engine's greedy tokens, all prompts at once, some in chunks."""
    config = EngineConfig(max_total_tokens=8000, device=DEVICE, dtype="float32", chunk_size=512, **settings)
    runner = ModelRunner.load(folder, config)
    scheduler = Scheduler(
        runner,
        config=config,
        num_pages=runner.num_pages,
        page_size=runner.page_size,
        context_length=4096,
        sizes=runner.sizes(config),
    )
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [Request(id=str(i), kind="generate", prompt_ids=ids, params=params) for i, ids in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    while scheduler.can_step:
        _ = scheduler.step_ahead() if overlap else scheduler.step()
    assert [request.error for request in requests] == [None] * len(requests)
    return [request.output_ids.tolist() for request in requests]


def test_greedy_tokens_are_those_of_transformers(folder: Path, reference: Any) -> None:
    """One step after the other and with steps that overlap, but for answers in which two logits nearly tie."""
    random = np.random.default_rng(0)
    prompts = [random.integers(1000, 30000, size=length, dtype=np.int32) for length in LENGTHS]
    wanted = [expected(reference, prompt) for prompt in prompts]
    for overlap in (False, True):
        found = answers(folder, prompts, overlap=overlap)
        equal = [tokens == known for tokens, (known, _) in zip(found, wanted, strict=True)]
        assert all(same or gap < NEAR_TIE for same, (_, gap) in zip(equal, wanted, strict=True)), equal
        assert sum(equal) > len(prompts) // 2
