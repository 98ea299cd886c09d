"""Root mean square normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from .operators import operators_for
from .placement import Placement, Slots, TensorSlot


class RMSNorm(nn.Module):
    """x [T, size] -> x / sqrt(mean(x ** 2) + eps) * weight, the mean in float32.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, size: int, eps: float, *, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self._rms_norm = operators_for(placement).rms_norm
        self.weight = placement.empty(size)

    def forward(self, x: Tensor) -> Tensor:
        return self._rms_norm(x, self.weight, self.eps)

    def slots(self, name: str) -> Slots:
        """The slot of the checkpoint layer `name`."""
        return {f"{name}.weight": TensorSlot(tuple(self.weight.shape), self.weight)}
