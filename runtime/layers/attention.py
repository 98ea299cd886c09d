"""The attention layer of every model: it knows its place and shape, and leaves the work to a backend."""

from __future__ import annotations

from torch import Tensor, nn

from palmette.runtime.attention.base import StepAttention

from .rotary import Angles


class RadixAttention(nn.Module):
    """Attention over the pages of each row's context, this step's tokens included.

    Attributes:
        layer_id: index of the layer's keys and values in the KV storage.
        num_heads, num_kv_heads, head_dim: of this rank.
        scale: factor of q . k.
        sliding_window: a token sees this many tokens, itself among them; None is all before it.
        softcap: scores s become softcap * tanh(s / softcap); None leaves them.
    """

    def __init__(
        self,
        layer_id: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        sliding_window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.sliding_window = sliding_window
        self.scale = head_dim**-0.5 if scale is None else scale
        self.softcap = softcap

    def forward(self, qkv: Tensor, angles: Angles | None, attention: StepAttention) -> Tensor:
        """qkv [T, num_heads + 2 * num_kv_heads, head_dim] -> [T, num_heads, head_dim]; see `StepAttention.run`."""
        return attention.run(qkv, self, angles)
