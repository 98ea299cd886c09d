"""Root mean square normalisation, of whole vectors and of heads."""

from __future__ import annotations

from torch import Tensor, nn

from .operators import operators_for
from .placement import Placement, Slots, TensorSlot


class RMSNorm(nn.Module):
    """x [T, size] -> x / sqrt(mean(x ** 2) + eps) * (offset + weight), the mean in float32.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, size: int, eps: float, *, offset: float = 0.0, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self._operators = operators_for(placement)
        self.weight = placement.empty(size)

    def forward(self, x: Tensor) -> Tensor:
        return self._operators.rms_norm(x, self.weight, self.eps, self.offset)

    def of_sum(self, x: Tensor, update: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        """x + scale * update (x alone where None), and that normalised. x and update may be overwritten."""
        if update is None:
            return x, self(x)
        return self._operators.add_rms_norm(x, update, self.weight, self.eps, self.offset, scale)

    def slots(self, name: str) -> Slots:
        """The slot of the checkpoint layer `name`."""
        return {f"{name}.weight": TensorSlot(tuple(self.weight.shape), self.weight)}


class HeadNorm(nn.Module):
    """RMSNorm of each query and key head by itself, with one weight for all queries and one for all keys."""

    def __init__(self, head_dim: int, eps: float, *, offset: float = 0.0, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self._norm_heads = operators_for(placement).norm_heads
        self.weight = placement.empty(2, head_dim)

    def forward(self, qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
        """qkv [T, heads + 2 * kv_heads, head_dim] with its queries and keys normalised. May overwrite it."""
        return self._norm_heads(qkv, heads, kv_heads, self.weight, self.eps, self.offset)

    def slots(self, query: str, key: str) -> Slots:
        """The slots of the checkpoint layers of these names."""
        names = (f"{query}.weight", f"{key}.weight")
        return {name: TensorSlot(tuple(row.shape), row) for name, row in zip(names, self.weight, strict=True)}
