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
from .memory_reserves import Reserve
from .models import CausalLM


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
        weights: what they take of that.
        own: what all tensors of this process take of that.
        reserves: what is yet to come beside the KV pool.
    """

    device: torch.device
    total: int
    used: int
    weights: int
    own: int
    reserves: tuple[Reserve, ...]

    def pool_bytes(self, mem_fraction: float) -> int:
        """What the KV pool may take; it may come out negative."""
        return int(mem_fraction * self.total) - self.used - sum(reserve.size_bytes for reserve in self.reserves)

    def __str__(self) -> str:
        taken = [
            f"{readable(self.weights)} by weights",
            f"{readable(self.own - self.weights)} by the tables of sampling and other tensors of this process",
            f"{readable(self.used - self.own)} by other processes and the driver",
        ]
        kept = [f"{readable(reserve.size_bytes)} for {reserve.what}" for reserve in self.reserves]
        return f"{self.device} has {readable(self.total)}; taken are {', '.join(taken)}; kept are {', '.join(kept)}"


def device_budget(model: CausalLM, *, step_tokens: int, reserves: Sequence[Reserve]) -> DeviceBudget:
    """The budget of a loaded model's GPU, by trying the largest step.

    Args:
        step_tokens: most tokens of a step.
        reserves: what comes beside that step.

    Raises:
        RequestError: the step does not fit beside the weights.
    """
    device = model.placement.device
    weights = weight_bytes(model)
    try:
        step = _step_bytes(model, step_tokens)
    except torch.OutOfMemoryError as error:
        raise RequestError(
            f"{device} has no memory for a step of {step_tokens} tokens beside {readable(weights)} of weights: lower "
            f"chunk_size, or free memory of the device ({error})"
        ) from error
    free, total = torch.cuda.mem_get_info(device)
    largest = Reserve(f"a step of {step_tokens} tokens", step)
    own = torch.cuda.memory_allocated(device)
    return DeviceBudget(device, total, total - free, weights, own, (largest, *reserves))


def weight_bytes(model: CausalLM) -> int:
    """Memory of what a checkpoint fills, each part counted once."""
    targets = (slot.target for slot in model.slots().values())
    return sum({target.data_ptr(): target.nbytes for target in targets}.values())


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


def readable(size_bytes: int) -> str:
    """A size in GiB, or in MiB below one of them."""
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.0f} MiB"


class _NoAttention:
    """Gives queries for answers, and takes memory for both, as attention does."""

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        q = qkv[:, : layer.num_heads].contiguous()
        return q.clone()


def _host_memory(names: Sequence[str]) -> int:
    """The first of these page counts that the system knows, in bytes."""
    known = next(name for name in names if name in os.sysconf_names)
    return os.sysconf(known) * os.sysconf("SC_PAGE_SIZE")
