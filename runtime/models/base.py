"""What the model runner asks of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.runtime.attention.base import StepAttention
    from palmette.runtime.layers.attention import RadixAttention
    from palmette.runtime.layers.placement import Placement, Slots


class CausalLM(Protocol):
    """A decoder over a flat row of tokens; which tokens belong together is the attention backend's plan."""

    config: ModelConfig
    placement: Placement
    launches_only: bool
    """`hidden` and `logits` do nothing but launch operations, always the same for as many tokens."""

    @property
    def attention_layers(self) -> Sequence[RadixAttention]:
        """All of them: a backend's kernels are compiled for these before a request waits for it."""

    def hidden(
        self, token_ids: Tensor, positions: Tensor, attention: StepAttention, wanted: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [W, hidden_size], normalised, of token_ids [T] at positions [T].

        Args:
            wanted: [W], indices of the tokens whose states are asked for; None is all of them.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab_size] of hidden states [S, hidden_size]."""

    def slots(self) -> Slots:
        """Where each tensor of a checkpoint goes, by its name there."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may hold a tensor of this name that the model does not need."""


ModelFactory = Callable[[ModelConfig, "Placement"], CausalLM]
