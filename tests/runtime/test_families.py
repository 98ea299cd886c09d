"""Every family that Palmette has code for computes what transformers does, from the folder that transformers writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_families import CASES, WINDOW, write_family, write_gemma3_with_vision
from tests.tiny_models import tiny_config
from tests.wire import complete
from torch import Tensor

from palmette.runtime import launch
from palmette.runtime.attention import AttentionPlan, attention_backend
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import ModelConfig, Rope, RopeScaling, UnsupportedModelError
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.weights import load_model

LENGTH = 40
STORY = "The quick brown fox jumps over the lazy dog. A tree has one trunk and many branches. "
PROMPTS = (STORY + "It is what it is;", STORY + "Numbers such as 0 1 2", "and")
NEW_TOKENS = 12


def prompt(length: int = LENGTH) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(3, 350, length))


def logits_of(folder: Path, *, dtype: torch.dtype = torch.float32, chunks: Sequence[int] = (LENGTH,)) -> Tensor:
    """Logits [LENGTH, vocab_size] of the prompt, computed in these chunks."""
    placement = Placement(dtype=dtype)
    model = load_model(folder, placement, model_impl="native")
    attention = attention_backend(None, KVStorage(model.config, placement, num_pages=LENGTH, page_size=1))
    token_ids, line = prompt(), np.arange(LENGTH, dtype=np.int32)
    parts, start = [], 0
    with torch.inference_mode():
        for size in chunks:
            stop = start + size
            ends = [np.array([0, each], dtype=np.int32) for each in (size, stop)]
            attention.plan(AttentionPlan(line[start:stop], ends[0], ends[1], line[:stop], ends[1][1:]))
            states = model.hidden(token_ids[start:stop], torch.arange(start, stop), attention)
            parts.append(model.logits(states))
            start = stop
    return torch.cat(parts)


def reference(folder: Path, *, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def reference_logits(folder: Path, *, dtype: torch.dtype = torch.float32) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(folder, dtype=dtype)(prompt()[None], use_cache=False).logits[0]
    return logits


def reference_answers(folder: Path) -> list[str]:
    """What transformers generates, one prompt at a time, without ids past the vocabulary."""
    from transformers import AutoTokenizer

    model, tokenizer = reference(folder), AutoTokenizer.from_pretrained(folder)
    padding = list(range(len(tokenizer), model.config.vocab_size))
    texts = []
    for text in PROMPTS:
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            suppress_tokens=padding,
        )
        answer = output[0, ids.shape[1] :]
        texts.append(tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return texts


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp(request.param), request.param)


# -- the same as transformers -----------------------------------------------------------------------------------------


def test_logits_equal_those_of_transformers(folder: Path) -> None:
    """On a prompt longer than every window, computed whole, in chunks and token by token at the end."""
    expected = reference_logits(folder)
    assert expected.std() > 0.3
    for chunks in ((LENGTH,), (13, 20, 1, 1, 1, 4)):
        torch.testing.assert_close(logits_of(folder, chunks=chunks), expected, atol=1e-4, rtol=1e-5)


def test_greedy_answers_equal_those_of_transformers(folder: Path) -> None:
    """Through the engine: prompts with a common prefix, side by side, in chunks, and once more from the cache."""
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with launch(
        str(folder), max_total_tokens=2000, chunk_size=24, page_size=4, device="cpu", processes=False
    ) as engine:
        first, second = complete(engine, PROMPTS, params), complete(engine, PROMPTS, params)
    assert first == second == reference_answers(folder)


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(tmp_path: Path, case: str) -> None:
    """The root mean square error is at most 1.5 times that of transformers' own bfloat16."""
    folder = write_family(tmp_path, case)
    exact = reference_logits(folder)
    theirs = (reference_logits(folder, dtype=torch.bfloat16).float() - exact).square().mean().sqrt()
    ours = (logits_of(folder, dtype=torch.bfloat16).float() - exact).square().mean().sqrt()
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_engine_runs_in_half_precision(tmp_path: Path, dtype: Any) -> None:
    """The family with most parts of its own, in torch's operators."""
    folder = write_family(tmp_path, "gemma3")
    with launch(str(folder), max_total_tokens=500, dtype=dtype, device="cpu", processes=False) as engine:
        assert len(complete(engine, PROMPTS, SamplingParams(temperature=0, max_tokens=4))) == len(PROMPTS)


def test_the_language_model_of_a_vision_checkpoint_is_used(tmp_path: Path) -> None:
    """Gemma3ForConditionalGeneration: names have a prefix, and tensors for images are left out."""
    from transformers import Gemma3ForConditionalGeneration

    folder = write_gemma3_with_vision(tmp_path)
    model = Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(prompt()[None], use_cache=False).logits[0]
    torch.testing.assert_close(logits_of(folder), expected, atol=1e-4, rtol=1e-5)


# -- files that do not fit --------------------------------------------------------------------------------------------


def change_tensors(folder: Path, **changes: Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("case", "name", "shape"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias", "(16,)"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", "(16,)"),
        ("gemma3", "model.layers.2.pre_feedforward_layernorm.weight", "(48,)"),
        ("phi3", "model.layers.3.self_attn.qkv_proj.weight", "(80, 48)"),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight", "(140, 48)"),
    ],
)
def test_missing_and_misshapen_tensors_are_named(tmp_path: Path, case: str, name: str, shape: str) -> None:
    """The error names the tensor, and the shape that config.json asks for."""
    folder = write_family(tmp_path, case)
    change_tensors(folder, **{name: torch.zeros(3, 5)})
    with pytest.raises(ModelLoadError) as error:
        load_model(folder, Placement())
    assert f"{name!r} has shape (3, 5), config.json asks for {shape}" in str(error.value)
    change_tensors(folder, **{name: None})
    with pytest.raises(ModelLoadError) as error:
        load_model(folder, Placement())
    assert f"lacks tensor {name!r}" in str(error.value)


