"""Tiny random models of every family that Palmette has code for, written as model folders by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.tiny_models import tiny_tokenizer_spec, write_tiny_tokenizer

WINDOW = 8

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
_YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA = SIZES | {"head_dim": 16}
_GEMMA2 = _GEMMA | {"query_pre_attn_scalar": 12, "sliding_window": WINDOW}
_GEMMA3 = _GEMMA2 | {
    "num_hidden_layers": 5,
    "sliding_window_pattern": 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", SIZES | {"sliding_window": WINDOW}),
    "mistral-no-window": ("mistral", SIZES | {"sliding_window": None, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", SIZES),
    "qwen2-tied": ("qwen2", SIZES | {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen2-windows": ("qwen2", SIZES | _QWEN_WINDOWS),
    "qwen2-yarn": ("qwen2", SIZES | {"rope_parameters": _YARN}),
    "qwen2-odd-yarn": (
        "qwen2",
        SIZES | {"rope_parameters": _YARN | {"truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 2}},
    ),
    "qwen3": ("qwen3", SIZES | {"head_dim": 16}),
    "qwen3-tied": ("qwen3", SIZES | {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-windows": ("qwen3", SIZES | _QWEN_WINDOWS | {"head_dim": 12}),
    "gemma": ("gemma", _GEMMA),
    "gemma2": ("gemma2", _GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma2-untied": ("gemma2", _GEMMA2 | {"attn_logit_softcapping": None, "tie_word_embeddings": False}),
    "gemma3": ("gemma3_text", _GEMMA3),
    "gemma3-untied": ("gemma3_text", _GEMMA3 | {"tie_word_embeddings": False, "final_logit_softcapping": 5.0}),
    "phi3": ("phi3", SIZES),
    "phi3-partial": (
        "phi3",
        SIZES | {"tie_word_embeddings": True, "sliding_window": WINDOW, "partial_rotary_factor": 0.5},
    ),
    "granite": ("granite", SIZES | _GRANITE | {"attention_bias": True, "mlp_bias": True}),
    "smollm3": ("smollm3", SIZES),
    "smollm3-windows": ("smollm3", SIZES | {"use_sliding_window": True, "sliding_window": WINDOW}),
}
"""transformers' model type and fields of the config, by what they are to show."""


def write_family(folder: Path, case: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write the model folder of a case in float32, with the tiny tokenizer, and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, fields = CASES[case]
    config = AutoConfig.for_model(model_type, **{"vocab_size": padded_vocab_size(), **fields, **changes})
    return save(AutoModelForCausalLM.from_config(config, dtype=torch.float32), folder, seed=seed)


def write_gemma3_with_vision(folder: Path, **changes: Any) -> Path:
    """A checkpoint that also holds the part for images."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = {"vocab_size": padded_vocab_size(), **_GEMMA3, **changes}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=5)
    return save(Gemma3ForConditionalGeneration(config), folder)


def padded_vocab_size() -> int:
    """Logits wider than the tiny tokenizer's vocabulary, as is common."""
    return len(tiny_tokenizer_spec()["model"]["vocab"]) + 6


def save(model: Any, folder: Path, *, seed: int = 0) -> Path:
    """Fill a model of transformers with random numbers, norms and biases too, and write it."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data.copy_(values * (1.5 / parameter.shape[-1] ** 0.5))
        else:
            zero_centred = "Gemma" in type(model).__name__ or name.endswith(".bias")
            parameter.data.copy_(values * 0.2 + (0 if zero_centred else 1))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tiny_tokenizer(folder)
    return folder
