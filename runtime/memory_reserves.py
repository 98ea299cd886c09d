"""The one list of what a GPU engine takes once its KV pool is made. The pool leaves as much free.

What is not here is there before the pool, and measured with the weights: the mask table, penalty counts and options of
all slots, and cuBLAS's workspace. Each size below is the largest that the settings allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from .attention.workspaces import workspace_bytes
from .config import EngineConfig, Sizes
from .cuda_graph import decode_sizes, kept_bytes, recorded_bytes
from .kernels.linear_tiling import MOST_PARTIALS, MOST_TILES
from .models import CausalLM
from .token_chooser import LOGITS_AT_ONCE, work_bytes

_DRIVER_BYTES = 1 << 30
"""What the driver takes: code of kernels when they are first launched, their local memory, and the nodes of graphs."""

_CUBLAS_BYTES = 64 << 20
"""cuBLAS's workspaces of one more stream, on which steps are recorded: 32 MiB on a Hopper, twice."""

_RANK_BYTES = 1 << 16
"""Of a row with top-k or top-p: the bins of its scores, the candidates for the cut, and what every row has beside."""

PARTS_A_PRODUCT = 4
"""So many times more logits are made at once than are scored at once: each product reads all weights of the vocabulary,
1 GB of an 8B model."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory that is kept free.

    Attributes:
        what: takes it, as messages name it.
        size_bytes: the most that it can be.
    """

    what: str
    size_bytes: int


def reserves_of(model: CausalLM, settings: EngineConfig, sizes: Sizes, *, recorded: bool) -> tuple[Reserve, ...]:
    """All that comes after the pool beside the largest step, whose size only a trial tells, and `page_table_bytes`.

    Args:
        recorded: whether steps are recorded.
    """
    config, placement = model.config, model.placement
    decodes = decode_sizes(sizes.max_running_requests) if recorded else []
    partials = 4 * (MOST_PARTIALS + MOST_TILES)
    recordings = 0
    if recorded:
        recordings = recorded_bytes(config, placement, sizes.max_running_requests) + kept_bytes(config, placement)
    return (
        Reserve("choosing tokens", _choice_bytes(model, sizes)),
        Reserve(
            "attention's workspaces",
            workspace_bytes(settings.attention_backend, model.attention_layers, placement, sizes.chunk_size, decodes),
        ),
        Reserve("matrix products' workspaces", partials + _CUBLAS_BYTES * recorded),
        Reserve("recorded steps", recordings),
        Reserve("the driver's kernels and graphs", _DRIVER_BYTES),
    )


def _choice_bytes(model: CausalLM, sizes: Sizes) -> int:
    """Logits of all sampled rows, the same again in float32 where all are shaped, and what is at work on some of them.

    Or, where that is more, the logits that are scored: of a prompt or of choices, before the rows are sampled.
    """
    config, tokens = model.config, sizes.chunk_size
    rows = min(sizes.max_running_requests, tokens)
    copies = 1 if config.logit_softcap is None and config.logit_divisor == 1 else 3
    a_logit = copies * model.placement.dtype.itemsize
    sampled = rows * (config.vocab_size * (a_logit + 4) + _RANK_BYTES)
    scored = min(tokens * config.vocab_size, max(PARTS_A_PRODUCT * LOGITS_AT_ONCE, config.vocab_size)) * a_logit
    return max(sampled, scored) + work_bytes(tokens * config.vocab_size)


def page_table_bytes(sizes: Sizes, *, recorded: bool) -> int:
    """Memory of a step's page tables for each page that a row may have; a step may have as many rows as tokens."""
    rows = sizes.chunk_size + (decode_sizes(sizes.max_running_requests)[-1] if recorded else 0)
    return 4 * rows