def test_a_tensor_of_another_family_is_named(tmp_path: Path) -> None:
    """A bias that a Qwen2 has no place for."""
    folder = write_family(tmp_path, "qwen2")
    change_tensors(folder, **{"model.layers.0.self_attn.o_proj.bias": torch.zeros(48)})
    with pytest.raises(ModelLoadError, match=r"o_proj\.bias', which a Qwen2ForCausalLM of its config"):
        load_model(folder, Placement())


def test_projections_in_one_tensor_are_not_split_over_ranks(tmp_path: Path) -> None:
    """The error names the tensor."""
    with pytest.raises(ModelLoadError, match=r"qkv_proj\.weight holds several layers in one.* not on 2"):
        load_model(write_family(tmp_path, "phi3"), Placement(0, 2))


# -- windows ----------------------------------------------------------------------------------------------------------


def windows(folder: Path) -> list[int | None]:
    config = ModelConfig.from_folder(folder)
    return [config.window_of(i) for i in range(config.num_layers)]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("qwen2", [None, None, None, None]),
        ("qwen2-windows", [None, None, WINDOW, WINDOW]),
        ("gemma2", [WINDOW, None, WINDOW, None]),
        ("gemma3", [WINDOW, WINDOW, None, WINDOW, WINDOW]),
        ("phi3-partial", [WINDOW, WINDOW, WINDOW, WINDOW]),
        ("smollm3-windows", [None, None, None, WINDOW]),
    ],
)
def test_each_layer_has_its_window(tmp_path: Path, case: str, expected: list[int | None]) -> None:
    """As layer_types of the config say."""
    assert windows(write_family(tmp_path, case)) == expected


# -- configs ----------------------------------------------------------------------------------------------------------


def config_of(architecture: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(tiny_config(architectures=[architecture], **changes), source="config.json")


def test_gemma3_is_read_as_transformers_4_wrote_it() -> None:
    """Two bases of rotary embeddings, a pattern instead of layer types, and a scaling of one base only."""
    old = config_of(
        "Gemma3ForCausalLM",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        sliding_window_pattern=2,
        sliding_window=WINDOW,
    )
    new = config_of(
        "Gemma3ForCausalLM",
        rope_theta=None,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=WINDOW,
    )
    assert old == new
    assert [old.rope_of(i) for i in range(3)] == [Rope(1e4), Rope(1e6, RopeScaling("linear", 8.0)), Rope(1e4)]


def test_released_gemma3_configs_leave_most_out() -> None:
    """Gemma 3 4B names six fields of its language model; dtype and end tokens stand beside it."""
    values = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "eos_token_id": 1,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    config = ModelConfig.from_dict(values, source="config.json")
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.eos_token_ids, config.dtype, config.tie_word_embeddings) == ((1, 106), "bfloat16", True)
    assert (config.context_length, config.attention_scale) == (131_072, 0.0625)
    assert [i for i in range(34) if config.window_of(i) is None] == [5, 11, 17, 23, 29]


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma2ForCausalLM", {"hidden_activation": "relu"}, "hidden_activation='relu' is not supported; known: silu"),
        ("Gemma3ForCausalLM", {"layer_types": ["chunked_attention"] * 3}, "layer_types has 'chunked_attention'"),
        ("Phi3ForCausalLM", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type='longrope' is not supported"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'.* for Phi-3"),
    ],
)
def test_what_is_not_done_natively_is_told_from_what_is_broken(
    architecture: str, changes: dict[str, Any], message: str
) -> None:
    """An error of its own type: transformers may run the model."""
    with pytest.raises(UnsupportedModelError, match=rf"^config\.json: .*{message}"):
        config_of(architecture, **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types must be a list of 3 names"),
        ("Gemma3ForCausalLM", {"rope_local_base_freq": -1}, "rope_local_base_freq must be a number above 0, not -1"),
        ("Gemma3ForConditionalGeneration", {"text_config": 3}, "text_config must be an object, not 3"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": "2"}, "max_window_layers must be"),
        ("Qwen3ForCausalLM", {"head_dim": 7}, "head_dim=7 must be even"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.45, "head_dim": 8}, "of head_dim=8 is 3: it must be an even"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers must be a list of 0 and 1"),
        ("GraniteForCausalLM", {"residual_multiplier": "x"}, "residual_multiplier must be a number above 0, not 'x'"),
    ],
)
def test_broken_fields_are_named(architecture: str, changes: dict[str, Any], message: str) -> None:
    """The error names the field and its value, and is not the one that sends the model to transformers."""
    with pytest.raises(ModelLoadError, match=rf"^config\.json: .*{message}") as error:
        config_of(architecture, **changes)
    assert not isinstance(error.value, UnsupportedModelError)


def test_a_config_that_is_not_done_natively_runs_through_transformers(tmp_path: Path) -> None:
    """Phi-3 with frequencies that depend on the length of the batch, within the length where they do not."""
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [4.0, 5.0, 6.0, 7.0],
    }
    folder = write_family(tmp_path, "phi3", rope_parameters=longrope, original_max_position_embeddings=256)
    with pytest.raises(UnsupportedModelError, match="rope_type='longrope'"):
        load_model(folder, Placement(), model_impl="native")
    with launch(str(folder), max_total_tokens=500, device="cpu", dtype="float32", processes=False) as engine:
        answers = complete(engine, PROMPTS, SamplingParams(temperature=0, max_tokens=NEW_TOKENS))
    assert answers == reference_answers(folder)
