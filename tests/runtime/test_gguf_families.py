"""GGUF files of other families than Llama, whose rows llama.cpp leaves in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny_families import write_family

from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import ModelConfig
from palmette.runtime.weights import load_config, load_model

_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
_TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    *path, part, kind = name.split(".")
    return f"blk.{path[2]}.{_PARTS[part]}.{kind}" if "layers" in path else f"{_TOP[part]}.{kind}"


def as_gguf(folder: Path, architecture: str) -> Path:
    """The model of a folder as a GGUF file beside it, without a tokenizer."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("qwen2", "qwen2"), ("qwen2-tied", "qwen2"), ("qwen2-yarn", "qwen2"), ("qwen3", "qwen3")],
)
def test_qwen_files_give_the_model_they_came_from(tmp_path: Path, case: str, architecture: str) -> None:
    """The config and every tensor."""
    folder = write_family(tmp_path, case)
    path = as_gguf(folder, architecture)
    assert load_config(path) == ModelConfig.from_folder(folder)
    expected = load_model(folder, Placement()).slots()
    slots = load_model(path, Placement()).slots()
    assert slots.keys() == expected.keys()
    for name, slot in slots.items():
        assert torch.equal(slot.target, expected[name].target), name
