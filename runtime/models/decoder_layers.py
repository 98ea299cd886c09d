"""One layer of a decoder. What differs between families is a field of the config."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from palmette.runtime.attention.base import StepAttention
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from palmette.runtime.layers.norm import HeadNorm, RMSNorm
from palmette.runtime.layers.operators import operators_for
from palmette.runtime.layers.placement import Placement, Slots
from palmette.runtime.layers.rotary import Angles

from .config import ModelConfig, Rope

AnglesByRope = Mapping[Rope, Angles]
"""The angles of a step's positions, under each rope of the model."""


def norm_of(config: ModelConfig, placement: Placement) -> RMSNorm:
    """A norm of hidden states."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, offset=config.norm_offset, placement=placement)


class Attention(nn.Module):
    """Projections, rotary embeddings and attention of a layer."""

    def __init__(self, config: ModelConfig, layer_id: int, placement: Placement) -> None:
        super().__init__()
        hidden, heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
        self.qkv_proj = QKVParallelLinear(
            hidden, heads, config.num_kv_heads, head_dim, bias=config.attention_bias, placement=placement
        )
        self.o_proj = RowParallelLinear(heads * head_dim, hidden, bias=config.output_bias, placement=placement)
        self.qk_norm = _head_norm(config, placement) if config.qk_norm else None
        self._fused = config.fused_projections
        self._rope = config.rope_of(layer_id)
        self.attention = RadixAttention(
            layer_id,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_dim=head_dim,
            sliding_window=config.window_of(layer_id),
            scale=config.attention_scale,
            softcap=config.attention_softcap,
        )

    def forward(self, x: Tensor, angles: AnglesByRope, attention: StepAttention, wanted: Tensor | None) -> Tensor:
        """[T, hidden] -> [T, hidden], or [W, hidden] of the tokens `wanted` [W]."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        qkv = self.qkv_proj(x).view(len(x), heads + 2 * kv_heads, self.attention.head_dim)
        if self.qk_norm is not None:
            qkv = self.qk_norm(qkv, heads, kv_heads)
        out = self.attention(qkv, None if self._rope is None else angles[self._rope], attention)
        out = out.reshape(len(x), heads * self.attention.head_dim)
        return self.o_proj(picked(out, wanted))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def slots(self, name: str) -> Slots:
        slots = self.o_proj.slots(f"{name}.o_proj")
        if self.qk_norm is not None:
            slots |= self.qk_norm.slots(f"{name}.q_norm", f"{name}.k_norm")
        if self._fused:
            return self.qkv_proj.fused_slots(f"{name}.qkv_proj") | slots
        return self.qkv_proj.slots(*(f"{name}.{part}_proj" for part in "qkv")) | slots


def _head_norm(config: ModelConfig, placement: Placement) -> HeadNorm:
    return HeadNorm(config.head_dim, config.rms_norm_eps, offset=config.norm_offset, placement=placement)


class GatedMLP(nn.Module):
    """x -> down(f(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        operators = operators_for(placement)
        self._gate_and_mul = {"silu": operators.silu_and_mul, "gelu_tanh": operators.gelu_tanh_and_mul}[
            config.activation
        ]
        self._fused = config.fused_projections
        self.gate_up_proj = MergedColumnParallelLinear(hidden, (inner, inner), bias=bias, placement=placement)
        self.down_proj = RowParallelLinear(inner, hidden, bias=bias, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self._gate_and_mul(self.gate_up_proj(x)))  # type: ignore[no-any-return]  # as above

    def slots(self, name: str) -> Slots:
        down = self.down_proj.slots(f"{name}.down_proj")
        if self._fused:
            return self.gate_up_proj.fused_slots(f"{name}.gate_up_proj") | down
        return self.gate_up_proj.slots(f"{name}.gate_proj", f"{name}.up_proj") | down


class DecoderLayer(nn.Module):
    """Attention and MLP, each on normalised states and added to what came in.

    What a layer's MLP gives is added by the next layer's first norm, in one pass over the states with it.
    """

    def __init__(self, config: ModelConfig, layer_id: int, placement: Placement) -> None:
        super().__init__()
        self._residual_scale = config.residual_scale
        self.input_layernorm = norm_of(config, placement)
        self.self_attn = Attention(config, layer_id, placement)
        self.post_attention_layernorm = norm_of(config, placement)
        self.mlp = GatedMLP(config, placement)

    def forward(
        self, x: Tensor, update: Tensor | None, angles: AnglesByRope, attention: StepAttention, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """States, and what is still to be added to them times the residual scale, through this layer.

        Args:
            x, update: [T, hidden] each, which may be overwritten; no update in the first layer.

        Returns:
            Both after the layer, [T, hidden], or [W, hidden] of the tokens `wanted` [W].
        """
        x, normal = self.input_layernorm.of_sum(x, update, self._residual_scale)
        update = self.self_attn(normal, angles, attention, wanted)
        x, normal = self.post_attention_layernorm.of_sum(picked(x, wanted), update, self._residual_scale)
        return x, self.mlp(normal)

    def slots(self, name: str) -> Slots:
        return (
            self.input_layernorm.slots(f"{name}.input_layernorm")
            | self.self_attn.slots(f"{name}.self_attn")
            | self.post_attention_layernorm.slots(f"{name}.post_attention_layernorm")
            | self.mlp.slots(f"{name}.mlp")
        )


class SandwichLayer(DecoderLayer):
    """A layer that also normalises what attention and the MLP give. post_attention_layernorm is one of these norms."""

    def __init__(self, config: ModelConfig, layer_id: int, placement: Placement) -> None:
        super().__init__(config, layer_id, placement)
        self.pre_feedforward_layernorm = norm_of(config, placement)
        self.post_feedforward_layernorm = norm_of(config, placement)

    def forward(
        self, x: Tensor, update: Tensor | None, angles: AnglesByRope, attention: StepAttention, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.forward`."""
        x, normal = self.input_layernorm.of_sum(x, update, self._residual_scale)
        update = self.post_attention_layernorm(self.self_attn(normal, angles, attention, wanted))
        x, normal = self.pre_feedforward_layernorm.of_sum(picked(x, wanted), update, self._residual_scale)
        return x, self.post_feedforward_layernorm(self.mlp(normal))

    def slots(self, name: str) -> Slots:
        return (
            super().slots(name)
            | self.pre_feedforward_layernorm.slots(f"{name}.pre_feedforward_layernorm")
            | self.post_feedforward_layernorm.slots(f"{name}.post_feedforward_layernorm")
        )


def picked(x: Tensor, wanted: Tensor | None) -> Tensor:
    """The rows `wanted` [W] of x, all where None."""
    return x if wanted is None else x.index_select(0, wanted)
