"""The decoder of every family in `families`: how they differ is said by the config."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from palmette.runtime.attention.base import StepAttention
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.embedding import LMHead, VocabParallelEmbedding
from palmette.runtime.layers.placement import Placement, Slots
from palmette.runtime.layers.rotary import RotaryEmbedding

from .config import ModelConfig, Rope
from .decoder_layers import AnglesByRope, DecoderLayer, SandwichLayer, norm_of

_IGNORED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight")


class Decoder(nn.Module):
    """A decoder-only model. See `CausalLM`."""

    launches_only = True

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        super().__init__()
        self.config = config
        self.placement = placement
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=placement.dtype).item()
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, placement=placement)
        self._rotary = _rotary_embeddings(config, placement)
        layer = SandwichLayer if config.sandwich_norms else DecoderLayer
        self.layers = nn.ModuleList(layer(config, i, placement) for i in range(config.num_layers))
        self.norm = norm_of(config, placement)
        self.lm_head = LMHead(
            config.vocab_size,
            config.hidden_size,
            placement=placement,
            tied_to=self.embed_tokens if config.tie_word_embeddings else None,
        )

    @property
    def attention_layers(self) -> Sequence[RadixAttention]:
        return [module for module in self.modules() if isinstance(module, RadixAttention)]

    def hidden(
        self, token_ids: Tensor, positions: Tensor, attention: StepAttention, wanted: Tensor | None = None
    ) -> Tensor:
        x = self.embed_tokens(token_ids)
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        angles: AnglesByRope = {rope: rotary(positions) for rope, rotary in self._rotary.items()}
        update, last = None, len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x, update = layer(x, update, angles, attention, wanted if i == last else None)
        _, normal = self.norm.of_sum(x, update, self.config.residual_scale)
        return normal

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        if self.config.logit_divisor != 1:
            logits = logits / self.config.logit_divisor
        cap = self.config.logit_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def slots(self) -> Slots:
        slots = self.embed_tokens.slots("model.embed_tokens") | self.norm.slots("model.norm")
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            slots |= layer.slots(f"model.layers.{i}")
        if not self.config.tie_word_embeddings:
            slots |= self.lm_head.slots("lm_head")
        return {f"{self.config.tensor_prefix}{name}": slot for name, slot in slots.items()}

    def ignores(self, name: str) -> bool:
        prefix = self.config.tensor_prefix
        tied_copy = self.config.tie_word_embeddings and name == f"{prefix}lm_head.weight"
        return tied_copy or not name.startswith(prefix) or _IGNORED.fullmatch(name) is not None


def _rotary_embeddings(config: ModelConfig, placement: Placement) -> dict[Rope, RotaryEmbedding]:
    rotary_dim = config.rotary_dim or config.head_dim
    ropes = dict.fromkeys(config.rope_of(i) for i in range(config.num_layers))
    return {rope: RotaryEmbedding(rotary_dim, rope, placement=placement) for rope in ropes if rope is not None}
