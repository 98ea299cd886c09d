"""The vocabulary, split over the ranks by rows: token ids to vectors, and vectors to logits."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from .operators import operators_for
from .placement import Placement, Slots, TensorSlot


def _vocabulary_range(vocab_size: int, placement: Placement) -> tuple[int, int, int]:
    """A rank's rows with padding, and the half-open range of token ids among them."""
    rows = -(-vocab_size // placement.world)
    start = min(vocab_size, placement.rank * rows)
    return rows, start, min(vocab_size, start + rows)


class VocabParallelEmbedding(nn.Module):
    """token_ids [T] -> [T, hidden]. Rank r holds rows r * ceil(vocab / world) onwards."""

    def __init__(self, vocab_size: int, hidden_size: int, *, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self.vocab_size = vocab_size
        rows, self._start, self._stop = _vocabulary_range(vocab_size, placement)
        self.weight = placement.empty(rows, hidden_size)

    def forward(self, token_ids: Tensor) -> Tensor:
        if self.placement.world == 1:
            return functional.embedding(token_ids, self.weight)
        mine = (token_ids >= self._start) & (token_ids < self._stop)
        rows = functional.embedding((token_ids - self._start).where(mine, 0), self.weight)
        return self.placement.collective.all_reduce(rows.where(mine[:, None], 0))

    def slots(self, name: str) -> Slots:
        """The slot of the checkpoint layer `name`."""
        target = self.weight[: self._stop - self._start]
        return {f"{name}.weight": TensorSlot((self.vocab_size, self.weight.shape[1]), target, 0, self._start)}


class LMHead(nn.Module):
    """hidden [S, hidden] -> logits [S, vocab], over the same rows as the embedding; `weight` may be the embedding's."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, placement: Placement, tied_to: VocabParallelEmbedding | None
    ) -> None:
        super().__init__()
        self.placement = placement
        self._linear = operators_for(placement).linear
        self.vocab_size = vocab_size
        rows, self._start, self._stop = _vocabulary_range(vocab_size, placement)
        self.weight = placement.empty(rows, hidden_size) if tied_to is None else tied_to.weight

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self._linear(hidden, self.weight)
        if self.placement.world == 1:
            return logits
        return self.placement.collective.all_gather(logits)[..., : self.vocab_size]

    def slots(self, name: str) -> Slots:
        """The slot of the checkpoint layer `name`."""
        target = self.weight[: self._stop - self._start]
        return {f"{name}.weight": TensorSlot((self.vocab_size, self.weight.shape[1]), target, 0, self._start)}
