"""Linear layers that know their shard: column layers split outputs, row layers split inputs and sum over ranks."""

from __future__ import annotations

from torch import Tensor, nn

from palmette.runtime.errors import ModelLoadError

from .operators import operators_for
from .placement import Placement, Slots, TensorSlot


class _Linear(nn.Module):
    """x [T, in] -> x @ weight.T + bias [T, out], for this rank's weight [out, in]."""

    def __init__(self, in_features: int, out_features: int, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self._linear = operators_for(placement).linear
        self.weight = placement.empty(out_features, in_features)
        self.bias = placement.empty(out_features) if bias else None

    def _row_slots(self, name: str, first: int, rows: int, whole: int, start: int) -> Slots:
        """Slots of a checkpoint layer whose outputs `start` ... of `whole` fill rows `first` to `first + rows`."""
        part = slice(first, first + rows)
        slots = {f"{name}.weight": TensorSlot((whole, self.weight.shape[1]), self.weight[part], 0, start)}
        if self.bias is not None:
            slots[f"{name}.bias"] = TensorSlot((whole,), self.bias[part], 0, start)
        return slots

    def fused_slots(self, name: str) -> Slots:
        """Slots of one checkpoint layer that holds all outputs in the order in which they are here.

        Raises:
            ModelLoadError: the layer is split over ranks, which hold several parts of that layer.
        """
        if self.placement.world > 1:
            raise ModelLoadError(
                f"tensor {name}.weight holds several layers in one: the model runs on one rank, not on "
                f"{self.placement.world}"
            )
        return self._row_slots(name, 0, len(self.weight), len(self.weight), 0)


class MergedColumnParallelLinear(_Linear):
    """Several layers of the same input in one product; each rank holds its part of every layer's outputs.

    Args:
        out_features: outputs of each layer; a rank's output is [T, sum(out_features) / world].
    """

    def __init__(
        self, in_features: int, out_features: tuple[int, ...], *, bias: bool = False, placement: Placement
    ) -> None:
        self.out_features = out_features
        self._shares = [placement.share(size, "output features") for size in out_features]
        super().__init__(in_features, sum(self._shares), bias, placement)

    def forward(self, x: Tensor) -> Tensor:
        return self._linear(x, self.weight, self.bias)

    def slots(self, *names: str) -> Slots:
        """Slots of the checkpoint layers `names`, one for each of `out_features`."""
        slots: Slots = {}
        first = 0
        for name, whole, share in zip(names, self.out_features, self._shares, strict=True):
            slots |= self._row_slots(name, first, share, whole, self.placement.rank * share)
            first += share
        return slots


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One layer whose outputs are split over the ranks: [T, in] -> [T, out / world]."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, placement: Placement) -> None:
        super().__init__(in_features, (out_features,), bias=bias, placement=placement)


class QKVParallelLinear(_Linear):
    """Query, key and value projections in one product, split by heads.

    Where there are fewer key and value heads than ranks, each is held by several ranks.

    Attributes:
        num_heads, num_kv_heads: of this rank. Its output is [T, (num_heads + 2 * num_kv_heads) * head_dim]: all
            queries, then all keys, then all values.
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        placement: Placement,
    ) -> None:
        self.head_dim = head_dim
        self.total_heads, self.total_kv_heads = num_heads, num_kv_heads
        self.num_heads = placement.share(num_heads, "num_attention_heads")
        self.num_kv_heads, self._first_kv_head = kv_share(num_kv_heads, placement)
        super().__init__(in_features, (self.num_heads + 2 * self.num_kv_heads) * head_dim, bias, placement)

    def forward(self, x: Tensor) -> Tensor:
        return self._linear(x, self.weight, self.bias)

    def slots(self, query: str, key: str, value: str) -> Slots:
        """Slots of the checkpoint layers of these names."""
        size, kv_rows = self.head_dim, self.num_kv_heads * self.head_dim
        q_rows, kv_whole, kv_start = self.num_heads * size, self.total_kv_heads * size, self._first_kv_head * size
        return (
            self._row_slots(query, 0, q_rows, self.total_heads * size, self.placement.rank * q_rows)
            | self._row_slots(key, q_rows, kv_rows, kv_whole, kv_start)
            | self._row_slots(value, q_rows + kv_rows, kv_rows, kv_whole, kv_start)
        )


def kv_share(num_kv_heads: int, placement: Placement) -> tuple[int, int]:
    """How many key and value heads a rank holds, and the first of them.

    Raises:
        ModelLoadError: neither number is a multiple of the other.
    """
    if num_kv_heads >= placement.world:
        share = placement.share(num_kv_heads, "num_key_value_heads")
        return share, placement.rank * share
    if placement.world % num_kv_heads:
        raise ModelLoadError(
            f"num_key_value_heads={num_kv_heads} cannot be repeated evenly over {placement.world} ranks"
        )
    return 1, placement.rank * num_kv_heads // placement.world


class RowParallelLinear(_Linear):
    """A layer whose inputs are split over the ranks: [T, in / world] -> [T, out], the sum over all ranks."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, placement: Placement) -> None:
        self.in_features = in_features
        self._share = placement.share(in_features, "input features")
        super().__init__(self._share, out_features, bias, placement)

    def forward(self, x: Tensor) -> Tensor:
        if self.placement.world == 1:
            return self._linear(x, self.weight, self.bias)
        total = self.placement.collective.all_reduce(self._linear(x, self.weight))
        return total if self.bias is None else total + self.bias

    def slots(self, name: str) -> Slots:
        """Slots of the checkpoint layer `name`."""
        out = self.weight.shape[0]
        slots = {
            f"{name}.weight": TensorSlot((out, self.in_features), self.weight, 1, self.placement.rank * self._share)
        }
        if self.bias is not None:
            slots[f"{name}.bias"] = TensorSlot((out,), self.bias)
        return slots
