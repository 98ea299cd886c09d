"""Compiles the sampling kernels, or loads them from Triton's cache, before a request has to wait for that."""

from __future__ import annotations

from itertools import product

import torch

from .sampling import SamplingRows, choose_tokens
from .sampling_scores import WORDS_A_SLOT


def warm_up(width: int, valid_vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Run every way of sampling once, on one row of zeros: greedy, random and ranked, with and without a mask.

    Args:
        width, valid_vocab, dtype: of the logits.
    """
    logits = torch.zeros((1, width), dtype=dtype, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    masks = torch.full((1, -(-width // 32)), -1, dtype=torch.int32, device=device)
    slot_table = torch.zeros((1, WORDS_A_SLOT.value), dtype=torch.int32, device=device)
    slot_table.view(torch.float32)[0, 4] = 1.0  # temperature
    slot_table[0, 6:] = 1  # top-k, and that the slot is random
    last_tokens, token_ids = torch.zeros(1, dtype=torch.int64, device=device), torch.empty_like(zero)
    for masked, (random, ranked) in product((False, True), ((False, False), (True, False), (True, True))):
        choose_tokens(
            logits,
            SamplingRows(zero, zero, zero if masked else zero - 1, zero - 1, zero if ranked else zero[:0]),
            slot_table,
            masks if masked else None,
            None,
            last_tokens,
            token_ids,
            valid_vocab=valid_vocab,
            random=random,
        )
