"""Times of sampling at the vocabularies of Llama-3.1-8B and of the JSON workload, beside torch's argmax and softmax.

python benchmarks/kernels.py --only sampling
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palmette.runtime.batch import SlotSetup
from palmette.runtime.kernels.sampling import SamplingRows, choose_tokens
from palmette.runtime.pinned_staging import PinnedStaging
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.slot_options import SlotOptions

from .kernel_timing import Ceilings, Measured, copies_beyond_cache, graph_seconds, random_copies

_BYTES = 2
"""Of a bfloat16 number."""

_GREEDY = SamplingParams(temperature=0)
_RANDOM = SamplingParams(seed=1)
_NUCLEUS = SamplingParams(seed=1, temperature=0.6, top_p=0.9)
_TOP_K = SamplingParams(seed=1, top_k=50)


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    params: SamplingParams
    rows: int
    width: int
    masked: bool = False
    scale: float = 2.0  # of the normal logits


_CASES = (
    *(_Case("greedy", _GREEDY, rows, 128256) for rows in (1, 64, 512)),
    *(_Case("random", _RANDOM, rows, 128256) for rows in (1, 64, 512)),
    _Case("random, masks", _RANDOM, 256, 49152, masked=True),
    *(_Case("top-p 0.9", _NUCLEUS, rows, 128256) for rows in (1, 64, 512)),
    _Case("top-p 0.9, flat", _NUCLEUS, 64, 128256, scale=0.5),
    _Case("top-k 50", _TOP_K, 64, 128256),
)


def measure(_: Ceilings) -> Iterator[Measured]:
    """Tokens of a whole step, from logits that device memory holds."""
    for case in _CASES:
        yield _measure(case)


def _measure(case: _Case) -> Measured:
    moved = float(case.rows * case.width * _BYTES + case.masked * case.rows * case.width / 8)
    inputs = random_copies(copies_beyond_cache(moved, most=16), case.rows, case.width, scale=case.scale)
    ours = graph_seconds(_step(case, inputs), launches=len(inputs))
    peers = {"torch": graph_seconds(_torch_step(case, inputs), launches=len(inputs))}
    return Measured("sample", f"{case.name}, {case.rows} x {case.width}", ours, moved, peers=peers)


def _step(case: _Case, inputs: list[Tensor]) -> Callable[[int], object]:
    device, count = torch.device("cuda"), case.rows
    options = SlotOptions(case.width, count, device)
    nothing = np.zeros(0, dtype=np.int32)
    options.load([SlotSetup(slot, case.params, nothing, nothing, nothing) for slot in range(count)])
    numbers = np.arange(count, dtype=np.int32)
    none = np.full(count, -1, dtype=np.int32)
    ranked = numbers if options.ranked.any() else nothing
    arrays = [numbers, numbers, numbers if case.masked else none, none, ranked]
    rows = SamplingRows(*PinnedStaging(device).upload(arrays))
    masks = torch.randint(-(2**31), 2**31 - 1, (count, -(-case.width // 32)), dtype=torch.int32, device=device)
    last_tokens = torch.zeros(count, dtype=torch.int64, device=device)
    token_ids = torch.empty(count, dtype=torch.int32, device=device)

    def step(turn: int) -> None:
        choose_tokens(
            inputs[turn % len(inputs)],
            rows,
            options.table,
            masks if case.masked else None,
            None,
            last_tokens,
            token_ids,
            valid_vocab=case.width,
            random=not case.params.greedy,
        )

    return step


def _torch_step(case: _Case, inputs: list[Tensor]) -> Callable[[int], object]:
    """argmax, or the exponential race over a softmax: without masks and filters."""
    if case.params.greedy:
        return lambda turn: inputs[turn % len(inputs)].argmax(dim=1)

    def race(turn: int) -> Tensor:
        shares = inputs[turn % len(inputs)].float().softmax(dim=1)
        return shares.div_(torch.empty_like(shares).exponential_()).argmax(dim=1)

    return race
