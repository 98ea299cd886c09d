"""How much of a device's memory is free, and how much of it the KV pool may take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import RequestError
from .layers.attention import RadixAttention
from .layers.rotary import Angles
from .models import CausalLM

_WORKSPACE_BYTES = 3 << 29
"""Kept for what is made later: workspaces of attention and of matrix products, and what the driver keeps of graphs."""

_BYTES_PER_LOGIT = 10
"""Most that sampling keeps for each logit: itself, a copy in float32 where a row is shaped, and a little at work."""


def free_memory_bytes(device: torch.device) -> int:
    """Memory of the device that nobody uses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _host_memory(("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """Memory of a GPU, in bytes.

    Attributes:
        total: all of it.
        used: by everybody, the weights of this engine among it.
        own: what tensors of this process take of that.
        step: that the largest step takes, and what is recorded of others.
    """

    device: torch.device
    total: int
    used: int
    own: int
    step: int

    def pool_bytes(self, mem_fraction: float) -> int:
        """What the KV pool may take; it may come out negative."""
        return int(mem_fraction * self.total) - self.used - self.step - _WORKSPACE_BYTES

    def __str__(self) -> str:
        others = self.used - self.own
        return (
            f"{self.device} has {_gib(self.total)}, of which {_gib(self.own)} are taken by weights and other tensors "
            f"of this process and {_gib(others)} by others and the driver; the largest step takes {_gib(self.step)} "
            f"and workspaces {_gib(_WORKSPACE_BYTES)}"
        )


def device_budget(model: CausalLM, *, step_tokens: int, sampled_rows: int, recorded_bytes: int) -> DeviceBudget:
    """The budget of a loaded model's GPU, by trying the largest step.

    Args:
        step_tokens: most tokens of a step.
        sampled_rows: most rows of a step that are sampled.
        recorded_bytes: kept for steps that are recorded.

    Raises:
        RequestError: the step does not fit beside the weights.
    """
    device = model.placement.device
    try:
        step = _step_bytes(model, step_tokens) + sampled_rows * model.config.vocab_size * _BYTES_PER_LOGIT
    except torch.OutOfMemoryError as error:
        raise RequestError(
            f"{device} has no memory for a step of {step_tokens} tokens beside the weights: lower chunk_size, or free "
            f"memory of the device ({error})"
        ) from error
    free, total = torch.cuda.mem_get_info(device)
    return DeviceBudget(device, total, total - free, torch.cuda.memory_allocated(device), step + recorded_bytes)


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


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


class _NoAttention:
    """Gives queries for answers."""

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        return qkv[:, : layer.num_heads].contiguous()


def _host_memory(names: Sequence[str]) -> int:
    """The first of these page counts that the system knows, in bytes."""
    known = next(name for name in names if name in os.sysconf_names)
    return os.sysconf(known) * os.sysconf("SC_PAGE_SIZE")
