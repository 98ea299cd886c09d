"""config.json of public models' shapes, for benchmarks on random weights."""

from __future__ import annotations

from typing import Any, Literal

Shape = Literal["8b", "1b", "tiny"]

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHAPES: dict[Shape, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 49152,
        "tie_word_embeddings": False,
    },
}


def config_of(shape: Shape) -> dict[str, Any]:
    """Fields of config.json: Llama-3.1-8B's, Llama-3.2-1B's (without the scaling of rotary angles), or a tiny one's."""
    return _LLAMA | _SHAPES[shape]
