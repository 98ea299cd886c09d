"""How many pages the KV pool of a loaded model has."""

from __future__ import annotations

from .config import EngineConfig, Sizes
from .device_memory import DeviceBudget, device_budget, free_memory_bytes, readable
from .errors import RequestError
from .kv_storage import KVStorage, kv_bytes_per_token, pages_for_memory
from .memory_reserves import page_table_bytes, reserves_of
from .models import CausalLM


def sized_storage(model: CausalLM, settings: EngineConfig, sizes: Sizes, *, recorded: bool) -> KVStorage:
    """The KV pool that `settings` ask for.

    Args:
        recorded: whether steps are recorded.

    Raises:
        RequestError: it holds no page, or there is no memory for it.
    """
    num_pages = _num_pages(model, settings, sizes, recorded)
    try:
        return KVStorage(model.config, model.placement, num_pages=num_pages, page_size=sizes.page_size)
    except RuntimeError as error:  # torch's errors of memory
        tokens = num_pages * sizes.page_size
        needed = tokens * kv_bytes_per_token(model.config, model.placement)
        raise RequestError(
            f"{model.placement.device} has no memory for a KV pool of {tokens} tokens, which takes {readable(needed)}: "
            f"{readable(free_memory_bytes(model.placement.device))} are free; lower max_total_tokens, memory_bytes or "
            "page_size"
        ) from error


def _num_pages(model: CausalLM, settings: EngineConfig, sizes: Sizes, recorded: bool) -> int:
    """Pages of the KV pool, no more than all requests at their longest could use."""
    page_size = sizes.page_size
    if settings.max_total_tokens is not None:
        return -(-settings.max_total_tokens // page_size)
    longest = -(-(settings.context_length or model.config.context_length) // page_size)
    budget: DeviceBudget | None = None
    if settings.memory_bytes is None and model.placement.device.type == "cuda":
        reserves = reserves_of(model, settings, sizes, recorded=recorded)
        budget = device_budget(model, step_tokens=sizes.chunk_size, reserves=reserves)
        memory = budget.pool_bytes(sizes.mem_fraction)
        pages = _pages_beside_tables(model, memory, sizes, longest, recorded)
    else:
        memory = settings.memory_bytes or int(free_memory_bytes(model.placement.device) * sizes.mem_fraction)
        pages = pages_for_memory(model.config, model.placement, memory_bytes=memory, page_size=page_size)
    if pages < 1:
        raise RequestError(_too_small(settings, sizes, budget))
    return min(pages, sizes.max_running_requests * longest)


def _pages_beside_tables(model: CausalLM, memory: int, sizes: Sizes, longest: int, recorded: bool) -> int:
    """Pages for which, and for the largest page tables of a step over them, `memory` is enough.

    Args:
        longest: pages of the longest context. In a small pool a row has less.
    """
    page = sizes.page_size * kv_bytes_per_token(model.config, model.placement)
    table = page_table_bytes(sizes, recorded=recorded)
    return max((memory - longest * table) // page, memory // (page + table))


def _too_small(settings: EngineConfig, sizes: Sizes, budget: DeviceBudget | None) -> str:
    given = f"memory_bytes={settings.memory_bytes}"
    if settings.memory_bytes is None:
        given = f"the memory that mem_fraction={sizes.mem_fraction} leaves"
    message = f"{given} holds not one page of {sizes.page_size} tokens of this model's KV cache"
    if budget is None:
        return message
    return f"{message}: {budget}. Raise mem_fraction, lower chunk_size or max_running_requests, or free memory"
