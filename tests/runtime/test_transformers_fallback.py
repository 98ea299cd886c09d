"""Models that run through transformers' own code on our attention: the same answers, or a refusal that says why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fallback_models import MODELS, REFUSED, WINDOW, write_config, write_fallback_model
from tests.tiny_models import tiny_config, tiny_mistral_config, write_tiny_model
from tests.wire import complete

from palmette.runtime import launch, model_runner
from palmette.runtime.attention import AttentionBackend, attention_backend
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement
from palmette.runtime.models.transformers_probe import UnsuitableModelError, visible_window
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.weights import load_model, open_checkpoint

STORY = (
    "The quick brown fox jumps over the lazy dog. A tree has one trunk and many branches, and every branch is held. "
)
PROMPTS = (STORY + "It is what it is;", STORY + "Numbers such as 0 1 2", "and")
NEW_TOKENS = 12


def generated(folder: Path, **settings: Any) -> list[str]:
    """Greedy answers of an engine, the prompts side by side, in small chunks of pages."""
    settings.setdefault("dtype", "float32")
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with launch(
        folder, max_total_tokens=2000, chunk_size=24, page_size=4, device="cpu", processes=False, **settings
    ) as engine:
        return complete(engine, PROMPTS, params)


def expected(folder: Path) -> list[str]:
    """What transformers generates, one prompt at a time, with the attention that knows soft caps in every version."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        answer = output[0, ids.shape[1] :]
        texts.append(tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return texts


@pytest.mark.parametrize("model_type", MODELS)
def test_answers_equal_transformers(tmp_path: Path, model_type: str) -> None:
    """Prompts that share a prefix, longer than any window and than a chunk, next to a short one."""
    folder = write_fallback_model(tmp_path, model_type)
    assert generated(folder) == expected(folder)


def test_a_native_architecture_can_be_forced_through_transformers(tmp_path: Path) -> None:
    """Llama and Mistral, whose window is smaller than the prompts, answer the same in either code."""
    for name, config in (("llama", tiny_config()), ("mistral", tiny_mistral_config(sliding_window=WINDOW))):
        folder = write_tiny_model(tmp_path / name, config)
        assert generated(folder, model_impl="transformers") == generated(folder, model_impl="native")


def test_it_says_that_transformers_runs_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line in the log of the engine."""
    caplog.set_level(logging.INFO, "palmette.engine")
    load_model(write_fallback_model(tmp_path, "olmo2"), Placement())
    assert "Olmo2ForCausalLM runs through transformers" in caplog.text


def test_shape_and_windows_are_those_of_the_model(tmp_path: Path) -> None:
    """Sizes of the KV cache are measured, not read: DeepSeek's values are shorter than its keys."""
    folder = write_fallback_model(tmp_path, "deepseek_v2")
    config = load_model(folder, Placement()).config
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (3, 6, 24)
    assert (config.context_length, config.eos_token_ids, config.dtype) == (256, (2,), "float32")


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [8.0] * 4,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("rope", "context"), [(LONGROPE, 64), ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 256)]
)
def test_contexts_end_where_frequencies_would_change(tmp_path: Path, rope: dict[str, Any], context: int) -> None:
    """transformers picks them by the longest row of a batch, and batch neighbours must not change an answer."""
    folder = write_fallback_model(tmp_path, "olmo2", rope_parameters=rope)
    assert load_model(folder, Placement()).config.context_length == context


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(tmp_path: Path, dtype: torch.dtype) -> None:
    """Weights are converted, and logits stay within what their digits allow."""
    folder = write_fallback_model(tmp_path, "olmo2")
    hidden = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    whole, half = load_model(folder, Placement()), load_model(folder, Placement(dtype=dtype))
    assert {slot.target.dtype for slot in half.slots().values()} == {dtype}
    torch.testing.assert_close(half.logits(hidden.to(dtype)).float(), whole.logits(hidden), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_engine_runs_in_half_precision(tmp_path: Path, dtype: str) -> None:
    """The KV cache and the sampler take the dtype that launch is given."""
    assert len(generated(write_fallback_model(tmp_path, "cohere2"), dtype=dtype)) == len(PROMPTS)


def test_random_weights_need_a_config_only(tmp_path: Path) -> None:
    """load_format "dummy" is repeatable, and depends on the seed."""
    folder = write_fallback_model(tmp_path, "stablelm")
    (folder / "model.safetensors").unlink()
    states = torch.ones(1, 48)
    logits = [load_model(folder, Placement(), load_format="dummy", seed=seed).logits(states) for seed in (1, 1, 2)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_that_would_answer_otherwise_is_refused(tmp_path: Path, model_type: str) -> None:
    """Own attention, ALiBi, recurrent layers, attention sinks, no causal mask: by name, with the reason."""
    folder = write_fallback_model(tmp_path, model_type)
    with pytest.raises(UnsuitableModelError, match=REFUSED[model_type][1]) as caught:
        load_model(folder, Placement(), load_format="dummy")
    assert str(folder) in str(caught.value)


def test_one_that_moves_values_outside_attention_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that looks at its neighbour, although all of its attention is ours."""
    from transformers.models.olmo2 import modeling_olmo2

    forward = modeling_olmo2.Olmo2MLP.forward
    monkeypatch.setattr(modeling_olmo2.Olmo2MLP, "forward", lambda self, x: forward(self, x + 1e-6 * x.roll(1, dims=1)))
    with pytest.raises(UnsuitableModelError, match="depend on one another outside"):
        load_model(write_fallback_model(tmp_path, "olmo2"), Placement())


def test_one_that_counts_positions_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are those of each request, not places in the row."""
    from transformers.models.olmo2 import modeling_olmo2

    forward = modeling_olmo2.Olmo2RotaryEmbedding.forward

    def counting(self: Any, x: Any, position_ids: Any) -> Any:
        return forward(self, x, torch.arange(x.shape[1])[None])

    monkeypatch.setattr(modeling_olmo2.Olmo2RotaryEmbedding, "forward", counting)
    with pytest.raises(UnsuitableModelError, match="counts positions itself"):
        load_model(write_fallback_model(tmp_path, "olmo2"), Placement())


def test_it_is_not_split_over_ranks(tmp_path: Path) -> None:
    """The message says that one rank works."""
    checkpoint = open_checkpoint(write_fallback_model(tmp_path, "olmo2"))
    with pytest.raises(ModelLoadError, match="not split over 2 ranks; launch it on one"):
        checkpoint.load(Placement(0, 2))


LLAMA_LIKE = {"architectures": ["OddForCausalLM"], "model_type": "odd", "hidden_size": 48}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (LLAMA_LIKE, r"OddForCausalLM.*known neither to Palmette nor to transformers 5"),
        (LLAMA_LIKE | {"auto_map": {"AutoConfig": "odd.OddConfig"}}, "comes with code of its own"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "has an encoder"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "is not a causal language model; BertLMHead"),
        ({"architectures": ["ViTModel"], "model_type": "vit"}, "is not a causal language model of transformers"),
        (
            {"architectures": ["OlmoForCausalLM"], "model_type": "olmo", "quantization_config": {"quant_method": "x"}},
            r"quantization_config.* is not supported",
        ),
        (
            {"architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_act": 3},
            r"transformers 5\S* refuses it: .*hidden_act",
        ),
        (
            tiny_config(architectures=["Phi3ForCausalLM"], model_type="phi3", rope_scaling={"type": "su"})
            | {"auto_map": {"AutoConfig": "phi3.Phi3Config"}},
            "refuses it: .*original_max_position_embeddings",
        ),
    ],
)
def test_configs_that_cannot_run_are_refused_by_name(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    """Before any weight is read."""
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(write_config(tmp_path, **values))


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A config with code beside it, and a file that would say so."""
    folder = write_config(tmp_path, **LLAMA_LIKE, auto_map={"AutoConfig": "odd.OddConfig"})
    (folder / "odd.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(ModelLoadError, match="which Palmette does not run"):
        open_checkpoint(folder)


def test_a_folder_of_pickles_is_refused(tmp_path: Path) -> None:
    """As for native models."""
    folder = write_fallback_model(tmp_path, "olmo2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="a pickle"):
        load_model(folder, Placement())


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """A missing one, and one of another shape."""
    from safetensors.torch import load_file, save_file

    folder = write_fallback_model(tmp_path, "olmo2")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"lacks tensors of Olmo2ForCausalLM: {name}"):
        load_model(folder, Placement())
    save_file(tensors | {name: torch.ones(3, 3)}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' has shape \(3, 3\)"):
        load_model(folder, Placement())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_quantised_tensors_are_not_taken_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    """transformers would convert them to floats that mean something else. Masks, which are buffers, may be of any."""
    from safetensors.torch import load_file, save_file

    folder = write_fallback_model(tmp_path, "olmo2")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name].to(dtype)}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: tensor '{name}' is \S+; supported: F64"):
        load_model(folder, Placement())
    mask = "model.layers.1.self_attn.bias"
    save_file(tensors | {mask: torch.ones(2, 2).to(dtype)}, folder / "model.safetensors")
    load_model(folder, Placement())


def test_weights_that_are_no_numbers_are_said_to_be(tmp_path: Path) -> None:
    """And are not taken for a model whose tokens meet outside attention."""
    from safetensors.torch import load_file, save_file

    folder = write_fallback_model(tmp_path, "olmo2")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][:] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"its hidden states are NaN in torch\.float32: its weights are, or over"):
        load_model(folder, Placement())


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    """Before transformers reads it, with the tensor."""
    folder = write_fallback_model(tmp_path, "olmo2")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is cut off: tensor '.*' ends 10 bytes past"):
        load_model(folder, Placement())


# -- masks ------------------------------------------------------------------------------------------------------------


def test_windows_are_measured_on_masks() -> None:
    """Causal, a window, a window as long as the context, and what is neither."""
    cpu = torch.device("cpu")
    assert visible_window(lambda b, h, q, k: k <= q, 64, cpu) is None
    assert visible_window(lambda b, h, q, k: (k <= q) & (k > q - 5), 64, cpu) == 5
    assert visible_window(lambda b, h, q, k: (k <= q) & (k > q - 64), 64, cpu) is None
    for other in (
        lambda b, h, q, k: k >= 0 * q,
        lambda b, h, q, k: (k <= q) & (k // 16 == q // 16),
        lambda b, h, q, k: k < q,
        lambda b, h, q, k: (k <= q) & ((k > q - 5) | (k == 0)),
    ):
        with pytest.raises(UnsuitableModelError, match="neither causal nor a sliding window"):
            visible_window(other, 64, cpu)


def test_a_backend_is_told_of_the_models_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are compiled when the model is loaded, or replaced where they cannot be: not at the first request."""
    told: list[RadixAttention] = []

    def compiled(name: str | None, storage: KVStorage, layers: Sequence[RadixAttention]) -> AttentionBackend:
        told.extend(layers)
        return attention_backend(name, storage)

    monkeypatch.setattr(model_runner, "compiled_attention", compiled)
    folder = write_fallback_model(tmp_path, "gemma2")
    runner = model_runner.ModelRunner.load(folder, EngineConfig(max_total_tokens=64, mask_rows=1, device="cpu"))
    assert [layer.layer_id for layer in told] == list(range(runner.config.num_layers))
    assert {layer.head_dim for layer in told} == {runner.config.head_dim}
    assert [layer.sliding_window for layer in told] == [WINDOW, None, WINDOW]
