"""Rotary position embeddings, with the stretchings of frequencies in `RopeScaling`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from palmette.runtime.models.config import RopeScaling

from .placement import Placement

Angles = tuple[Tensor, Tensor]
"""cos and sin of a step's positions, each [T, 1, head_dim / 2]: the same for every layer."""


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Radians that each pair of components turns by per position. [head_dim / 2], float32.

    Source: Su et al., "RoFormer", 2021, section 3.2; "llama3" as in Llama 3.1's reference code.
    """
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match scaling.kind:
        case "default":
            return plain
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "divisors":
            return plain / torch.tensor(scaling.divisors, dtype=torch.float32)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.original_context * plain / (2 * math.pi)  # in the context of pretraining
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


class RotaryEmbedding(nn.Module):
    """Angles by which `Operators.rotate` turns each pair (x[i], x[i + head_dim / 2]) of a head."""

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling, *, placement: Placement) -> None:
        super().__init__()
        self._dtype = placement.dtype
        self.inverse_frequencies: Tensor
        frequencies = inverse_frequencies(head_dim, theta, scaling).to(placement.device)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> Angles:
        """cos and sin of positions [T], computed in float32."""
        angles = positions.float()[:, None, None] * self.inverse_frequencies
        return angles.cos().to(self._dtype), angles.sin().to(self._dtype)
