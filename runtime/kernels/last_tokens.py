"""The tokens that the step before sampled, put where a step needs them: the host does not know them yet."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def known_tokens(token_ids: Tensor, slots: Tensor, last_tokens: Tensor) -> Tensor:
    """A step's token ids: those that are negative are replaced by the token last sampled in their slot.

    Args:
        token_ids, slots: [T] int32; slots of tokens that are known are not read.
        last_tokens: [max_slots] int64.

    Returns:
        [T] int32.
    """
    out = torch.empty_like(token_ids)
    count = len(token_ids)
    _known_tokens[(triton.cdiv(count, _BLOCK),)](token_ids, slots, last_tokens, out, count, BLOCK=_BLOCK)
    return out


@triton.jit(do_not_specialize=["count"])
def _known_tokens(token_ids, slots, last_tokens, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    token = tl.load(token_ids + place, mask=inside, other=0)
    unknown = inside & (token < 0)
    slot = tl.load(slots + place, mask=unknown, other=0)
    last = tl.load(last_tokens + slot, mask=unknown, other=0)
    tl.store(out + place, tl.where(unknown, last.to(tl.int32), token), mask=inside)
