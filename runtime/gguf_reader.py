"""Reads llama.cpp's GGUF files: weights by their safetensors names and layout, and the config they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .errors import ModelLoadError
from .layers.placement import TensorSlot
from .models.config import ModelConfig, RopeScaling

Float32Array = npt.NDArray[np.float32]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_PERMUTING = ("llama",)
"""Architectures whose query and key rows llama.cpp's converter reorders."""
_ROPE_FACTORS = "rope_freqs.weight"
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r".*\.self_attn\.(q|k)_proj\.(weight|bias)")


class GGUFFile:
    """One GGUF file of an architecture in `_ARCHITECTURES`.

    Attributes:
        metadata: its key-value pairs.

    Raises:
        ModelLoadError: it cannot be read, or holds another architecture.
    """

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        try:
            reader = gguf.GGUFReader(path)
            self.metadata: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelLoadError(f"{path} is not a GGUF file, or it is damaged or cut off: {error}") from error
        self._tensors = {_checkpoint_name(tensor.name): tensor for tensor in reader.tensors}
        self._prefix = str(self.metadata.get("general.architecture"))
        if self._prefix not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelLoadError(f"{path}: architecture {self._prefix!r} is not supported in GGUF; known: {known}")

    def names(self) -> list[str]:
        """Names of the tensors, as a safetensors checkpoint has them."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor once it is read."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str) -> Float32Array:
        """A tensor in float32, its rows in a safetensors checkpoint's order.

        Raises:
            ModelLoadError: it is stored in a way that cannot be dequantized.
        """
        import gguf

        tensor = self._tensors[name]
        try:
            values: Float32Array = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelLoadError(f"{self.path}: tensor {name!r} is {kind}, which cannot be dequantized") from error
        match = _PERMUTED.fullmatch(name) if self._prefix in _PERMUTING else None
        return _unpermuted(values, self._heads() if match[1] == "q" else self._kv_heads()) if match else values

    def read_into(self, name: str, slot: TensorSlot) -> None:
        """Fill a slot from the tensor `name`.

        Raises:
            ModelLoadError: its shape is not the slot's, or it cannot be dequantized.
        """
        if self.shape(name) != slot.shape:
            shape = self.shape(name)
            raise ModelLoadError(f"{self.path}: tensor {name!r} has shape {shape}, its metadata asks for {slot.shape}")
        slot.fill(torch.from_numpy(np.require(self.read(name), requirements="W")))

    def config(self) -> ModelConfig:
        """The model's shape.

        Raises:
            ModelLoadError: the metadata lacks a field or asks for what is not supported.
        """
        config = ModelConfig.from_dict(self.config_values(), source=str(self.path))
        if _ROPE_FACTORS not in self._tensors:
            return config
        divisors = tuple(self.read(_ROPE_FACTORS).reshape(-1).tolist())
        return replace(config, rope=RopeScaling("divisors", divisors=divisors))

    def config_values(self) -> dict[str, Any]:
        """The fields of an equivalent config.json (less rope_freqs, which it has no field for)."""
        if self._get("expert_count", 0):
            raise ModelLoadError(f"{self.path}: mixtures of experts are not supported")
        hidden, heads = self._get("embedding_length"), self._heads()
        head_dim = self._get("attention.key_length", hidden // heads)
        if (turned := self._get("rope.dimension_count", head_dim)) != head_dim:
            raise ModelLoadError(f"{self.path}: rotary embeddings of {turned} of {head_dim} dimensions")
        return {
            "architectures": [_ARCHITECTURES[self._prefix]],
            "model_type": self._prefix,
            "vocab_size": self.shape("model.embed_tokens.weight")[0],
            "hidden_size": hidden,
            "intermediate_size": self._get("feed_forward_length"),
            "num_hidden_layers": self._get("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._kv_heads(),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": _shortest(self._get("attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": self._get("context_length"),
            "rope_theta": _shortest(self._get("rope.freq_base", 10000.0)),
            "rope_scaling": self._rope_scaling(),
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.metadata.get("tokenizer.ggml.eos_token_id"),
            "torch_dtype": "float32",
        }

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self._get("rope.scaling.type", "none")
        if kind == "none":
            return None
        original = self._get("rope.scaling.original_context_length", self._get("context_length"))
        factor = _shortest(self._get("rope.scaling.factor", 1.0))
        return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}

    def _heads(self) -> int:
        return int(self._get("attention.head_count"))

    def _kv_heads(self) -> int:
        return int(self._get("attention.head_count_kv", self._heads()))

    def _get(self, name: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise ModelLoadError(f"{self.path}: the metadata has no {self._prefix}.{name}")
        return value


def _checkpoint_name(name: str) -> str:
    """The name that a safetensors checkpoint gives the tensor; unknown names stay as they are."""
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in _LAYER_PARTS:
        return f"model.layers.{match[1]}.{_LAYER_PARTS[match[2]]}.{match[3]}"
    return _TOP_NAMES.get(name, name)


def _unpermuted(values: Float32Array, heads: int) -> Float32Array:
    """Query or key rows as they were before llama.cpp's converter put the two halves of each head side by side."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _shortest(value: float) -> float:
    """The number that was meant by a float32: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))
