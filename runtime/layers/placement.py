"""Where a layer's tensors live: which shard of the model, on which device, in which dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from palmette.runtime.errors import ModelLoadError


class Collective(Protocol):
    """What the ranks of one model do together. All ranks make the same calls in the same order."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All ranks' tensors, joined along the last dimension in order of rank."""


class Alone:
    """The collective of a model that is not split."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor


_ALONE = Alone()
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard that a rank holds, and its device and dtype.

    Attributes:
        rank, world: shard `rank` of `world`.
        collective: how shards exchange what they computed.
        dtype: of weights.
    """

    rank: int = 0
    world: int = 1
    collective: Collective = _ALONE
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU

    def share(self, size: int, what: str) -> int:
        """This rank's part of `size`.

        Raises:
            ModelLoadError: the ranks cannot have equal parts; names `what`.
        """
        if size % self.world:
            raise ModelLoadError(f"{what}={size} cannot be split over {self.world} ranks: it must be a multiple")
        return size // self.world

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter to be loaded into; never trained."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where one tensor of a checkpoint goes on this rank.

    Attributes:
        shape: of the whole tensor in the checkpoint.
        target: the part of a parameter that it fills (a view); its shape is `shape`, but shorter along `dim` where
            the rank holds a slice.
        dim, start: the slice begins at `start` along `dim`.
    """

    shape: tuple[int, ...]
    target: Tensor
    dim: int = 0
    start: int = 0

    @property
    def length(self) -> int:
        """How much of `dim` this rank takes."""
        return self.target.shape[self.dim]

    def fill(self, whole: Tensor) -> None:
        """Copy this rank's slice of `whole`, of shape `shape` and any dtype or device, into place."""
        self.target.copy_(whole.narrow(self.dim, self.start, self.length))


Slots = dict[str, TensorSlot]
