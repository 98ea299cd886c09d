"""Rotary position embeddings, with the stretchings of frequencies in `RopeScaling`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from palmette.runtime.models.config import Rope, RopeScaling

from .operators import operators_for
from .placement import Placement

Angles = tuple[Tensor, Tensor]
"""cos and sin of a step's positions, each [T, 1, rotary_dim / 2]: the same for all layers of one `Rope`."""


def inverse_frequencies(rotary_dim: int, rope: Rope) -> Tensor:
    """Radians that each pair of components turns by per position. [rotary_dim / 2], float32.

    Source: Su et al., "RoFormer", 2021, section 3.2; "llama3" as in Llama 3.1's reference code; Peng et al., "YaRN",
    2023, section 3.2.
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    scaling = rope.scaling
    match scaling.kind:
        case "default":
            return plain
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "yarn":
            return _yarn(plain, rope.theta, scaling)
        case "divisors":
            return plain / torch.tensor(scaling.divisors, dtype=torch.float32)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.original_context * plain / (2 * math.pi)  # in the context of pretraining
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn(plain: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    def pair_turning(times: float) -> float:
        """Which pair, counted with fractions, turns so often in the context of pretraining."""
        return len(plain) * math.log(scaling.original_context / (times * 2 * math.pi)) / math.log(theta)

    first, last = pair_turning(scaling.high_freq_factor), pair_turning(scaling.low_freq_factor)
    if scaling.whole_steps:
        first, last = math.floor(first), math.ceil(last)
    first = max(first, 0)
    last = min(last, 2 * len(plain) - 1)  # a bound in components where pairs were meant: as trained
    steps = (torch.arange(len(plain), dtype=torch.float32) - first) / ((last - first) or 0.001)
    divided = steps.clamp(0, 1)
    return divided * plain / scaling.factor + (1 - divided) * plain


class RotaryEmbedding(nn.Module):
    """Angles by which `Operators.rotate` turns each pair (x[i], x[i + rotary_dim / 2]) of a head."""

    def __init__(self, rotary_dim: int, rope: Rope, *, placement: Placement) -> None:
        super().__init__()
        self._dtype = placement.dtype
        self._factor = rope.scaling.attention_factor
        self._angles = operators_for(placement).rotary_angles
        self.inverse_frequencies: Tensor
        frequencies = inverse_frequencies(rotary_dim, rope).to(placement.device)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> Angles:
        """cos and sin of positions [T], computed in float32."""
        return self._angles(positions, self.inverse_frequencies, self._factor, self._dtype)
