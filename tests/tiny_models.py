"""Tiny random models of the Llama family, written as ordinary model folders: config.json, safetensors, tokenizer."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = (
    "The quick brown fox jumps over the lazy dog. A tree has one trunk and many branches, and every branch is held. "
    'Numbers such as 0 1 2 3 4 5 6 7 8 9 and {"name": "Ada", "age": 36, "tags": ["a", "b"]} are common. '
    "It is what it is; she said that there was nothing there, and then they went on with the other things. "
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Fields of a tiny config.json: grouped heads and an untied head, unless `changes` say otherwise."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tiny_tokenizer_spec()["model"]["vocab"])
        + 6,  # logits wider than the vocabulary, as is common
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    } | changes


def tiny_mistral_config(**changes: Any) -> dict[str, Any]:
    """A tiny Mistral whose sliding window is smaller than most prompts."""
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}
    return tiny_config(**mistral | changes)


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}"
        shapes |= {f"{name}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        for group, layers, bias in (("self_attn", attention, "attention_bias"), ("mlp", mlp, "mlp_bias")):
            shapes |= {f"{name}.{group}.{layer}.weight": shape for layer, shape in layers.items()}
            if config.get(bias):
                shapes |= {f"{name}.{group}.{layer}.bias": shape[:1] for layer, shape in layers.items()}
    return shapes if config.get("tie_word_embeddings") else shapes | {"lm_head.weight": (vocab, hidden)}


def random_tensors(config: Mapping[str, Any], *, seed: int = 0) -> dict[str, Tensor]:
    """A random checkpoint whose logits differ clearly from token to token."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            tensors[name] = values * (1.5 / shape[1] ** 0.5)
        else:
            tensors[name] = values * 0.1 + (1 if name.endswith("norm.weight") else 0)
    return tensors


def write_tiny_model(folder: Path, config: Mapping[str, Any] | None = None, *, seed: int = 0, shards: int = 1) -> Path:
    """Write a model folder and return it.

    Args:
        config: fields of config.json; the tiny Llama where None.
        shards: number of safetensors files; more than one come with an index.
    """
    config = tiny_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, random_tensors(config, seed=seed), shards=shards)
    write_tiny_tokenizer(folder)
    return folder


def write_weights(folder: Path, tensors: Mapping[str, Tensor], *, shards: int = 1) -> None:
    """Write tensors as model.safetensors, or as several files with an index."""
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_tiny_tokenizer(folder: Path) -> None:
    """Write tokenizer.json (byte-level BPE, digits split) and tokenizer_config.json with a chat template."""
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer_spec(), ensure_ascii=False), encoding="utf-8")
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


@functools.cache
def tiny_tokenizer_spec() -> dict[str, Any]:
    """The object in tokenizer.json: all 256 bytes and some merges, trained on a few sentences."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    return spec
