"""What a step tells the model: its tokens and their positions, on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import FROM_SLOT, Int32Array, StepPlan
from .kernels import serve
from .pinned_staging import PinnedStaging, staged_words


class StepInputs(NamedTuple):
    """Tokens of a step.

    Attributes:
        token_ids: [T] int32; `FROM_SLOT` stands for the token last sampled in the token's slot.
        positions: [T] int32.
        slots: [T] int32, the request slot of each token.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor

    def known_tokens(self, last_tokens: Tensor) -> Tensor:
        """[T] int32: the token ids, those of `FROM_SLOT` taken from `last_tokens` [max_slots]."""
        if not serve(last_tokens.device):
            return torch.where(self.token_ids == FROM_SLOT, last_tokens[self.slots].int(), self.token_ids)
        from .kernels.last_tokens import known_tokens

        return known_tokens(self.token_ids, self.slots, last_tokens)


class InputUpload:
    """Brings plans to a device, each in one copy.

    Args:
        staging: where they wait for it.
    """

    def __init__(self, staging: PinnedStaging) -> None:
        self._staging = staging

    def __call__(self, plan: StepPlan, wanted: Int32Array | None = None) -> tuple[StepInputs, Tensor | None]:
        """The inputs of a plan, and the indices `wanted` beside them."""
        arrays = _arrays(plan)
        if wanted is None:
            return StepInputs(*self._staging.upload(arrays)), None
        *inputs, on_device = self._staging.upload([*arrays, wanted])
        return StepInputs(*inputs), on_device

    def into(self, buffer: InputBuffer, plan: StepPlan) -> None:
        """Fill a buffer. What it has more than the plan's tokens is token 0 at position 0."""
        size = len(buffer.inputs.token_ids)
        self._staging.upload([_padded(array, size) for array in _arrays(plan)], out=buffer.words)


class InputBuffer:
    """Inputs of a fixed number of tokens at a fixed place, as a recorded step reads them."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.words = torch.zeros(staged_words([size] * 3), dtype=torch.int32, device=device)
        stride = len(self.words) // 3
        self.inputs = StepInputs(*(self.words[i * stride : i * stride + size] for i in range(3)))


def _arrays(plan: StepPlan) -> list[Int32Array]:
    slots = plan.slots if len(plan.slots) == len(plan.token_ids) else np.repeat(plan.slots, np.diff(plan.query_indptr))
    return [plan.token_ids, plan.positions, slots]


def _padded(array: npt.NDArray[np.int32], size: int) -> Int32Array:
    if len(array) == size:
        return array
    padded = np.zeros(size, dtype=np.int32)
    padded[: len(array)] = array
    return padded
