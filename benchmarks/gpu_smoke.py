"""The engine's step loop on a GPU with random Llama-3.2-1B shapes: is it right, and how fast is it as it stands?

    python benchmarks/gpu_smoke.py [--json OUT]

Right: greedy tokens in float32 equal transformers' on the same random weights, and both loops give the same tokens.
Fast: bfloat16, exact lengths, no tokenizer: the scheduler is driven with token ids, one step after the other and with
steps that overlap; the idle part is the time in which the device had nothing to do. The attention backend is
torch_native, an oracle not made for speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.runtime.config import EngineConfig
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.scheduler import Scheduler

SHAPES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Llama-3.2-1B's, without its rope scaling."""

NEAR_TIE = 1e-4
PROMPTS = (1, 17, 64, 200, 333, 512, 512, 1500)


def write_random_model(folder: Path) -> Any:
    """A folder of random weights, and transformers' model on the GPU that they were taken from."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES)).float().eval()
    for weight in model.parameters():  # the rotary frequencies are no parameters: they must not be rounded
        weight.data = weight.data.bfloat16().float()
    tensors = {name: tensor.bfloat16().cpu() for name, tensor in model.state_dict().items()}
    del tensors["lm_head.weight"]  # tied
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPES))
    return model


def run(
    scheduler: Scheduler, prompts: list[np.typing.NDArray[np.int32]], new_tokens: int, *, overlap: bool = True
) -> list[list[int]]:
    """The tokens generated after each prompt, all submitted at once."""
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    requests = [Request(id=str(i), kind="generate", prompt_ids=ids, params=params) for i, ids in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    step = scheduler.step_ahead if overlap else scheduler.step
    began = time.perf_counter()
    while scheduler.can_step:
        step()
    scheduler.count_work(time.perf_counter() - began)
    for request in requests:
        if request.error is not None:
            raise request.error
    return [request.output_ids.tolist() for request in requests]


def start(folder: Path, **settings: Any) -> Scheduler:
    config = EngineConfig(max_total_tokens=160_000, context_length=8192, device="cuda", chunk_size=8192, **settings)
    runner = ModelRunner.load(folder, config)
    return Scheduler(runner, config=config, num_pages=runner.num_pages, page_size=runner.page_size, context_length=8192)


def prompt(rng: np.random.Generator, length: int) -> np.typing.NDArray[np.int32]:
    return rng.integers(1000, 30000, size=length, dtype=np.int32)


def check(folder: Path, reference: Any) -> dict[str, Any]:
    """Greedy tokens against transformers', one prompt at a time there and as one batch here, in float32."""
    rng = np.random.default_rng(0)
    prompts = [prompt(rng, length) for length in PROMPTS]
    outputs = run(start(folder, dtype="float32"), prompts, 32)
    assert outputs == run(start(folder, dtype="float32"), prompts, 32, overlap=False)
    equal = ties = 0
    for ids, output in zip(prompts, outputs, strict=True):
        expected, gap = generate(reference, ids, 32)
        equal += output == expected
        ties += output != expected and gap < NEAR_TIE
    return {"prompts": len(prompts), "equal": equal, "near_ties": ties}


def generate(reference: Any, ids: np.typing.NDArray[np.int32], new_tokens: int) -> tuple[list[int], float]:
    """transformers' greedy tokens, and the smallest gap of the two best logits among them."""
    inputs = torch.from_numpy(ids.astype(np.int64))[None].cuda()
    output = reference.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    best = torch.stack([logits[0].topk(2).values for logits in output.logits])
    return output.sequences[0, inputs.shape[1] :].tolist(), float((best[:, 0] - best[:, 1]).min())


def seconds(
    scheduler: Scheduler, batch: int, length: int, new_tokens: int, *, overlap: bool = True, repeats: int = 3
) -> float:
    """Median time of `batch` prompts of `length` tokens with `new_tokens` each, cache flushed before each."""
    rng = np.random.default_rng(1)
    prompts = [prompt(rng, length) for _ in range(batch)]
    times = []
    for _ in range(repeats + 1):
        scheduler.flush_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run(scheduler, prompts, new_tokens, overlap=overlap)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def measure(folder: Path) -> dict[str, float]:
    scheduler = start(folder, dtype="bfloat16", page_size=16)
    rows = {"prefill_8x1024_tokens_per_s": 8 * 1024 / seconds(scheduler, 8, 1024, 1)}
    for batch in (1, 8, 64, 256):
        for overlap in (False, True):
            name = f"decode_batch_{batch}_{'overlap' if overlap else 'normal'}"
            first = seconds(scheduler, batch, 128, 1, overlap=overlap)
            before = scheduler.stats()
            step = (seconds(scheduler, batch, 128, 129, overlap=overlap) - first) / 128
            after = scheduler.stats()
            rows[f"{name}_ms_a_step"] = 1000 * step
            idle = 1 - (after.device_s - before.device_s) / (after.working_s - before.working_s)
            rows[f"{name}_idle"] = idle
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        reference = write_random_model(Path(name))
        result: dict[str, Any] = {"device": torch.cuda.get_device_name(), **check(Path(name), reference)}
        del reference
        torch.cuda.empty_cache()
        result |= measure(Path(name))
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
