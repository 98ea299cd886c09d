"""GGUF files written here as llama.cpp's converter writes them, read back as the model they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.tiny_models import CHAT_TEMPLATE, random_tensors, tiny_config, tiny_tokenizer_spec, write_tiny_model

from palmette.runtime.errors import ModelLoadError
from palmette.runtime.gguf_reader import GGUFFile
from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import ModelConfig
from palmette.runtime.tokenizer import Tokenizer
from palmette.runtime.weights import load_config, load_model

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    if layer in TOP:
        return f"{TOP[layer]}.{kind}"
    _, _, index, part = layer.split(".", 3)
    return f"blk.{index}.{PARTS[part]}.{kind}"


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """What the converter does to query and key rows: the two halves of each head side by side."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write_gguf(path: Path, config: dict[str, Any], *, quantized: bool = False, **metadata: Any) -> Path:
    """Write the tiny random model of this config; `metadata` replaces keys (None drops one)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (_metadata(config) | metadata).items():
        _write_value(writer, key, value)
    for name, tensor in random_tensors(config).items():
        values = tensor.numpy()
        if ".q_proj." in name or ".k_proj." in name:
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = permuted(values, heads)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantized and values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    spec = tiny_tokenizer_spec()
    tokens = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), config["vocab_size"])]
    return {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (360 - 3) + [5] * (len(tokens) - 360),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _write_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
def test_weights_and_config_are_those_of_the_model_it_came_from(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Names, shapes, the order of query and key rows, and numbers that a float32 bent."""
    config = tiny_config(**changes)
    path = write_gguf(tmp_path / "tiny.gguf", config)
    assert load_config(path) == ModelConfig.from_dict(config, source="config.json")
    expected = random_tensors(config)
    for name, slot in load_model(path, Placement()).slots().items():
        assert torch.equal(slot.target, expected[name]), name


def test_quantized_tensors_are_dequantized_before_rows_are_put_back(tmp_path: Path) -> None:
    """Q8_0 holds a value to within half a step of its block."""
    config = tiny_config(hidden_size=64, num_attention_heads=8, intermediate_size=96)
    path = write_gguf(tmp_path / "tiny.gguf", config, quantized=True)
    expected = random_tensors(config)
    for name, slot in load_model(path, Placement()).slots().items():
        torch.testing.assert_close(slot.target, expected[name], atol=0.02, rtol=0)


def test_frequency_factors_of_llama3_become_divisors(tmp_path: Path) -> None:
    """GGUF stores Llama 3's rope scaling as a tensor."""
    path = tmp_path / "tiny.gguf"
    config = tiny_config()
    write_gguf(path, config)
    file = GGUFFile(path)
    file._tensors["rope_freqs.weight"] = file._tensors["model.norm.weight"]
    rope = file.config().rope
    assert rope.kind == "divisors"
    assert rope.divisors == tuple(random_tensors(config)["model.norm.weight"].tolist())


def test_the_tokenizer_is_the_one_that_went_in(tmp_path: Path) -> None:
    """Vocabulary, merges, digit split, special tokens and chat template survive."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_config())
    folder = write_tiny_model(tmp_path / "folder")
    ours, theirs = Tokenizer.load(path), Tokenizer.load(folder)
    text = "The 1234 foxes' é 😀 <|im_end|>"
    assert ours.encode_text(text) == theirs.encode_text(text)
    assert ours.token_bytes[:360] == theirs.token_bytes
    assert (ours.end_ids, ours.bos_id, ours.chat_template) == (theirs.end_ids, 1, theirs.chat_template)


def test_a_bos_that_the_file_asks_for_is_added(tmp_path: Path) -> None:
    """add_bos_token in the metadata."""
    from palmette.runtime.tokenizer import Piece

    path = write_gguf(tmp_path / "tiny.gguf", tiny_config(), **{"tokenizer.ggml.add_bos_token": True})
    assert Tokenizer.load(path).encode([Piece("a", False, 0)], start=True).ids[0] == 1


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-2", "tekken", "gpt-4o", "deepseek-v3", "deepseek-coder"])
def test_other_ways_to_split_words_encode_text_exactly(tmp_path: Path, pre: str) -> None:
    """Each known splitting loses no byte."""
    metadata: dict[str, Any] = {"tokenizer.ggml.pre": pre}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_config(), **metadata)
    tokenizer = Tokenizer.load(path)
    text = "The 1234 foxes' é\n\n 😀  it's"
    assert b"".join(tokenizer.token_bytes[i] or b"" for i in tokenizer.encode_text(text)).decode() == text


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "bloom"}, "tokenizer.ggml.pre='bloom' is not supported; known: gpt-2"),
        ({"tokenizer.ggml.model": "bert"}, "kind 'bert' is not supported in GGUF"),
        ({"tokenizer.ggml.model": "llama"}, "the metadata has no tokenizer.ggml.scores"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
    ],
)
def test_tokenizers_that_cannot_be_rebuilt_are_named(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    """The error names the field and what is known."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_config(), **metadata)
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "the metadata has no llama.block_count"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.rope.dimension_count": 4}, "rotary embeddings of 4 of 8 dimensions"),
        ({"llama.rope.scaling.type": "longrope"}, "rope_type='longrope'"),
        ({"llama.block_count": 4}, "lacks tensors 'model.layers.3"),
        ({"llama.feed_forward_length": 81}, r"has shape \(80, 48\), its metadata asks for \(81, 48\)"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    """The error names the file and the field or tensor."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_config(head_dim=8), **metadata)
    with pytest.raises(ModelLoadError, match=rf"tiny\.gguf.*{message}"):
        load_model(path, Placement())


def test_other_architectures_list_the_known(tmp_path: Path) -> None:
    """A GGUF of another family."""
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "falcon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="architecture 'falcon' is not supported in GGUF; known: llama"):
        GGUFFile(tmp_path / "other.gguf")


@pytest.mark.parametrize("keep", [0, 10, 5000, -5000])
def test_cut_off_files_are_damage(tmp_path: Path, keep: int) -> None:
    """Wherever the file ends too early, the error names it."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_config())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf"):
        GGUFFile(path)


def test_the_config_is_a_config_json(tmp_path: Path) -> None:
    """What is written beside converted weights can be read by transformers too."""
    values = GGUFFile(write_gguf(tmp_path / "tiny.gguf", tiny_config())).config_values()
    assert json.loads(json.dumps(values)) == values
    assert values["rms_norm_eps"] == 1e-5
