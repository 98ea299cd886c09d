"""Memory of the KV cache: keys and values of every layer, by slot. Which slot is whose is the page allocator's."""

from __future__ import annotations

import torch
from torch import Tensor

from .layers.linear import kv_share
from .layers.placement import Placement
from .models.config import ModelConfig


def kv_bytes_per_token(config: ModelConfig, placement: Placement) -> int:
    """Bytes that one token's keys and values take on one rank, all layers together."""
    kv_heads, _ = kv_share(config.num_kv_heads, placement)
    return 2 * config.num_layers * kv_heads * config.head_dim * placement.dtype.itemsize


def pages_for_memory(config: ModelConfig, placement: Placement, *, memory_bytes: int, page_size: int) -> int:
    """How many pages of `page_size` tokens fit in `memory_bytes` of one rank."""
    return memory_bytes // (page_size * kv_bytes_per_token(config, placement))


class KVStorage:
    """Keys and values of `num_pages` pages. Slot s is token s % page_size of page s // page_size.

    Attributes:
        spare_page: one page more than the pool's, for tokens that fill up a step and belong to nobody.
        keys, values: one tensor a layer, [num_pages * page_size, kv_heads, head_dim].
    """

    def __init__(self, config: ModelConfig, placement: Placement, *, num_pages: int, page_size: int) -> None:
        self.num_pages = self.spare_page = num_pages
        self.page_size = page_size
        self.placement = placement
        kv_heads, _ = kv_share(config.num_kv_heads, placement)
        shape = (config.num_layers, (num_pages + 1) * page_size, kv_heads, config.head_dim)
        # Not filled: no slot is read before it was written, and a CPU's memory is resident only once it was touched.
        self.keys = torch.empty(shape, dtype=placement.dtype, device=placement.device).unbind(0)
        self.values = torch.empty(shape, dtype=placement.dtype, device=placement.device).unbind(0)

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def write(self, layer_id: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [T, kv_heads, head_dim] at slots [T] (int64) of a layer."""
        self.keys[layer_id].index_copy_(0, slots, keys)
        self.values[layer_id].index_copy_(0, slots, values)
