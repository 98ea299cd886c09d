"""config.json files as they are on the Hugging Face hub: what is read from them, in either spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palmette.runtime.models import ModelConfig, Rope, RopeScaling
from palmette.runtime.weights import NativeCheckpoint, open_checkpoint


def _config(architecture: str, model_type: str, shape: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    """`shape`: hidden size, intermediate size, layers, heads, key heads, context length, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = dict(zip((*names, "max_position_embeddings", "vocab_size"), shape, strict=True))
    return {"architectures": [architecture], "model_type": model_type, "torch_dtype": "bfloat16"} | sizes | fields


_QWEN2 = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "sliding_window": 32768, "use_sliding_window": False}
_GEMMA3 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "head_dim": 256,
    "rope_scaling": None,
}
_LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
_LONGROPE = {"long_factor": [1.07] * 48, "short_factor": [1.0] * 48, "type": "longrope"}
_PHI3 = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
    "eos_token_id": 32000,
}
_PHI3_SHAPE = (3072, 8192, 32, 32, 32)
_MISTRAL = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "eos_token_id": 2}
_SPECIAL = {"bos_token_id": 2, "pad_token_id": 0}

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": _config(
        "Qwen2ForCausalLM",
        "qwen2",
        (896, 4864, 24, 14, 2, 32768, 151936),
        **_QWEN2 | {"max_window_layers": 24, "rope_theta": 1e6, "tie_word_embeddings": True, "eos_token_id": 151643},
    ),
    "Qwen3-4B with YaRN": _config(
        "Qwen3ForCausalLM",
        "qwen3",
        (2560, 9728, 36, 32, 8, 40960, 151936),
        **_QWEN2 | {"head_dim": 128, "attention_bias": False, "tie_word_embeddings": True, "sliding_window": None},
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "gemma-3-1b-it": _config(
        "Gemma3ForCausalLM",
        "gemma3_text",
        (1152, 6912, 26, 4, 1, 32768, 262144),
        **_GEMMA3 | _SPECIAL | {"sliding_window": 512, "sliding_window_pattern": 6, "eos_token_id": [1, 106]},
    ),
    "gemma-3-4b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 106],
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27},
    },
    "gemma-2-2b": _config(
        "Gemma2ForCausalLM",
        "gemma2",
        (2304, 9216, 26, 8, 4, 8192, 256000),
        **_GEMMA3
        | _SPECIAL
        | {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "eos_token_id": 1},
    ),
    "Mistral-7B-v0.1": _config(
        "MistralForCausalLM", "mistral", (4096, 14336, 32, 32, 8, 32768, 32000), **_MISTRAL, sliding_window=4096
    ),
    "Mistral-7B-v0.3": _config(
        "MistralForCausalLM", "mistral", (4096, 14336, 32, 32, 8, 32768, 32768), **_MISTRAL, sliding_window=None
    ),
    "Llama-3.2-1B": _config(
        "LlamaForCausalLM",
        "llama",
        (2048, 8192, 16, 32, 8, 131072, 128256),
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling={"rope_type": "llama3", **_LLAMA3},
        tie_word_embeddings=True,
        eos_token_id=[128001, 128008, 128009],
    ),
    "Phi-3-mini-4k": _config(
        "Phi3ForCausalLM", "phi3", (*_PHI3_SHAPE, 4096, 32064), **_PHI3, rope_scaling=None, sliding_window=2047
    ),
    "Phi-3-mini-128k": _config(
        "Phi3ForCausalLM", "phi3", (*_PHI3_SHAPE, 131072, 32064), **_PHI3, rope_scaling=_LONGROPE, sliding_window=262144
    ),
}


def _written(folder: Path, values: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def _native(folder: Path) -> ModelConfig:
    checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint, NativeCheckpoint)
    return checkpoint.config


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "Phi-3-mini-128k"])
def test_both_spellings_are_the_same_model(tmp_path: Path, name: str) -> None:
    """As it was released, and as transformers 5 writes it."""
    from transformers import AutoConfig

    released = _written(tmp_path / "released", CONFIGS[name])
    AutoConfig.from_pretrained(released).save_pretrained(tmp_path / "again")
    assert _native(released) == _native(tmp_path / "again")


@pytest.mark.parametrize(
    ("name", "windows", "ends"),
    [
        ("Qwen2.5-0.5B", [None] * 6, (151643,)),
        ("gemma-3-1b-it", [512] * 5 + [None], (1, 106)),
        ("gemma-3-4b-it", [1024] * 5 + [None], (1, 106)),
        ("gemma-2-2b", [4096, None] * 3, (1,)),
        ("Mistral-7B-v0.1", [4096] * 6, (2,)),
        ("Mistral-7B-v0.3", [None] * 6, (2,)),
        ("Llama-3.2-1B", [None] * 6, (128001, 128008, 128009)),
        ("Phi-3-mini-4k", [2047] * 6, (32000,)),
    ],
)
def test_windows_and_end_tokens(tmp_path: Path, name: str, windows: list[int | None], ends: tuple[int, ...]) -> None:
    """Of the first six layers."""
    config = _native(_written(tmp_path / "model", CONFIGS[name]))
    assert [config.window_of(layer) for layer in range(6)] == windows
    assert (config.eos_token_ids, config.dtype) == (ends, "bfloat16")


def test_ropes_scales_and_caps(tmp_path: Path) -> None:
    """Where families differ most."""
    read = {name: _native(_written(tmp_path / name, CONFIGS[name])) for name in CONFIGS if "128k" not in name}
    gemma = read["gemma-3-4b-it"]
    assert gemma.rope_of(0) == Rope(10_000.0)
    assert gemma.rope_of(5) == Rope(1_000_000.0, RopeScaling("linear", 8.0))
    assert (gemma.num_heads, gemma.num_kv_heads, gemma.head_dim, gemma.context_length) == (8, 4, 256, 131_072)
    assert gemma.tie_word_embeddings
    assert gemma.attention_scale == 256**-0.5
    assert (read["gemma-2-2b"].attention_softcap, read["gemma-2-2b"].logit_softcap) == (50.0, 30.0)
    assert read["Llama-3.2-1B"].rope_of(0) == Rope(500_000.0, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192))
    assert read["Qwen3-4B with YaRN"].context_length == 131_072
    assert read["Phi-3-mini-4k"].fused_projections


def test_longrope_runs_through_transformers(tmp_path: Path) -> None:
    """Palmette's own Phi-3 has no such rope."""
    checkpoint = open_checkpoint(_written(tmp_path / "model", CONFIGS["Phi-3-mini-128k"]))
    assert not isinstance(checkpoint, NativeCheckpoint)
    assert checkpoint.dtype == "bfloat16"
