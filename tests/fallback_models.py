"""Tiny random models that run through transformers' own code, written as ordinary model folders by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.tiny_models import tiny_tokenizer_spec, write_tiny_tokenizer

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 8

MODELS: dict[str, dict[str, Any]] = {
    "olmo2": SIZES,
    "olmo3": SIZES | {"sliding_window": WINDOW},
    "cohere2": SIZES | {"sliding_window": WINDOW},
    "gemma2": SIZES | {"head_dim": 8, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0},
    "stablelm": SIZES,
    "gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": SIZES,
    "opt": SIZES | {"word_embed_proj_dim": 48, "ffn_dim": 64},
    "mixtral": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": SIZES
    | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "deepseek_v2": SIZES
    | {
        "num_key_value_heads": 6,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
"""Fields of the config by model type: learned positions, parallel blocks, windows, experts, latent attention."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gpt_neo": (
        {"hidden_size": 48, "num_layers": 2, "num_heads": 6, "attention_types": [[["global", "local"], 1]]},
        "attention of its own",
    ),
    "bloom": ({"hidden_size": 48, "n_layer": 2, "n_head": 6}, "attention of its own"),
    "mamba": ({"hidden_size": 48, "num_hidden_layers": 2, "state_size": 4}, "recurrent or convolution layers"),
    "gpt_oss": (SIZES | {"num_local_experts": 4, "head_dim": 8}, "s_aux"),
    "bert": (SIZES, "neither causal nor a sliding window"),
}
"""Models whose answers would be wrong, and a part of the reason that is given."""


def write_fallback_model(folder: Path, model_type: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a model folder in float32 with the tiny tokenizer, and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = MODELS[model_type] if model_type in MODELS else REFUSED[model_type][0]
    vocab_size = len(tiny_tokenizer_spec()["model"]["vocab"])
    config = AutoConfig.for_model(model_type, **{"vocab_size": vocab_size, **fields, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _randomise(model, seed)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights large enough that logits differ clearly from token to token."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        scale, shift = (1.5 / parameter.shape[-1] ** 0.5, 0.0) if parameter.dim() > 1 else (0.1, 0.0)
        if parameter.dim() == 1 and name.endswith("weight"):
            shift = 1.0
        parameter.data.copy_(values * scale + shift)


def write_config(folder: Path, **values: Any) -> Path:
    """A folder with a config.json of these fields and a tokenizer, but no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    write_tiny_tokenizer(folder)
    return folder
