"""The Llama family: Llama, SmolLM2, Mistral. Differences between them are fields of the config."""

from __future__ import annotations

import re

from torch import Tensor, nn

from palmette.runtime.attention.base import AttentionBackend
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.embedding import LMHead, VocabParallelEmbedding
from palmette.runtime.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from palmette.runtime.layers.norm import RMSNorm
from palmette.runtime.layers.operators import operators_for
from palmette.runtime.layers.placement import Placement, Slots
from palmette.runtime.layers.rotary import Angles, RotaryEmbedding

from .config import ModelConfig

_IGNORED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight")


class LlamaAttention(nn.Module):
    def __init__(self, config: ModelConfig, layer_id: int, placement: Placement) -> None:
        super().__init__()
        bias, head_dim = config.attention_bias, config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, config.num_heads, config.num_kv_heads, head_dim, bias=bias, placement=placement
        )
        self.o_proj = RowParallelLinear(config.num_heads * head_dim, config.hidden_size, bias=bias, placement=placement)
        self._rotate = operators_for(placement).rotate
        self.attention = RadixAttention(
            layer_id,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_dim=head_dim,
            sliding_window=config.sliding_window,
        )

    def forward(self, x: Tensor, angles: Angles, attention: AttentionBackend, wanted: Tensor | None) -> Tensor:
        """[T, hidden] -> [T, hidden], or [W, hidden] of the tokens `wanted` [W]."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        qkv = self.qkv_proj(x).view(len(x), heads + 2 * kv_heads, self.attention.head_dim)
        turned = self._rotate(qkv, heads + kv_heads, *angles)
        out = self.attention(turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :], attention)
        out = out.reshape(len(x), heads * self.attention.head_dim)
        return self.o_proj(_picked(out, wanted))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def slots(self, name: str) -> Slots:
        return self.qkv_proj.slots(*(f"{name}.{part}_proj" for part in "qkv")) | self.o_proj.slots(f"{name}.o_proj")


class LlamaMLP(nn.Module):
    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self._silu_and_mul = operators_for(placement).silu_and_mul
        self.gate_up_proj = MergedColumnParallelLinear(hidden, (inner, inner), bias=bias, placement=placement)
        self.down_proj = RowParallelLinear(inner, hidden, bias=bias, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self._silu_and_mul(self.gate_up_proj(x)))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def slots(self, name: str) -> Slots:
        gate_up = self.gate_up_proj.slots(f"{name}.gate_proj", f"{name}.up_proj")
        return gate_up | self.down_proj.slots(f"{name}.down_proj")


class LlamaLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer_id: int, placement: Placement) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement=placement)
        self.self_attn = LlamaAttention(config, layer_id, placement)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement=placement)
        self.mlp = LlamaMLP(config, placement)

    def forward(self, x: Tensor, angles: Angles, attention: AttentionBackend, wanted: Tensor | None) -> Tensor:
        """[T, hidden] -> [T, hidden], or [W, hidden] of the tokens `wanted` [W]."""
        x = _picked(x, wanted) + self.self_attn(self.input_layernorm(x), angles, attention, wanted)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]  # as above

    def slots(self, name: str) -> Slots:
        return (
            self.input_layernorm.slots(f"{name}.input_layernorm")
            | self.self_attn.slots(f"{name}.self_attn")
            | self.post_attention_layernorm.slots(f"{name}.post_attention_layernorm")
            | self.mlp.slots(f"{name}.mlp")
        )


def _picked(x: Tensor, wanted: Tensor | None) -> Tensor:
    return x if wanted is None else x.index_select(0, wanted)


class Llama(nn.Module):
    """A decoder of the Llama family. See `CausalLM`."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        super().__init__()
        self.config = config
        self.placement = placement
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, placement=placement)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta, config.rope, placement=placement)
        self.layers = nn.ModuleList(LlamaLayer(config, i, placement) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement=placement)
        self.lm_head = LMHead(
            config.vocab_size,
            config.hidden_size,
            placement=placement,
            tied_to=self.embed_tokens if config.tie_word_embeddings else None,
        )

    def hidden(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend, wanted: Tensor | None = None
    ) -> Tensor:
        x = self.embed_tokens(token_ids)
        angles = self.rotary(positions)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, angles, attention, wanted if i == last else None)
        return self.norm(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def slots(self) -> Slots:
        slots = self.embed_tokens.slots("model.embed_tokens") | self.norm.slots("model.norm")
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaLayer)
            slots |= layer.slots(f"model.layers.{i}")
        return slots if self.config.tie_word_embeddings else slots | self.lm_head.slots("lm_head")

    def ignores(self, name: str) -> bool:
        tied_copy = name == "lm_head.weight" and self.config.tie_word_embeddings
        return tied_copy or _IGNORED.fullmatch(name) is not None
