"""What the warm-up compiles of the sampling kernels is what steps run, however many rows they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling import masked, packed_mask, plan_of, setup
from torch import Tensor
from triton.runtime.jit import KernelInterface

from palmette.runtime.kernels import sampling, sampling_rank
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams

_ALIGNED = 16
_SLOTS, _VOCAB, _VALID = 200, 38 * 64, 38 * 64 - 9  # 38 blocks, as the 151936 logits of Qwen have


class _Variants:
    """Stands for the kernels, and collects what Triton would compile each of them for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[Any] = set()
        for module in (sampling, sampling_rank):
            for name, kernel in vars(module).copy().items():
                if isinstance(kernel, KernelInterface):
                    monkeypatch.setattr(module, name, _Kernel(name, self.seen))


class _Kernel:
    def __init__(self, name: str, seen: set[Any]) -> None:
        self._name = name
        self._seen = seen

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            tensors = tuple(_variant(each) for each in arguments if not isinstance(each, int))
            self._seen.add((self._name, tensors, *sorted(constants.items())))

        return launch


def _variant(argument: Tensor | None) -> object:
    return argument is not None and (argument.dtype, argument.data_ptr() % _ALIGNED == 0)


def test_steps_of_any_number_of_rows_run_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is compiled while requests run holds all of them up for seconds."""
    monkeypatch.setattr(sampling, "BLOCK", 64)
    monkeypatch.setattr(sampling, "_PROGRAMS", 256)
    variants = _Variants(monkeypatch)
    sampler = Sampler(_VOCAB, _SLOTS, 4, "cpu", valid_vocab=_VALID, kernels=True)
    sampler.warm_up(torch.bfloat16)
    warm = variants.seen.copy()
    sampler.write_masks((np.array([1], dtype=np.int32), packed_mask([3], _VOCAB)[None]))
    for params in (SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.9)):
        sampler.load([setup(slot, params) for slot in range(_SLOTS)])
        for rows in (1, 2, 3, 8, 57, 200):
            logits = torch.zeros((rows, _VOCAB), dtype=torch.bfloat16)
            for masks in (None, masked(*[1] * rows)):
                sampler.sample(logits, plan_of(range(rows)), masks)
    assert variants.seen - warm == set()
