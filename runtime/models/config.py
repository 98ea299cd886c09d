"""Shape of a model, read from config.json once and then frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palmette.runtime.errors import ModelLoadError

Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "llama3", "yarn", "divisors"]


class UnsupportedModelError(ModelLoadError):
    """A model that Palmette has no code of its own for: another architecture, or a config that asks for more.

    The config is not broken: transformers' own code may run the model.
    """


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those of pretraining.

    Attributes:
        kind: "default" leaves them; "linear" divides all by `factor`; "llama3" divides low frequencies by `factor`,
            leaves high ones and blends between; "yarn" does so too, with another blend; "divisors" divides each by its
            own number (as GGUF files store it).
        factor: >= 1.
        low_freq_factor, high_freq_factor: "llama3" and "yarn" divide what turns fewer than low times within
            original_context, and leave what turns more than high times.
        original_context: context length of pretraining, in tokens.
        divisors: [rotary_dim / 2], for kind "divisors".
        attention_factor: cosines and sines are multiplied by it.
        whole_steps: the blend of "yarn" begins and ends at whole components.
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    whole_steps: bool = True


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embeddings of a layer: `theta` is the base of their wavelengths."""

    theta: float
    scaling: RopeScaling = RopeScaling()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder, and the ways in which it differs from Llama.

    Attributes:
        architecture: as in `architectures` of config.json.
        vocab_size: number of logits.
        num_heads, num_kv_heads: query heads, and the key and value heads that groups of them share.
        rope_theta, rope: rotary embeddings of all layers, less those of `sliding_rope`.
        context_length: most tokens the model was made for.
        rotary_dim: components of a head that are turned, its first; None is all.
        rotary_layers: by layer, whether it has rotary embeddings; empty where all have.
        sliding_window: a token sees this many tokens, itself among them; None is all before it.
        sliding_layers: by layer, whether it has the window; empty where all have.
        sliding_rope: rotary embeddings of the layers with a window, where they differ.
        attention_bias, output_bias: biases of the query, key and value projections, and of attention's output.
        qk_norm: queries and keys are normalised, head by head, before they are turned.
        attention_scale: factor of q . k; None is 1 / sqrt(head_dim).
        attention_softcap: scores s become cap * tanh(s / cap).
        norm_offset: norms multiply by norm_offset + weight.
        sandwich_norms: what attention and the MLP give is normalised too, before it is added.
        embedding_scale: factor of embeddings, in the model's dtype.
        residual_scale: factor of what a layer's parts add.
        logit_divisor: of logits.
        logit_softcap: logits l become cap * tanh(l / cap).
        fused_projections: the checkpoint holds q, k and v in one tensor, and gate and up in another.
        tensor_prefix: stands before the names of the model's tensors, in a checkpoint that holds others beside them.
        eos_token_ids: end-of-sequence tokens that config.json names.
        dtype: of the checkpoint, "float32" where it does not say.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    context_length: int
    rope: RopeScaling = RopeScaling()
    rotary_dim: int | None = None
    rotary_layers: tuple[bool, ...] = ()
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    sliding_rope: Rope | None = None
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None
    attention_softcap: float | None = None
    activation: Activation = "silu"
    norm_offset: float = 0.0
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_softcap: float | None = None
    tie_word_embeddings: bool = False
    fused_projections: bool = False
    tensor_prefix: str = ""
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder`/config.json.

        Raises:
            UnsupportedModelError: Palmette has no code of its own for the model.
            ModelLoadError: the file is missing, is not a JSON object, or lacks a field.
        """
        path = folder / "config.json"
        return cls.from_dict(read_json_object(path), source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str) -> ModelConfig:
        """Build from the fields of a config.json, in transformers 4's or 5's spelling. `source` is named in errors.

        Raises:
            UnsupportedModelError: Palmette has no code of its own for the model.
            ModelLoadError: a field is missing or wrong.
        """
        from .families import read_config  # which builds configs

        return read_config(values, source)

    def window_of(self, layer_id: int) -> int | None:
        """How many tokens a token sees in a layer, itself among them; None is all before it."""
        return self.sliding_window if self._slides(layer_id) else None

    def rope_of(self, layer_id: int) -> Rope | None:
        """The rotary embeddings of a layer, if it has any."""
        if self.rotary_layers and not self.rotary_layers[layer_id]:
            return None
        if self.sliding_rope is not None and self._slides(layer_id):
            return self.sliding_rope
        return Rope(self.rope_theta, self.rope)

    def _slides(self, layer_id: int) -> bool:
        return not self.sliding_layers or self.sliding_layers[layer_id]


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder.

    Raises:
        ModelLoadError: the file is missing, unreadable, or holds anything else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.parent} has no {path.name}: is it a model folder?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(values).__name__}")
    return values


def token_ids(value: object) -> tuple[int, ...]:
    """The token ids in a field that holds one, several or none, such as eos_token_id; what is no id is left out."""
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
