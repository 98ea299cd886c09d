"""Philox4x32-10, the counter-based random stream of every request.

A draw is a pure function of (seed, output position, draw number): it needs no state, so a request gives the same tokens
in any batch, after a retraction, and on any device. All arithmetic is on int64 tensors that hold 32-bit words, which
makes it exact on CPU and GPU.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3 and table 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xCD9E8D57, 0xD2511F53)
"""Of counter words 2 and 0, in that order."""
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""Added to key words 0 and 1 between rounds: the golden ratio and sqrt(3) - 1."""


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Encrypt counters under keys with ten rounds.

    Args:
        counter: [4, N] int64, words 0 to 3, each in [0, 2**32).
        key: [2, N] int64, words 0 and 1, each in [0, 2**32).

    Returns:
        [4, N] int64, four random words each in [0, 2**32).
    """
    multipliers = _pair(_MULTIPLIERS, counter.device)
    multiplied, mixed = counter[::2].flip(0), counter[1::2]
    for round_key in _round_keys(key):
        # The product of two 32-bit words wraps in int64; shift and mask read its halves as if it were unsigned.
        product = multiplied * multipliers
        multiplied = (((product >> 32) & _WORD) ^ mixed ^ round_key).flip(0)
        mixed = product & _WORD
    return torch.stack((multiplied[1], mixed[0], multiplied[0], mixed[1]))


def _round_keys(key: Tensor) -> Tensor:
    """[10, 2, N]: the key words of each round."""
    rounds = torch.arange(_ROUNDS, device=key.device)[:, None, None]
    return (key + rounds * _pair(_KEY_STEPS, key.device)) & _WORD


def _pair(words: tuple[int, int], device: torch.device) -> Tensor:
    """[2, 1] int64, filled on the device: a copy would make the host wait for a GPU."""
    return torch.stack([torch.full((1,), word, dtype=torch.int64, device=device) for word in words])


def uniform(seeds: Tensor, positions: Tensor, draw: int = 0) -> Tensor:
    """One uniform number a request.

    Args:
        seeds: [N] int64, the 64-bit seeds as `signed_seed` gives them.
        positions: [N] int64, index of the token in its request's output.
        draw: which of the position's independent numbers.

    Returns:
        [N] float64 in [0, 1), multiples of 2**-53.
    """
    key = torch.stack((seeds & _WORD, (seeds >> 32) & _WORD))
    unused = torch.zeros_like(positions)
    words = philox4x32(torch.stack((positions, torch.full_like(positions, draw), unused, unused)), key)
    bits = ((words[0] >> 5) << 26) | (words[1] >> 6)
    return bits.double() * 2.0**-53


def signed_seed(seed: int) -> int:
    """The int64 with the bits of a seed in [0, 2**64)."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
