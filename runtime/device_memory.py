"""How much of a device's memory is free, and how much of it the KV pool may take."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import AttentionBackend, AttentionPlan
from .layers.attention import RadixAttention
from .layers.rotary import Angles
from .models import CausalLM

_WORKSPACE_BYTES = 1 << 30
"""Kept for what is made later: workspaces of attention and matrix products, and recorded steps."""

_BYTES_PER_LOGIT = 10
"""Most that sampling takes for each logit: itself, a copy in float32 where rows are penalised, and one at work."""


def free_memory_bytes(device: torch.device) -> int:
    """Memory of the device that nobody uses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _host_memory(("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))


def pool_bytes(model: CausalLM, *, mem_fraction: float, step_tokens: int, sampled_rows: int) -> int:
    """Memory that the KV pool of a loaded model may take, by trying the largest step; it may come out negative.

    Args:
        mem_fraction: see `EngineConfig`.
        step_tokens: most tokens of a step.
        sampled_rows: most rows of a step that are sampled.
    """
    device = model.placement.device
    if device.type != "cuda":
        return int(free_memory_bytes(device) * mem_fraction)
    step = _step_bytes(model, step_tokens) + sampled_rows * model.config.vocab_size * _BYTES_PER_LOGIT
    free, total = torch.cuda.mem_get_info(device)
    return int(mem_fraction * total) - (total - free) - step - _WORKSPACE_BYTES


def _step_bytes(model: CausalLM, tokens: int) -> int:
    """Memory that the model takes for a step of so many tokens, beside its weights."""
    device = model.placement.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.inference_mode():
        token_ids = torch.zeros(tokens, dtype=torch.int32, device=device)
        model.hidden(token_ids, torch.arange(tokens, dtype=torch.int32, device=device), _NoAttention())
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()  # so that the pool, which is one piece, finds room in one piece
    return peak - before


class _NoAttention:
    """Gives queries for answers."""

    def plan(self, batch: AttentionPlan) -> None:
        """There is nothing to plan."""

    def decode_graph(self, rows: int, context_length: int) -> AttentionBackend | None:
        return None

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        return qkv[:, : layer.num_heads].contiguous()


def _host_memory(names: Sequence[str]) -> int:
    """The first of these page counts that the system knows, in bytes."""
    known = next(name for name in names if name in os.sysconf_names)
    return os.sysconf(known) * os.sysconf("SC_PAGE_SIZE")
