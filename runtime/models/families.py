"""What each architecture's config.json means: its defaults, and how the model differs from Llama."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .config import Activation, ModelConfig, RopeScaling
from .config_fields import ConfigFields
from .rope_fields import read_rope

Reader = Callable[[ConfigFields], ModelConfig]


def read_config(values: Mapping[str, Any], source: str) -> ModelConfig:
    """Build a config from the fields of a config.json; see `ModelConfig.from_dict`."""
    fields = ConfigFields(values, source)
    if quantization := values.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
        raise fields.error(
            f"quantization_config ({method}) is not supported: give a float32, bfloat16 or float16 checkpoint"
        )
    architecture = fields.architecture()
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise fields.unsupported(f"architecture {architecture!r} is not supported; known: {known}")
    return ARCHITECTURES[architecture](fields)


def _llama(fields: ConfigFields, activation: Activation | None = None) -> ModelConfig:
    """Fields that all families share; sliding_window is read by those that have one."""
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}")
    head_dim, context = _head_dim(fields, heads), fields.size("max_position_embeddings", 2048)
    rope = read_rope(fields, head_dim=head_dim, context=context)
    return ModelConfig(
        architecture=fields.architecture(),
        vocab_size=fields.size("vocab_size"),
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.full.theta,
        rope=rope.full.scaling,
        sliding_rope=rope.sliding,
        rotary_dim=rope.rotary_dim,
        context_length=_context_length(context, rope.full.scaling),
        activation=activation or fields.activation("hidden_act"),
        attention_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        eos_token_ids=fields.token_ids("eos_token_id"),
        dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
    )


def _context_length(context: int, scaling: RopeScaling) -> int:
    """max_position_embeddings, which is often left at the length that YaRN stretches."""
    return max(context, int(scaling.original_context * scaling.factor)) if scaling.kind == "yarn" else context


def _head_dim(fields: ConfigFields, heads: int) -> int:
    head_dim = fields.optional_size("head_dim")
    if head_dim is None:
        hidden = fields.size("hidden_size")
        if hidden % heads:
            raise fields.error(f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
        head_dim = hidden // heads
    if head_dim % 2:
        raise fields.error(f"head_dim={head_dim} must be even for rotary embeddings")
    return head_dim


def _mistral(fields: ConfigFields) -> ModelConfig:
    fields = fields.with_defaults(sliding_window=4096)
    return replace(_llama(fields), sliding_window=fields.optional_size("sliding_window"))


def _qwen2(fields: ConfigFields) -> ModelConfig:
    config = _with_last_layers_sliding(_llama(fields), fields)
    return replace(config, attention_bias=True, output_bias=False, mlp_bias=False)


def _qwen3(fields: ConfigFields) -> ModelConfig:
    config = _llama(fields.with_defaults(head_dim=128))
    return replace(_with_last_layers_sliding(config, fields), mlp_bias=False, qk_norm=True)


def _with_last_layers_sliding(config: ModelConfig, fields: ConfigFields) -> ModelConfig:
    """Qwen's windows: off unless use_sliding_window, and then from layer max_window_layers on."""
    fields = fields.with_defaults(sliding_window=4096)
    if not fields.flag("use_sliding_window"):
        return config
    first = fields.get("max_window_layers")
    first = 28 if first is None else first
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise fields.error(f"max_window_layers must be a whole number of at least 0, not {first!r}")
    by_default = tuple(i >= first for i in range(config.num_layers))
    layers = fields.sliding_layers(config.num_layers) or by_default
    return replace(config, sliding_window=fields.optional_size("sliding_window"), sliding_layers=layers)


def _gemma(fields: ConfigFields) -> ModelConfig:
    """What all Gemmas have in common, and all of the first."""
    if fields.get("use_bidirectional_attention"):
        raise fields.unsupported("use_bidirectional_attention is not supported: tokens see those before them")
    fields = fields.with_defaults(tie_word_embeddings=True, head_dim=256, max_position_embeddings=8192)
    config = _llama(fields, _gemma_activation(fields))
    return replace(config, norm_offset=1.0, embedding_scale=math.sqrt(config.hidden_size), mlp_bias=False)


def _gemma_activation(fields: ConfigFields) -> Activation:
    """Files of the first Gemma say "gelu", and mean its approximation."""
    name = "hidden_activation" if fields.get("hidden_activation") else "hidden_act"
    return "gelu_tanh" if fields.get(name) in (None, "gelu") else fields.activation(name)


def _gemma2(fields: ConfigFields) -> ModelConfig:
    fields = fields.with_defaults(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    config = _sandwiched(_gemma(fields), fields, every=2)
    return replace(config, attention_softcap=fields.optional_number("attn_logit_softcapping"))


def _sandwiched(config: ModelConfig, fields: ConfigFields, *, every: int) -> ModelConfig:
    """Four norms a layer, and windows in all layers but each `every`-th, unless layer_types says otherwise."""
    fields = fields.with_defaults(query_pre_attn_scalar=256, sliding_window=4096)
    by_default = tuple((i + 1) % every != 0 for i in range(config.num_layers))
    return replace(
        config,
        sandwich_norms=True,
        sliding_window=fields.optional_size("sliding_window"),
        sliding_layers=fields.sliding_layers(config.num_layers) or by_default,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping"),
    )


def _gemma3(fields: ConfigFields) -> ModelConfig:
    """attn_logit_softcapping is not looked at: transformers does not either, and no released model has one."""
    fields = fields.with_defaults(
        vocab_size=262_208,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=131_072,
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
    )
    every = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", 6))
    return replace(_sandwiched(_gemma(fields), fields, every=every), qk_norm=True)


def _gemma3_with_vision(fields: ConfigFields) -> ModelConfig:
    """The language model of a checkpoint that also holds one of images."""
    text = fields.inner("text_config").values
    whole = {name: fields.get(name) for name in ("architectures", "eos_token_id") if fields.get(name) is not None}
    merged = {**fields.values, **text, **whole}
    return replace(_gemma3(ConfigFields(merged, fields.source)), tensor_prefix="language_model.")


def _phi3(fields: ConfigFields) -> ModelConfig:
    config = _llama(fields)
    if config.rope.kind != "default":
        raise fields.unsupported(f"rope_type={config.rope.kind!r} is not supported for Phi-3; known: default")
    return replace(
        config,
        sliding_window=fields.optional_size("sliding_window"),
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        fused_projections=True,
    )


def _granite(fields: ConfigFields) -> ModelConfig:
    return replace(
        _llama(fields),
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_divisor=fields.number("logits_scaling", 1.0),
    )


def _smollm3(fields: ConfigFields) -> ModelConfig:
    """Every fourth layer has no rotary embeddings, and may have a window."""
    fields = fields.with_defaults(tie_word_embeddings=True, rope_theta=2_000_000.0)
    config = _llama(fields)
    every = fields.size("no_rope_layer_interval", 4)
    by_default = tuple((i + 1) % every != 0 for i in range(config.num_layers))
    rotary = fields.layer_flags("no_rope_layers", config.num_layers) or by_default
    sliding = fields.sliding_layers(config.num_layers) or tuple(not each for each in rotary)
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window") else None
    return replace(config, rotary_layers=rotary, sliding_window=window, sliding_layers=sliding)


ARCHITECTURES: Mapping[str, Reader] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3_with_vision,
    "Phi3ForCausalLM": _phi3,
    "GraniteForCausalLM": _granite,
    "SmolLM3ForCausalLM": _smollm3,
}
"""Architectures that Palmette has code for, and how each one's config.json is read."""
